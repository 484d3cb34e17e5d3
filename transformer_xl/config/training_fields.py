"""Fields of `config.data`, `train`, `divergence`, `checkpoint` and `mesh`."""

import os

from transformer_xl.config import registry
from transformer_xl.config.fields import Group
from transformer_xl.config.fields import SameAs
from transformer_xl.config.fields import field

# The modes that may follow training.
FINISHES = (
  "eval",
  "generate",
  "score",
  "recl",
  "attention",
  "eval_speed",
  "ablation",
  "recall",
  "report",
  "study",
)
# What changes the log of a run and nothing that is trained, by path.
ONLY_LOGGED = (
  "train.log_every_steps",
  "train.log_memory_use",
  "train.profile_steps",
  "train.tracker",
)


class DataConfig(Group):
  """Which token files are read, and how lanes run through them."""

  name: str = field("python_stdlib")
  """Folder of the prepared dataset in `dir`."""
  dir: str = field("data", names="folder")
  """Folder of the prepared datasets."""
  prepare: bool = field(False)
  """Prepare the dataset before training if it is missing."""
  reset_at_documents: bool = field(False)
  """Empty the memory where a document starts; the published models do not."""
  targets: str = field("all", ("all", "answers"))
  """Tokens that training and evaluation score: all, or the answers of a
  synthetic task."""

  @property
  def dataset_dir(self) -> str:
    """Folder of the prepared dataset."""
    return os.path.join(self.dir, self.name)


class LoraConfig(Group):
  """Adapters of low rank, trained in place of matrices (Hu et al. 2021)."""

  rank: int = field(0, "0 or more")
  """Rank of the adapters beside the parameters of init_from, which stay as they
  are; 0 trains all parameters (docs/finetuning.md)."""
  alpha: float = field(16.0, "above 0")
  """Factor alpha / rank on the product of an adapter's two matrices."""
  targets: tuple[str, ...] = field(("query", "key", "value", "output"))
  """Names of the layers' matrices that get an adapter each."""


