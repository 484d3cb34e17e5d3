"""Fields of `config.eval`, `generate`, `score`, `analysis` and `report`."""

from transformer_xl.config.fields import Group
from transformer_xl.config.fields import field


class DynamicConfig(Group):
  """Dynamic evaluation, which docs/dynamic.md explains."""

  kind: str = field("none", ("none", "sgd", "rms"))
  """Rule by which parameters adapt to the text that was scored; rms divides
  each step by the size of training gradients."""
  lanes: str = field("apart", ("apart", "shared"))
  """Each lane adapts its own copy of the parameters (apart), or all lanes adapt
  one copy and learn from each other's text (shared)."""
  learning_rate: tuple[float, ...] = field((1e-4,), "0 or more")
  """Learning rate, or several to compare on the validation split; sgd needs
  rates some hundred times as large as rms."""
  decay: tuple[float, ...] = field((0.02,), "0 or more")
  """Decay per segment towards the trained parameters, or several to compare."""


class CacheConfig(Group):
  """The neural cache, which docs/dynamic.md explains."""

  size: int = field(0, "0 or more")
  """Length of the cache in tokens; 0 for none."""
  flatness: tuple[float, ...] = field((0.1,), "0 or more")
  """Factor theta on the similarity of states, or several to compare."""
  share: tuple[float, ...] = field((0.1,), "in [0, 1)")
  """Weight lambda of the cache in the mixture, or several to compare."""


class EvalConfig(Group):
  """How a split is scored."""

  split: str = field("test", ("train", "valid", "test"))
  """Split to score."""
  batch_size: int = field(8, "at least 1")
  """Number of lanes, over all devices."""
  segment_len: int = field(128, "at least 1")
  """Length of a segment in tokens."""
  context_len: int = field(0, "0 or more")
  """Tokens before a segment that are read again with it."""
  mem_len: tuple[int, ...] = field((128,), "0 or more")
  """Length of the memory in tokens, or several to compare."""
  clamp_len: int = field(0, "0 or more")
  """Distance in tokens from which all distances count as equal; 0 for none."""
  same_length: bool = field(False)
  """Let every token attend to the same number of keys; no effect without
  memory."""
  warmup_len: int = field(-1, "-1 or more")
  """Unscored tokens that fill a lane's memory before its first scored token; -1
  for as many as the memory holds."""
  temperature: tuple[float, ...] = field((1.0,), "above 0")
  """Divides the logits, or several to compare on the validation split."""
  memory: str = field("auto", ("auto", "hidden", "key_value"))
  """Whether memory holds hidden states, or their keys and values, which save
  their projection; the results are the same (docs/memory.md)."""
  parameters: str = field("raw", ("raw", "ema", "asgd"))
  """Evaluate the parameters themselves, or the average of them that training
  kept: train.ema_decay, train.asgd_start_step."""
  checkpoint: str = field("latest")
  """Checkpoint to read: latest, best, or the number of its step."""
  dynamic: DynamicConfig
  cache: CacheConfig

  @property
  def read_len(self) -> int:
    """Number of tokens that are read at once: a segment and its context."""
    return self.context_len + self.segment_len

  @property
  def num_settings(self) -> int:
    """Number of temperatures and settings of adaptation to compare."""
    dynamic = self.dynamic
    cache = self.cache
    result = len(self.temperature)
    if dynamic.kind != "none":
      result *= len(dynamic.learning_rate) * len(dynamic.decay)
    if cache.size:
      result *= len(cache.flatness) * len(cache.share)
    return result


class GenerateConfig(Group):
  """How a prompt is continued."""

  prompt: str = field("The")
  """Text to continue."""
  prompt_file: str = field("", names="file")
  """File to read the prompt from instead; - for standard input."""
  prompt_split: str = field("")
  """Split to take the prompt from instead, such as test; its next tokens are
  written beside the sample. Empty for none."""
  prompt_start: int = field(0, "0 or more")
  """Position in this split where the prompt starts, in tokens."""
  prompt_len: int = field(512, "at least 1")
  """Length of the prompt from this split, in tokens."""
  num_tokens: int = field(200, "0 or more")
  """Number of tokens to draw."""
  num_samples: int = field(1, "at least 1")
  """Number of continuations, drawn in one batch."""
  temperature: float = field(1.0, "0 or more")
  """Divides the log-probabilities; 0 always takes the likeliest token."""
  top_k: int = field(40, "0 or more")
  """Number of likeliest tokens to draw from; 0 for the whole vocabulary."""
  top_p: float = field(1.0, "in (0, 1]")
  """Draw from the likeliest of these whose probabilities add up to this."""
  repetition_penalty: float = field(1.0, "at least 1")
  """Divides the probabilities of the 256 newest tokens; 1 for no penalty."""
  no_repeat_ngram: int = field(0, "in [0, 256]")
  """Never repeat a sequence of this many tokens among the 256 newest; 0 allows
  all."""
  stop: str = field("")
  """Text that ends a continuation; empty for none."""
  tokens_per_call: int = field(16, "at least 1")
  """Number of tokens drawn in one compiled call, then printed."""
  segment_len: int = field(128, "at least 1")
  """Length of the segments that the prompt is read in, in tokens."""
  mem_len: int = field(512, "0 or more")
  """Length of the memory in tokens."""


