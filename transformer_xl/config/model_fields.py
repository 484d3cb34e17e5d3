"""Fields of `config.model`."""

from transformer_xl.config import encodings
from transformer_xl.config.fields import FRACTION
from transformer_xl.config.fields import NOT_NEGATIVE
from transformer_xl.config.fields import POSITIVE
from transformer_xl.config.fields import SHARE
from transformer_xl.config.fields import SameAs
from transformer_xl.config.fields import each
from transformer_xl.config.fields import field
from transformer_xl.config.fields import group
from transformer_xl.config.fields import one_of


@group
class ModelConfig:
  """The parameters of the model and the function that they compute."""

  vocab_size: int = field(
    0, "Number of symbols; 0 takes it from the prepared data.", NOT_NEGATIVE
  )
  num_layers: int = field(4, "Number of layers.", POSITIVE)
  model_dim: int = field(256, "Width of the hidden states; even.", POSITIVE)
  num_heads: int = field(4, "Number of attention heads.", POSITIVE)
  head_dim: int = field(64, "Width of one attention head.", POSITIVE)
  ff_dim: int = field(1024, "Width of the feed-forward layers.", POSITIVE)
  embed_dim: int = field(
    SameAs("model_dim"),
    "Width of the embedding vectors; a different width adds projections.",
    POSITIVE,
  )
  # The adaptive input and softmax.
  cutoffs: tuple[int, ...] = field(
    (),
    "First token id of each tail cluster of the adaptive softmax; () makes it "
    "one ordinary softmax.",
  )
  div_val: int = field(
    1, "Factor by which each cluster's vectors are narrower.", POSITIVE
  )
  cluster_capacities: tuple[float, ...] = field(
    (),
    "Share of a device's tokens that each tail cluster can take at full speed; "
    "about three times its share of the text is enough, and () is room for "
    "all tokens.",
    each(SHARE),
  )
  tie_weights: bool = field(
    True, "Use the embedding tables as the weights of the softmax."
  )
  tie_projections: str = field(
    "all_but_first",
    "Which clusters use the embedding's projection in the softmax as well.",
    one_of("none", "all", "all_but_first"),
  )
  project_equal_width: bool = field(
    True,
    "With div_val > 1, project also the cluster that is as wide as the model "
    "(proj_same_dim in the TensorFlow code).",
  )
  # Published variants.
  untie_biases: bool = field(
    False, "Give each layer its own attention biases u and v."
  )
  pre_norm: bool = field(
    False, "Normalise the input of each sub-layer instead of its output."
  )
  encoding: str = field(
    "relative",
    "How positions are encoded; docs/analyses.md compares the encodings.",
    one_of(*encodings.FACTS),
  )
  num_positions: int = field(
    256,
    "Rows of a learned position table: distances for shaw, whose last row "
    "serves all longer ones; positions in a segment for absolute_per_layer.",
    POSITIVE,
  )
  # Dropout: docs/ptb.md measures the kinds.
  dropout_rate: float = field(0.1, "Dropout inside all layers.", FRACTION)
  input_dropout_rate: float = field(
    SameAs("dropout_rate"),
    "Dropout of the embeddings that enter the first layer.",
    FRACTION,
  )
  position_dropout_rate: float = field(
    SameAs("dropout_rate"),
    "Dropout of the encodings of distances that all layers project.",
    FRACTION,
  )
  output_dropout_rate: float = field(
    SameAs("dropout_rate"),
    "Dropout of the states that leave the last layer.",
    FRACTION,
  )
  projection_dropout_rate: float = field(
    0.0, "Dropout of queries, keys and values, after projection.", FRACTION
  )
  attention_dropout_rate: float = field(
    0.0, "Dropout of attention weights.", FRACTION
  )
  embedding_dropout_rate: float = field(
    0.0, "Dropout of whole words of the vocabulary.", FRACTION
  )
  weight_dropout_rate: float = field(
    0.0,
    "Dropout of the entries of the layers' matrices (DropConnect).",
    FRACTION,
  )
  locked_dropout: bool = field(
    False, "Draw one dropout mask for all tokens of a segment."
  )
  # Attention.
  memory_start: str = field(
    "masked",
    "Whether empty memory is masked, or attended as zeros as in the "
    "TensorFlow and HuggingFace models.",
    one_of("masked", "zeros"),
  )
  same_length_window: str = field(
    "mem_len_plus_one",
    "Number of keys that a token attends to with same_length; mem_len is the "
    "rule of the PyTorch and HuggingFace code.",
    one_of("mem_len", "mem_len_plus_one"),
  )
  layer_norm_epsilon: float = field(
    1e-5,
    "Added to the variance in layer norms; the TensorFlow code has 1e-12.",
    NOT_NEGATIVE,
  )
  # Initialisation.
  init_style: str = field(
    "tensorflow",
    "Whose initialisation is used for the scales of layer norms and the "
    "cluster weights of the softmax: 1 and 0 in TensorFlow, drawn in PyTorch.",
    one_of("tensorflow", "pytorch"),
  )
  init_std: float = field(
    0.02, "Standard deviation of initial parameters.", NOT_NEGATIVE
  )
  projection_init_std: float = field(
    0.01, "Standard deviation of initial embedding projections.", NOT_NEGATIVE
  )
  # Computation.
  dtype: str = field(
    "float32",
    "Number format of the computation; parameters stay float32.",
    one_of("float32", "bfloat16"),
  )
  attention: str = field(
    "auto",
    "Implementation of attention; auto chooses by device (docs/kernels.md).",
    one_of("auto", "reference", "head_major", "chunked", "pallas"),
  )
  remat: str = field(
    "none",
    "What the backward pass computes again to save memory: nothing, whole "
    "layers, all but matrix products, or attention.",
    one_of("none", "full", "dots", "attention"),
  )
  scan_unroll: int = field(
    0,
    "Layers in one turn of the loop over layers; 0 takes all of them on a CPU "
    "and 1 elsewhere.",
    NOT_NEGATIVE,
  )
