"""Tensors of the PyTorch models, the original and HuggingFace's.

Both formats are described in docs/specification.md, section 21. PyTorch's
linear layers compute x W^T, so kernels are transposed; embedding tables and
softmax kernels are not.
"""

from collections.abc import Iterator

from transformer_xl.config import schema
from transformer_xl.importers import mapping
from transformer_xl.model import adaptive_embedding

# Constant frequencies of the position encodings.
IGNORED = r"(^|\.)pos_emb\.inv_freq$"


def layout(
  config: schema.ModelConfig, *, prefix: str, reverse_clusters: bool
) -> Iterator[mapping.Tensor]:
  """Lists all tensors of a language model.

  Args:
    config: of the model.
    prefix: of tensor names outside the softmax.
    reverse_clusters: the head lists the last cluster first, as in the original
      code.
  """
  yield from _biases(config, prefix)
  for layer in range(config.num_layers):
    yield from _layer(layer, f"{prefix}layers.{layer}.")
  yield from _embedding(config, f"{prefix}word_emb.")
  yield from _softmax(config, reverse_clusters)


def _biases(config, prefix):
  """The biases u (`r_w_bias`) and v (`r_r_bias`)."""
  names = {"r_w_bias": "content_bias", "r_r_bias": "position_bias"}
  for theirs, ours in names.items():
    own = [
      f"{prefix}layers.{layer}.dec_attn.{theirs}"
      for layer in range(config.num_layers)
    ]
    if config.untie_biases:
      for layer, name in enumerate(own):
        piece = mapping.Piece(f"layers/attention/{ours}", layer)
        yield mapping.Tensor(name, (piece,))
    else:
      yield mapping.Tensor(
        f"{prefix}{theirs}", (mapping.Piece(ours),), aliases=tuple(own)
      )


def _layer(layer, prefix):
  def kernel(theirs, *ours):
    pieces = tuple(mapping.Piece(f"layers/{name}", layer) for name in ours)
    return mapping.Tensor(f"{prefix}{theirs}", pieces, transpose=True)

  def vector(theirs, ours):
    piece = mapping.Piece(f"layers/{ours}", layer)
    return mapping.Tensor(f"{prefix}{theirs}", (piece,))

  heads = [f"attention/{name}" for name in ("query", "key", "value")]
  yield kernel("dec_attn.qkv_net.weight", *heads)
  yield kernel("dec_attn.r_net.weight", "attention/position")
  yield kernel("dec_attn.o_net.weight", "attention/output")
  yield kernel("pos_ff.CoreNet.0.weight", "feed_forward/in_kernel")
  yield vector("pos_ff.CoreNet.0.bias", "feed_forward/in_bias")
  yield kernel("pos_ff.CoreNet.3.weight", "feed_forward/out_kernel")
  yield vector("pos_ff.CoreNet.3.bias", "feed_forward/out_bias")
  for theirs, ours in {
    "dec_attn": "attention_norm",
    "pos_ff": "feed_forward_norm",
  }.items():
    yield vector(f"{theirs}.layer_norm.weight", f"{ours}/scale")
    yield vector(f"{theirs}.layer_norm.bias", f"{ours}/bias")


def _embedding(config, prefix):
  parts = adaptive_embedding.clusters(config)
  count = 1 if config.div_val == 1 else len(parts)
  for index in range(count):
    tied = (f"crit.out_layers.{index}.weight",) if config.tie_weights else ()
    piece = mapping.Piece(f"embedding/table_{index}")
    name = f"{prefix}emb_layers.{index}.weight"
    yield mapping.Tensor(name, (piece,), aliases=tied)
  if not has_projections(config):
    return
  for index in range(count):
    users = range(len(parts)) if config.div_val == 1 else (index,)
    yield mapping.Tensor(
      f"{prefix}emb_projs.{index}",
      (mapping.Piece(f"embedding/projection_{index}"),),
      transpose=True,
      aliases=tuple(
        f"crit.out_projs.{user}" for user in users if shares(config, user)
      ),
    )


def _softmax(config, reverse_clusters):
  parts = adaptive_embedding.clusters(config)
  if len(parts) > 1:
    for theirs, ours in {
      "cluster_weight": "cluster_kernel",
      "cluster_bias": "cluster_bias",
    }.items():
      yield mapping.Tensor(
        f"crit.{theirs}",
        (mapping.Piece(f"softmax/{ours}"),),
        reverse=reverse_clusters,
      )
  if config.div_val == 1:
    yield mapping.Tensor("crit.out_layers.0.bias", _piece("softmax/bias"))
  else:
    for index, part in enumerate(parts):
      rows = slice(part.start, part.stop)
      piece = mapping.Piece("softmax/bias", rows)
      yield mapping.Tensor(f"crit.out_layers.{index}.bias", (piece,))
  if not config.tie_weights:
    yield from _kernels(config, len(parts))
  if has_projections(config):
    for index in range(len(parts)):
      if not shares(config, index):
        yield mapping.Tensor(
          f"crit.out_projs.{index}",
          _piece(f"softmax/projection_{index}"),
          transpose=True,
        )


def _kernels(config, count):
  pieces = tuple(
    mapping.Piece(f"softmax/kernel_{index}") for index in range(count)
  )
  if config.div_val == 1:
    yield mapping.Tensor("crit.out_layers.0.weight", pieces)
    return
  for index, piece in enumerate(pieces):
    yield mapping.Tensor(f"crit.out_layers.{index}.weight", (piece,))


def _piece(parameter: str) -> tuple[mapping.Piece, ...]:
  return (mapping.Piece(parameter),)


def has_projections(config: schema.ModelConfig) -> bool:
  """Whether PyTorch models have projections (docs/specification.md, 11)."""
  return config.div_val > 1 or config.embed_dim != config.model_dim


def shares(config: schema.ModelConfig, index: int) -> bool:
  """Whether the softmax of a cluster uses the embedding's projection."""
  if config.tie_projections == "all_but_first":
    return index > 0
  return config.tie_projections == "all"
