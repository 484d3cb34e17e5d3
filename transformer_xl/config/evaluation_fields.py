"""Fields of `config.eval`."""

from transformer_xl.config.fields import ABOVE_ZERO
from transformer_xl.config.fields import FRACTION
from transformer_xl.config.fields import NOT_NEGATIVE
from transformer_xl.config.fields import POSITIVE
from transformer_xl.config.fields import field
from transformer_xl.config.fields import group
from transformer_xl.config.fields import one_of
from transformer_xl.config.fields import several


@group
class DynamicConfig:
  """Dynamic evaluation, which docs/dynamic.md explains."""

  kind: str = field(
    "none",
    "Rule by which parameters adapt to the text that was scored; rms divides "
    "each step by the size of training gradients.",
    one_of("none", "sgd", "rms"),
  )
  lanes: str = field(
    "apart",
    "Each lane adapts its own copy of the parameters (apart), or all lanes "
    "adapt one copy and learn from each other's text (shared).",
    one_of("apart", "shared"),
  )
  learning_rate: tuple[float, ...] = field(
    (1e-4,),
    "Learning rate, or several to compare on the validation split; sgd needs "
    "rates some hundred times as large as rms.",
    several(NOT_NEGATIVE),
  )
  decay: tuple[float, ...] = field(
    (0.02,),
    "Decay per segment towards the trained parameters, or several to compare.",
    several(NOT_NEGATIVE),
  )
  epsilon: float = field(
    1e-3,
    "Added to the size of training gradients, which is almost zero for rare "
    "words.",
    ABOVE_ZERO,
  )
  statistics_segments: int = field(
    50,
    "Segments of each lane from which rms measures the size of training "
    "gradients.",
    POSITIVE,
  )


@group
class CacheConfig:
  """The neural cache, which docs/dynamic.md explains."""

  size: int = field(
    0, "Length of the cache in tokens; 0 for none.", NOT_NEGATIVE
  )
  flatness: tuple[float, ...] = field(
    (0.1,),
    "Factor theta on the similarity of states, or several to compare.",
    several(NOT_NEGATIVE),
  )
  share: tuple[float, ...] = field(
    (0.1,),
    "Weight lambda of the cache in the mixture, or several to compare.",
    several(FRACTION),
  )


@group
class EvalConfig:
  """How a split is scored."""

  split: str = field(
    "test", "Split to score.", one_of("train", "valid", "test")
  )
  batch_size: int = field(8, "Number of lanes, over all devices.", POSITIVE)
  segment_len: int = field(128, "Length of a segment in tokens.", POSITIVE)
  context_len: int = field(
    0, "Tokens before a segment that are read again with it.", NOT_NEGATIVE
  )
  mem_len: tuple[int, ...] = field(
    (128,),
    "Length of the memory in tokens, or several to compare.",
    several(NOT_NEGATIVE),
  )
  clamp_len: int = field(
    0,
    "Distance in tokens from which all distances count as equal; 0 for none.",
    NOT_NEGATIVE,
  )
  same_length: bool = field(
    False, "Let every token attend to the same number of keys."
  )
  warmup_len: int = field(
    -1,
    "Unscored tokens that fill a lane's memory before its first scored token; "
    "-1 for as many as the memory holds.",
  )
  temperature: tuple[float, ...] = field(
    (1.0,),
    "Divides the logits, or several to compare on the validation split.",
    several(ABOVE_ZERO),
  )
  memory: str = field(
    "auto",
    "Whether memory holds hidden states, or their keys and values, which "
    "save their projection; the results are the same (docs/memory.md).",
    one_of("auto", "hidden", "key_value"),
  )
  segments_per_call: int = field(
    8, "Number of segments in one compiled call.", POSITIVE
  )
  parameters: str = field(
    "raw",
    "Evaluate the parameters themselves, or the average of them that training "
    "kept: train.ema_decay, train.asgd_start_step, train.asgd_patience.",
    one_of("raw", "ema", "asgd"),
  )
  checkpoint: str = field(
    "latest", "Checkpoint to read: latest, best, or the number of its step."
  )
  dynamic: DynamicConfig
  cache: CacheConfig

  @property
  def num_settings(self) -> int:
    """Number of temperatures and settings of adaptation to compare."""
    dynamic, cache = self.dynamic, self.cache
    result = len(self.temperature)
    if dynamic.kind != "none":
      result *= len(dynamic.learning_rate) * len(dynamic.decay)
    if cache.size:
      result *= len(cache.flatness) * len(cache.share)
    return result
