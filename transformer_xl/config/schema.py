"""The experiment's configuration as frozen dataclasses without defaults.

Defaults and remarks live in `experiments/base.py` alone, the rules that values
keep in `config_rules.py`; this file is the only place that knows `ConfigDict`.
Lengths are in tokens, batch sizes in lanes and global.
"""

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Everything that shapes or changes the function of the parameters."""

  vocab_size: int
  num_layers: int
  model_dim: int
  num_heads: int
  head_dim: int
  ff_dim: int
  embed_dim: int
  cutoffs: tuple[int, ...]
  div_val: int
  cluster_capacities: tuple[float, ...]
  tie_weights: bool
  tie_projections: str
  project_equal_width: bool
  untie_biases: bool
  pre_norm: bool
  encoding: str
  num_positions: int
  dropout_rate: float
  input_dropout_rate: float
  output_dropout_rate: float
  attention_dropout_rate: float
  embedding_dropout_rate: float
  weight_dropout_rate: float
  locked_dropout: bool
  memory_start: str
  same_length_window: str
  layer_norm_epsilon: float
  init_style: str
  init_std: float
  projection_init_std: float
  dtype: str
  attention: str
  remat: str
  scan_unroll: int


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Which token files, and how lanes run through them."""

  name: str
  dir: str
  prepare: bool
  reset_at_documents: bool
  rotate_epochs: bool

  @property
  def dataset_dir(self) -> str:
    """Folder of the prepared dataset."""
    return os.path.join(self.dir, self.name)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """The optimisation."""

  num_steps: int
  batch_size: int
  segment_len: int
  segment_lens: tuple[int, ...]
  mem_len: int
  clamp_len: int
  same_length: bool
  loss_on: str
  activation_penalty: float
  temporal_activation_penalty: float
  segments_per_call: int
  accumulation_steps: int
  optimizer: str
  learning_rate: float
  min_learning_rate_ratio: float
  schedule: str
  schedule_convention: str
  warmup_steps: int
  clip_norm: float
  weight_decay: float
  adam_b1: float
  adam_b2: float
  adam_epsilon: float
  ema_decay: float
  asgd_start_step: int
  asgd_patience: int
  log_every_steps: int
  eval_every_steps: int
  eval_mem_len: int
  log_memory_use: bool
  finish_with: tuple[str, ...]

  @property
  def average_kind(self) -> str:
    """Which average of the parameters is kept: ema, asgd or none, ""."""
    if self.ema_decay:
      return "ema"
    return "asgd" if self.asgd_start_step or self.asgd_patience else ""


@dataclasses.dataclass(frozen=True)
class DynamicConfig:
  """How parameters follow the text that they have scored: docs/dynamic.md."""

  kind: str
  lanes: str
  learning_rate: tuple[float, ...]
  decay: tuple[float, ...]
  epsilon: float
  statistics_segments: int


@dataclasses.dataclass(frozen=True)
class CacheConfig:
  """The neural cache: docs/dynamic.md."""

  size: int
  flatness: tuple[float, ...]
  share: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class DivergenceConfig:
  """What counts as divergence, and what is done then: `divergence.py`."""

  action: str
  spike_nats: float
  window: int
  tries: int
  rate_factor: float


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """How a split is scored."""

  split: str
  batch_size: int
  segment_len: int
  mem_len: tuple[int, ...]
  clamp_len: int
  same_length: bool
  warmup_len: int
  memory: str
  segments_per_call: int
  parameters: str
  checkpoint: str
  dynamic: DynamicConfig
  cache: CacheConfig

  @property
  def num_settings(self) -> int:
    """How many settings of dynamic evaluation and cache are to be tried."""
    dynamic, cache = self.dynamic, self.cache
    result = 1
    if dynamic.kind != "none":
      result *= len(dynamic.learning_rate) * len(dynamic.decay)
    if cache.size:
      result *= len(cache.flatness) * len(cache.share)
    return result


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """When to save and what to keep."""

  every_steps: int
  every_minutes: float
  keep_latest: int
  keep_best: int


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """How many devices along each axis; -1 for all that remain."""

  data: int
  fsdp: int
  tensor: int


@dataclasses.dataclass(frozen=True)
class GenerateConfig:
  """How text is continued."""

  prompt: str
  prompt_file: str
  num_tokens: int
  num_samples: int
  temperature: float
  top_k: int
  top_p: float
  repetition_penalty: float
  no_repeat_ngram: int
  repetition_window: int
  stop: str
  tokens_per_call: int
  segment_len: int
  mem_len: int


@dataclasses.dataclass(frozen=True)
class ScoreConfig:
  """How texts are scored."""

  file: str
  memory: str
  prefix: str
  top_k: int
  batch_size: int
  segment_len: int
  mem_len: int


@dataclasses.dataclass(frozen=True)
class AnalysisConfig:
  """What the commands of `analysis/` measure: docs/analyses.md."""

  rows: tuple[str, ...]
  attention_lens: tuple[int, ...]
  equal_memory: bool
  group: tuple[str, ...]
  context: str
  context_start: int
  context_step: int
  context_stop: int
  fractions: tuple[float, ...]
  threshold: float
  num_tokens: int
  speed_lens: tuple[int, ...]
  text: str


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
  """One run."""

  seed: int
  model: ModelConfig
  data: DataConfig
  train: TrainConfig
  divergence: DivergenceConfig
  eval: EvalConfig
  checkpoint: CheckpointConfig
  mesh: MeshConfig
  generate: GenerateConfig
  score: ScoreConfig
  analysis: AnalysisConfig