class TrainConfig(Group):
  """Text, loss and optimizer of training, and what it does at intervals."""

  init_from: str = field("", names="folder")
  """Workdir of a run or an import whose parameters a new run starts from;
  everything else starts afresh (docs/finetuning.md)."""
  init_parameters: str = field("raw", ("raw", "ema", "asgd"))
  """Take its parameters themselves, or the average of them that it kept."""
  init_rest: str = field("refuse", ("refuse", "draw"))
  """Refuse a model with other layers or memory tokens, or take what fits and
  draw the rest (docs/finetuning.md)."""
  init_checkpoint: str = field("latest")
  """Checkpoint of it to take: latest, best, or the number of its step."""
  lora: LoraConfig
  num_steps: int = field(1000, "at least 1")
  """Number of updates; each reads gradient_segments segments of every lane."""
  batch_size: int = field(16, "at least 1")
  """Number of lanes, over all devices."""
  segment_len: int = field(128, "at least 1")
  """Length of a segment in tokens."""
  segment_len_std: float = field(0.0, "0 or more")
  """Standard deviation of segment lengths around segment_len, in tokens, drawn
  per segment, with a learning rate in proportion to the length; one in twenty
  is drawn around half of it; 0 for none."""
  context_len: int = field(0, "0 or more")
  """Tokens before a segment that are read again with it, with gradient and
  without loss."""
  mem_len: int = field(128, "0 or more")
  """Length of the memory in tokens."""
  mem_len_low: int = field(-1, "-1 or more")
  """Draw how much of the memory each update sees, from this many tokens to
  mem_len; -1 for all of it (docs/memory.md)."""
  gradient_segments: int = field(1, "at least 1")
  """Number of consecutive segments in an update, whose gradient flows through
  the memory between them (docs/memory.md)."""
  clamp_len: int = field(0, "0 or more")
  """Distance in tokens from which all distances count as equal; 0 for none."""
  same_length: bool = field(False)
  """Let every token attend to the same number of keys; no effect without
  memory."""
  loss_on: str = field("all", ("all", "recent_half"))
  """Targets that are learned: all of a segment, or its second half."""
  activation_penalty: float = field(0.0, "0 or more")
  """Weight in the loss of the mean square of the last layer's states, before
  dropout (AR, Merity et al. 2017)."""
  temporal_activation_penalty: float = field(0.0, "0 or more")
  """Weight in the loss of the mean squared difference between the states of
  neighbouring tokens (TAR, Merity et al. 2017)."""
  segments_per_call: int = field(10, "at least 1")
  """Largest number of updates in one compiled call; a call also divides the
  intervals of log lines, validations and checkpoints."""
  accumulation_steps: int = field(1, "at least 1")
  """Number of parts in which the lanes of an update are read, one after the
  other, to save memory."""
  # Optimizer.
  optimizer: str = field("adam", registry.optimizers.rule)
  """What turns gradients into updates (docs/specification.md, section 16)."""
  learning_rate: float = field(2.5e-4, "0 or more")
  """Peak learning rate."""
  min_learning_rate_ratio: float = field(0.0, "in [0, 1)")
  """Last learning rate of the schedule, relative to its peak."""
  decay_steps: int = field(SameAs("num_steps"), "at least 1")
  """Number of updates after which the schedule is at its end."""
  embedding_rate_factor: float = field(1.0, "above 0")
  """Factor on the peak learning rate of the embedding tables; the cosine ends
  at the same rate."""
  learning_rate_factors: tuple[str, ...] = field((), "PATTERN=FACTOR")
  """Factors on the learning rate of parameters whose whole names match regular
  expressions, the first that matches; 0 freezes (docs/finetuning.md)."""
  schedule: str = field("cosine", registry.schedules.rule)
  """Learning rate after warm-up (docs/specification.md, section 15)."""
  warmup_steps: int = field(0, "0 or more")
  """Number of updates with a rising learning rate."""
  clip_norm: float = field(0.25, "0 or more")
  """Largest global L2 norm of the gradient; 0 for none."""
  weight_decay: float = field(0.0, "0 or more")
  """Weight decay of matrices, for optimizers that have one."""
  l2_penalty: float = field(0.0, "0 or more")
  """Added to the clipped gradient, times all parameters; unlike weight_decay it
  goes through Adam's moments."""
  adam_b2: float = field(0.999, "in [0, 1)")
  """Decay per update of Adam's mean of squared gradients."""
  adam_epsilon: float = field(1e-8, "above 0")
  """Added to the root of Adam's mean of squares, which may be 0."""
  # Averages of the parameters, which eval.parameters chooses from.
  ema_decay: float = field(0.0, "in [0, 1)")
  """Decay per update of an exponential moving average of the parameters; 0
  keeps none."""
  asgd_start_step: int = field(0, "0 or more")
  """Step after which the mean of the parameters is kept (ASGD); 0 for none."""
  average_rate_factor: float = field(1.0, "above 0")
  """Factor on the learning rate while the mean of the parameters is kept."""
  # What happens every n steps, and at the end.
  log_every_steps: int = field(50, "at least 1")
  """Updates between two lines of the log."""
  eval_every_steps: int = field(500, "0 or more")
  """Updates between two validations, with the memory of training; 0 for
  none."""
  log_memory_use: bool = field(False)
  """Log with each validation the share of attention that goes to memory, and
  the loss without memory."""
  profile_steps: int = field(0, "0 or more")
  """Updates in a trace that starts after 20, in the workdir's folder `profile`;
  0 for none."""
  tracker: str = field("none", registry.tracker_rule, names="code")
  """Where metrics go besides metrics.jsonl and TensorBoard's event files
  (docs/training_log.md)."""
  finish_with: tuple[str, ...] = field((), FINISHES)
  """Modes to run after training, such as ('eval','generate')."""

  @property
  def average_kind(self) -> str:
    """The average of the parameters that is kept: ema, asgd or none, ""."""
    if self.ema_decay:
      return "ema"
    return "asgd" if self.asgd_start_step else ""


class DivergenceConfig(Group):
  """When divergence is declared, and what is done then."""

  action: str = field("stop", ("stop", "skip", "lower_rate"))
  """Stop the run, or return to a checkpoint and either skip the text read since
  or halve the learning rate (docs/checkpoints.md)."""
  spike_nats: float = field(2.0, "0 or more")
  """Declare divergence when the median loss of 100 updates exceeds its minimum
  by this many nats; 0 declares it only for a loss that is not finite."""


class CheckpointConfig(Group):
  """When checkpoints are saved, and which are kept."""

  every_steps: int = field(500, "at least 1")
  """Updates between two regular checkpoints."""
  every_minutes: float = field(30.0, "0 or more")
  """Minutes between two further checkpoints; 0 for none."""
  keep_latest: int = field(2, "at least 1")
  """Number of newest checkpoints to keep, beside the one with the lowest
  validation loss."""


class MeshConfig(Group):
  """How many devices lie along each axis of the mesh."""

  data: int = field(-1, "-1 or at least 1")
  """Devices that lanes are split over, together with fsdp; -1 takes all that
  the other axes leave."""
  fsdp: int = field(-1, "-1 or at least 1")
  """Devices that parameters and optimizer state are split over; -1 chooses by
  their size (docs/tpu.md)."""
  tensor: int = field(-1, "-1 or at least 1")
  """Devices that heads, feed-forward units and vocabulary are split over; -1 is
  1 unless there are twice as many devices as lanes, or data and fsdp leave
  more."""
