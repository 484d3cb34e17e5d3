"""Fields of `config.model`."""

import math

from transformer_xl.config import registry
from transformer_xl.config.fields import Group
from transformer_xl.config.fields import SameAs
from transformer_xl.config.fields import field


class AuxiliaryConfig(Group):
  """Predictions that only training makes (Al-Rfou et al. 2018)."""

  layers: str = field("none", ("none", "shared", "own"), transfer="any")
  """Let layers below the last predict in training, by the softmax of the last
  layer or each by its own; layer l of n stops after l / 2n of train.num_steps
  (docs/specification.md, section 14)."""
  num_targets: int = field(1, "at least 1", transfer="any")
  """Tokens that each position predicts in training: the next one, and those
  after it by weights of their own."""
  target_weight: float = field(0.5, "0 or more", transfer="any")
  """Weight in the loss of targets after the next token."""


class ModelConfig(Group):
  """The parameters of the model and the function that they compute."""

  vocab_size: int = field(0, "0 or more")
  """Number of symbols; 0 takes it from the prepared data."""
  num_layers: int = field(4, "at least 1")
  """Number of layers."""
  layers: tuple[str, ...] = field(
    ("attention",), "MIXER or MIXER:LIMIT", transfer="same_shapes"
  )
  """What mixes tokens in the layers, from the lowest up; repeats until there
  are num_layers. attention:128 remembers at most 128 positions
  (docs/memory.md)."""
  model_dim: int = field(256, "at least 1")
  """Width of the hidden states; even."""
  num_heads: int = field(4, "at least 1")
  """Number of attention heads."""
  head_dim: int = field(64, "at least 1")
  """Width of one attention head."""
  ff_dim: int = field(1024, "at least 1")
  """Width of the feed-forward layers."""
  embed_dim: int = field(SameAs("model_dim"), "at least 1")
  """Width of the embedding vectors; a different width adds projections."""
  scale_embeddings: bool = field(True)
  """Multiply the embeddings by the root of model_dim."""
  # The adaptive input and softmax.
  cutoffs: tuple[int, ...] = field(())
  """First token id of each tail cluster of the adaptive softmax; () makes it
  one ordinary softmax."""
  div_val: int = field(1, "at least 1")
  """Factor by which each cluster's vectors are narrower."""
  cluster_capacities: tuple[float, ...] = field((), "in (0, 1]", transfer="any")
  """Share of a device's tokens that each tail cluster can take at full speed;
  about three times its share of the text is enough, and () is room for all
  tokens."""
  tie_weights: bool = field(True)
  """Use the embedding tables as the weights of the softmax."""
  softmax_bias: bool = field(True)
  """Add a bias to the logit of each word."""
  tie_projections: str = field(
    "all_but_first", ("none", "all", "all_but_first")
  )
  """Which clusters use the embedding's projection in the softmax as well."""
  project_equal_width: bool = field(True)
  """With div_val > 1, project also the cluster that is as wide as the model
  (proj_same_dim in the TensorFlow code)."""
  # Published variants.
  untie_biases: bool = field(False)
  """Give each layer its own attention biases u and v."""
  pre_norm: bool = field(False)
  """Normalise the input of each sub-layer instead of its output."""
  final_norm: bool = field(False)
  """Normalise the states that leave the last layer, as models with pre_norm
  usually do; the published ones do not."""
  norm: str = field("layer", ("layer", "rms"))
  """Layer norm, or RMS norm, which has neither mean nor offset."""
  feed_forward: str = field("relu", ("relu", "swiglu", "geglu"))
  """The feed-forward part: a ReLU, or a gate with SiLU or GELU and a third
  matrix (Shazeer 2020)."""
  residual: str = field("add", ("add", "gru"))
  """How the outputs of sub-layers join the residual stream: added, or through
  the gate of GTrXL with six matrices (Parisotto et al. 2019)."""
  num_memory_tokens: int = field(0, "0 or more")
  """Number of vectors that are read before the tokens of a segment and written
  behind them, for the next one to read (Bulatov et al. 2022)."""
  qk_norm: bool = field(False)
  """Divide each head's queries and keys by their root mean square, times a
  learned scale."""
  qkv_bias: bool = field(False)
  """Add a bias to queries, keys and values in layers that attend."""
  num_kv_heads: int = field(SameAs("num_heads"), "at least 1")
  """Number of heads of keys and values, which several heads of queries share
  (grouped queries, Ainslie et al. 2023)."""
  encoding: str = field("relative", registry.encodings.rule)
  """How positions are encoded; docs/analyses.md compares the encodings."""
  num_positions: int = field(256, "at least 1")
  """Rows of a learned table, for encodings that have one: of distances, whose
  last row serves all longer ones, or of positions in a segment."""
  # Dropout.
  dropout_rate: float = field(0.1, "in [0, 1)", transfer="any")
  """Dropout inside all layers."""
  input_dropout_rate: float = field(
    SameAs("dropout_rate"), "in [0, 1)", transfer="any"
  )
  """Dropout of the embeddings that enter the first layer, and of the encodings
  of distances that all layers project."""
  output_dropout_rate: float = field(
    SameAs("dropout_rate"), "in [0, 1)", transfer="any"
  )
  """Dropout of the states that leave the last layer."""
  projection_dropout_rate: float = field(0.0, "in [0, 1)", transfer="any")
  """Dropout of queries, keys and values, after projection."""
  attention_dropout_rate: float = field(0.0, "in [0, 1)", transfer="any")
  """Dropout of attention weights."""
  embedding_dropout_rate: float = field(0.0, "in [0, 1)", transfer="any")
  """Dropout of whole words of the vocabulary."""
  weight_dropout_rate: float = field(0.0, "in [0, 1)", transfer="any")
  """Dropout of the entries of the layers' matrices (DropConnect); a recurrent
  mixer may drop those of its recurrent matrices alone."""
  locked_dropout: bool = field(False, transfer="any")
  """Draw one dropout mask for all tokens of a segment."""
  # Attention.
  memory_start: str = field("masked", ("masked", "zeros"), transfer="any")
  """Whether empty memory is masked, or attended as zeros as in the TensorFlow
  and HuggingFace models."""
  same_length_window: str = field(
    "mem_len_plus_one", ("mem_len", "mem_len_plus_one"), transfer="any"
  )
  """Number of keys that a token attends to with same_length; mem_len is the
  rule of the PyTorch and HuggingFace code."""
  layer_norm_epsilon: float = field(1e-5, "0 or more")
  """Added to the variance in layer norms; the TensorFlow code has 1e-12."""
  # Initialisation.
  init_std: float = field(0.02, "0 or more", transfer="any")
  """Standard deviation of initial parameters."""
  auxiliary: AuxiliaryConfig
  # Computation.
  dtype: str = field("float32", ("float32", "bfloat16", "auto"), transfer="any")
  """Number format of the computation; parameters stay float32. A run that
  starts with auto takes bfloat16 where that is fast (docs/kernels.md)."""
  attention: str = field("auto", ("auto", "xla", "pallas"), transfer="any")
  """Implementation of attention; auto chooses by device (docs/kernels.md)."""
  remat: str = field(
    "none", ("none", "full", "dots", "attention"), transfer="any"
  )
  """What the backward pass computes again to save memory: nothing, whole
  layers, all but matrix products, or attention."""
  scan_unroll: int = field(0, "0 or more", transfer="any")
  """Turns of the pattern of layers in one iteration of the loop over layers; 0
  takes all of them. 1 compiles in a fraction of the time, and on some devices
  needs less memory."""

  @property
  def pattern(self) -> tuple[tuple[str, int], ...]:
    """Mixer and limit of each entry of `layers`; a limit of 0 is for none."""
    split = (entry.partition(":") for entry in self.layers)
    return tuple((name, int(limit or 0)) for name, _, limit in split)

  @property
  def mixers(self) -> set[str]:
    """The names of the mixers that some layer has."""
    return {name for name, _ in self.pattern}

  @property
  def has_attention(self) -> bool:
    """Whether some layer attends to tokens, rather than carry a state."""
    return any(registry.mixers[name].attends for name in self.mixers)

  @property
  def most_tensor_parts(self) -> int:
    """The divisor of heads and widths that the axis `tensor` must divide."""
    return math.gcd(self.num_kv_heads, self.ff_dim)

  @property
  def attends_everywhere(self) -> bool:
    """Whether all layers attend to what `mem_len` says, and to no slots."""
    return self.layers == ("attention",)
