"""Checkpoints of the original TensorFlow code.

The format is described in docs/specification.md, section 21.3. Names and shapes
of variables determine a model's whole configuration except the lengths of
evaluation.
"""

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.formats import tensor_bundle
from transformer_xl.importers import mapping
from transformer_xl.importers import source
from transformer_xl.importers import torch_layout
from transformer_xl.model import adaptive_embedding

# The optimizer's variables.
IGNORED = r"(/Adam(_1)?|(^|/)beta[12]_power|^global_step)$"
VOCABULARIES = ("cache.pkl",)
SCOPE = "transformer"


def read(path: str) -> source.Source:
  """Reads a checkpoint.

  Args:
    path: the prefix (.../model.ckpt-0), its folder, or the published folder
      that contains `model` and `data`.

  Raises:
    UserError: files are missing or damaged, or the model is of another kind.
  """
  prefix = _find_prefix(path)
  bundle = tensor_bundle.Bundle(prefix)
  try:
    fields = _model(bundle.shapes)
  except LookupError as error:
    raise errors.UserError(
      f"{prefix} is not a Transformer-XL of the original TensorFlow code: the "
      f"variable {error} is missing; check --source."
    ) from None
  folder = os.path.dirname(prefix)
  folders = (folder, os.path.join(folder, "..", "data"))
  found = (source.find(path, VOCABULARIES) for path in folders)
  for path in folders:
    _check_corpus(os.path.join(path, "corpus-info.json"), fields)
  return source.Source(
    tensors=bundle,
    files=bundle.files,
    model=fields,
    lengths=None,
    vocabulary=next(filter(None, found), None),
  )


def layout(config: schema.ModelConfig) -> Iterator[mapping.Tensor]:
  """Lists the variables of a model."""
  for theirs, ours in {
    "r_w_bias": "content_bias",
    "r_r_bias": "position_bias",
  }.items():
    name = f"layers/attention/{ours}" if config.untie_biases else ours
    yield _tensor(theirs, name)
  for layer in range(config.num_layers):
    yield from _layer(layer)
  parts = adaptive_embedding.clusters(config)
  yield from _embedding(config, len(parts))
  if len(parts) == 1:
    yield _tensor("adaptive_softmax/bias", "softmax/bias")
  else:
    yield from _softmax(config, parts)


def _layer(layer: int) -> Iterator[mapping.Tensor]:
  heads = [f"attention/{name}" for name in ("query", "key", "value")]
  for theirs, ours in {
    "rel_attn/qkv/kernel": heads,
    "rel_attn/r/kernel": ["attention/position"],
    "rel_attn/o/kernel": ["attention/output"],
    "rel_attn/LayerNorm/gamma": ["attention_norm/scale"],
    "rel_attn/LayerNorm/beta": ["attention_norm/bias"],
    "ff/layer_1/kernel": ["feed_forward/in_kernel"],
    "ff/layer_1/bias": ["feed_forward/in_bias"],
    "ff/layer_2/kernel": ["feed_forward/out_kernel"],
    "ff/layer_2/bias": ["feed_forward/out_bias"],
    "ff/LayerNorm/gamma": ["feed_forward_norm/scale"],
    "ff/LayerNorm/beta": ["feed_forward_norm/bias"],
  }.items():
    pieces = tuple(mapping.Piece(f"layers/{name}", layer) for name in ours)
    name = f"{SCOPE}/layer_{layer}/{theirs}"
    yield mapping.Tensor(name, pieces, axis=len(pieces) > 1)


def _embedding(config, count: int) -> Iterator[mapping.Tensor]:
  for index in range(1 if config.div_val == 1 else count):
    scope = "adaptive_embed"
    if config.div_val > 1:
      scope = f"{scope}/cutoff_{index}"
    yield _tensor(f"{scope}/lookup_table", f"embedding/table_{index}")
    if _has_projection(config, index):
      yield _tensor(f"{scope}/proj_W", f"embedding/projection_{index}")


def _softmax(config, parts) -> Iterator[mapping.Tensor]:
  head = "adaptive_softmax/cutoff_0"
  yield _tensor(f"{head}/cluster_W", "softmax/cluster_kernel")
  yield _tensor(f"{head}/cluster_b", "softmax/cluster_bias")
  for index, part in enumerate(parts):
    scope = f"adaptive_softmax/cutoff_{index}"
    rows = slice(part.start, part.stop)
    yield _tensor(f"{scope}/b", "softmax/bias", rows)
    own = not torch_layout.shares(config, index)
    if own and _has_projection(config, index):
      yield _tensor(f"{scope}/proj", f"softmax/projection_{index}")


