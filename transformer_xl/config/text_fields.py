"""Fields of `config.generate`, `score` and `analysis`."""

from transformer_xl.config.fields import NOT_NEGATIVE
from transformer_xl.config.fields import POSITIVE
from transformer_xl.config.fields import SHARE
from transformer_xl.config.fields import field
from transformer_xl.config.fields import group
from transformer_xl.config.fields import one_of


@group
class GenerateConfig:
  """How a prompt is continued."""

  prompt: str = field("The", "Text to continue.")
  prompt_file: str = field(
    "", "File to read the prompt from instead; - for standard input."
  )
  num_tokens: int = field(200, "Number of tokens to draw.", NOT_NEGATIVE)
  num_samples: int = field(
    1, "Number of continuations, drawn in one batch.", POSITIVE
  )
  temperature: float = field(
    1.0,
    "Divides the log-probabilities; 0 always takes the likeliest token.",
    NOT_NEGATIVE,
  )
  top_k: int = field(
    40,
    "Number of likeliest tokens to draw from; 0 for the whole vocabulary.",
    NOT_NEGATIVE,
  )
  top_p: float = field(
    1.0,
    "Draw from the likeliest of these whose probabilities add up to this.",
    SHARE,
  )
  repetition_penalty: float = field(
    1.0,
    "Divides the probabilities of recent tokens; 1 for no penalty.",
    POSITIVE,
  )
  no_repeat_ngram: int = field(
    0,
    "Never repeat a recent sequence of this many tokens; 0 allows all.",
    NOT_NEGATIVE,
  )
  repetition_window: int = field(
    256, "Number of tokens that count as recent.", NOT_NEGATIVE
  )
  stop: str = field("", "Text that ends a continuation; empty for none.")
  tokens_per_call: int = field(
    16, "Number of tokens drawn in one compiled call, then printed.", POSITIVE
  )
  segment_len: int = field(
    128,
    "Length of the segments that the prompt is read in, in tokens.",
    POSITIVE,
  )
  mem_len: int = field(512, "Length of the memory in tokens.", NOT_NEGATIVE)


@group
class ScoreConfig:
  """How the log-probabilities of given texts are computed."""

  file: str = field(
    "",
    "File with a text or a JSON object on each line; - for standard input.",
  )
  memory: str = field(
    "fresh",
    "Start each text with an empty memory, or carry it on from the text "
    "before.",
    one_of("fresh", "carry"),
  )
  prefix: str = field("\n", "Text read before each text and not scored.")
  top_k: int = field(
    0,
    "Number of likeliest tokens to report at each position; 0 for none.",
    NOT_NEGATIVE,
  )
  batch_size: int = field(8, "Number of texts that are read at once.", POSITIVE)
  segment_len: int = field(128, "Length of a segment in tokens.", POSITIVE)
  mem_len: int = field(512, "Length of the memory in tokens.", NOT_NEGATIVE)


@group
class AnalysisConfig:
  """The paper's analyses, which docs/analyses.md explains."""

  # Ablation.
  rows: tuple[str, ...] = field(
    (
      "recurrent-relative-all",
      "recurrent-shaw-all",
      "recurrent-absolute-all",
      "segment-relative-all",
      "segment-shaw-all",
      "segment-absolute-all",
    ),
    "Rows of the ablation, each RECURRENCE-ENCODING-LOSS.",
  )
  attention_lens: tuple[int, ...] = field(
    (32, 64, 128, 256),
    "Attention lengths in tokens at which each row is evaluated.",
  )
  equal_memory: bool = field(
    False,
    "Lengthen the segments of the rows without recurrence until all rows use "
    "as much device memory.",
  )
  # Relative effective context length.
  group: tuple[str, ...] = field(
    (), "Workdirs of the other models to compare with."
  )
  context: str = field(
    "tokens",
    "What limits the context: the tokens that are read, or the keys that each "
    "layer attends to.",
    one_of("tokens", "attention"),
  )
  context_start: int = field(16, "Shortest context in tokens.", POSITIVE)
  context_step: int = field(
    16, "Tokens by which the context grows at a time.", POSITIVE
  )
  context_stop: int = field(256, "Longest context in tokens.")
  fractions: tuple[float, ...] = field(
    (0.1, 0.5, 1.0), "Shares of the tokens, the hardest, that are compared."
  )
  threshold: float = field(
    0.01, "Relative gain below which a longer context counts as useless."
  )
  num_tokens: int = field(
    2000,
    "Number of tokens that are scored for the context length, or shown to "
    "the attention analysis.",
    POSITIVE,
  )
  # Speed of evaluation, and attention.
  speed_lens: tuple[int, ...] = field(
    (800, 1800, 2800, 3800),
    "Attention lengths in tokens at which evaluation is timed.",
  )
  text: str = field(
    "", "Text to show attention on; empty for the start of the split."
  )