class ScoreConfig(Group):
  """How the log-probabilities of given texts are computed."""

  file: str = field("", names="file")
  """File with a text or a JSON object on each line; - for standard input."""
  memory: str = field("fresh", ("fresh", "carry"))
  """Start each text with an empty memory, or carry it on from the text
  before."""
  prefix: str = field("\n")
  """Text read before each text and not scored."""
  top_k: int = field(0, "0 or more")
  """Number of likeliest tokens to report at each position; 0 for none."""
  batch_size: int = field(8, "at least 1")
  """Number of texts that are read at once."""
  segment_len: int = field(128, "at least 1")
  """Length of a segment in tokens."""
  mem_len: int = field(512, "0 or more")
  """Length of the memory in tokens."""


class AnalysisConfig(Group):
  """The paper's analyses, which docs/analyses.md explains."""

  paper: str = field("")
  """Table, figure or appendix of the paper that is repeated, such as table6;
  --config=paper:table6 sets it."""
  # Comparisons of variants that are trained: study, ablation and paper.
  split: str = field("valid", ("train", "valid", "test"))
  """Split that variants are compared on, in the place of eval.split; the test
  split is for what was chosen (docs/analyses.md)."""
  seeds: tuple[int, ...] = field((), "0 or more")
  """Seeds that each variant is trained with; config.seed if empty. The first
  chooses the learning rate."""
  learning_rates: tuple[float, ...] = field((), "above 0")
  """Learning rates that each variant is trained with, of which the best by the
  validation loss of the first seed counts; that of the experiment if empty."""
  max_learning_rates: int = field(0, "0 or more")
  """Number of learning rates to try at most: while the best is the lowest or
  the highest, a third or three times of it is tried, too. Without
  learning_rates the first three are those around train.learning_rate. 0 tries
  no others than are named."""
  # Study.
  variants: tuple[str, ...] = field(())
  """Variants to compare, each NAME: FIELD=VALUE; FIELD=VALUE."""
  # Ablation.
  rows: tuple[str, ...] = field(
    (
      "recurrent-relative-all",
      "recurrent-shaw-all",
      "recurrent-absolute-all",
      "segment-relative-all",
      "segment-shaw-all",
      "segment-absolute-all",
    )
  )
  """Rows of the ablation, each RECURRENCE-ENCODING-LOSS."""
  attention_lens: tuple[int, ...] = field((32, 64, 128, 256), "at least 1")
  """Attention lengths in tokens at which each row is evaluated."""
  equal_memory: bool = field(False)
  """Lengthen the segments of the rows without recurrence until all rows use as
  much device memory."""
  # Relative effective context length.
  group: tuple[str, ...] = field((), names="file")
  """Workdirs of the other models to compare with."""
  contexts: tuple[int, ...] = field((16, 256, 16), "at least 1")
  """Shortest and longest context in tokens, and by how many it grows at a
  time."""
  num_tokens: int = field(2000, "at least 1")
  """Number of tokens that are scored for the context length, or shown to the
  attention analysis."""
  # Speed of evaluation, and attention.
  speed_lens: tuple[int, ...] = field((800, 1800, 2800, 3800), "at least 1")
  """Attention lengths in tokens at which evaluation is timed."""
  text: str = field("")
  """Text to show attention on; empty for the start of the split."""
  heads: tuple[int, ...] = field((), "at least 1")
  """Heads whose attention to memory is drawn, counted from 1 through all
  layers; () for the paper's 8, 78 and 158 if there are 16 layers of 10 heads,
  or else for the three that look farthest."""


class ReportConfig(Group):
  """The page about a run, which docs/report.md explains."""

  runs: tuple[str, ...] = field((), names="file")
  """Workdirs of other runs to show beside it."""