def _tensor(theirs: str, ours: str, at: slice | None = None) -> mapping.Tensor:
  return mapping.Tensor(f"{SCOPE}/{theirs}", (mapping.Piece(ours, at),))


def _has_projection(config, index: int) -> bool:
  """Whether a cluster of this width has a projection.

  One of the model's width may have it only if embeddings narrow
  (docs/specification.md, section 11).
  """
  width = config.embed_dim // config.div_val**index
  equal = width == config.model_dim
  return not equal or (config.div_val > 1 and config.project_equal_width)


def _find_prefix(path: str) -> str:
  """Returns the prefix of the checkpoint in a folder, or the given prefix."""
  for folder in (path, os.path.join(path, "model")):
    indices = [
      name
      for name in (os.listdir(folder) if os.path.isdir(folder) else ())
      if name.endswith(".index")
    ]
    if len(indices) > 1:
      raise errors.UserError(
        f"{folder} has {len(indices)} checkpoints ({', '.join(sorted(indices))}"
        f"); name one: --source={os.path.join(folder, indices[0])[:-6]}."
      )
    if indices:
      return os.path.join(folder, indices[0]).removesuffix(".index")
  return path.removesuffix(".index")


def _check_corpus(path: str, fields: dict[str, Any]) -> None:
  """Compares the model with corpus-info.json, if it exists.

  The file's cutoffs include 0 and the vocabulary's size.
  """
  if not os.path.exists(path):
    return
  try:
    with open(path, encoding="utf-8") as file:
      info = json.load(file)
    size, cutoffs = info["vocab_size"], tuple(info["cutoffs"][1:-1])
  except (ValueError, LookupError, TypeError, RecursionError) as error:
    raise errors.UserError(
      f"{path} is damaged ({error}); copy it again, or delete it."
    ) from None
  model = fields["vocab_size"], fields["cutoffs"]
  # A single table has no cutoffs, whatever the file states.
  if size != model[0] or (model[1] and cutoffs != model[1]):
    raise errors.UserError(
      f"{path} is for {size} symbols with the cutoffs {cutoffs}, but the "
      f"checkpoint has {model[0]} with {model[1]}; they belong to two models."
    )


def _model(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
  """Fields of our `ModelConfig`, from names and shapes."""

  def shape(name: str) -> tuple[int, ...]:
    return shapes[f"{SCOPE}/{name}"]

  def count(pattern: str) -> int:
    names = map(f"{SCOPE}/{pattern}".format, itertools.count())
    return sum(1 for _ in itertools.takewhile(shapes.__contains__, names))

  biases = shape("r_w_bias")
  model_dim = shape("layer_0/rel_attn/LayerNorm/gamma")[0]
  sizes = [
    shape(f"adaptive_softmax/cutoff_{index}/b")[0]
    for index in range(count("adaptive_softmax/cutoff_{}/b"))
  ]
  scopes = [
    f"adaptive_embed/cutoff_{index}"
    for index in range(count("adaptive_embed/cutoff_{}/lookup_table"))
  ] or ["adaptive_embed"]
  widths = [shape(f"{scope}/lookup_table")[1] for scope in scopes]
  projects = [f"{SCOPE}/{scope}/proj_W" in shapes for scope in scopes]
  return {
    "vocab_size": sum(shape(f"{scope}/lookup_table")[0] for scope in scopes),
    "num_layers": count("layer_{}/rel_attn/r/kernel"),
    "model_dim": model_dim,
    "num_heads": biases[-2],
    "head_dim": biases[-1],
    "ff_dim": shape("layer_0/ff/layer_1/bias")[0],
    "embed_dim": widths[0],
    "cutoffs": tuple(itertools.accumulate(sizes))[:-1],
    "div_val": source.div_val(widths),
    "tie_weights": True,  # The flag of the published code has no effect.
    "tie_projections": _tie_projections(shapes, projects, len(sizes)),
    # Only narrowing embeddings leave a choice; see `_has_projection`.
    "project_equal_width": len(scopes) == 1 or projects[0],
    "untie_biases": len(biases) == 3,
    "pre_norm": False,
    "memory_start": "zeros",
    "same_length_window": "mem_len_plus_one",
    "layer_norm_epsilon": 1e-12,
    "init_style": "tensorflow",
  }


def _tie_projections(shapes, projects: list[bool], count: int) -> str:
  """Value of `model.tie_projections`, from the softmax's own projections."""
  if not any(projects):
    return "all_but_first"
  if count == 0:  # Without clusters the softmax has none of its own.
    return "all"
  own = [
    f"{SCOPE}/adaptive_softmax/cutoff_{index}/proj" in shapes
    for index in range(count)
  ]
  if not any(own[1:]):
    return "all_but_first"
  return "none"
