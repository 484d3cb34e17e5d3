"""Checkpoints of the original TensorFlow code.

docs/specification.md, section 21.3, says more of the format. Names and shapes
of variables determine a model's whole configuration except the lengths of
evaluation.
"""

import glob
import itertools
import json
import os
import pathlib
from collections.abc import Iterator
from types import EllipsisType

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.formats import tensor_bundle
from transformer_xl.importers import mapping
from transformer_xl.model import adaptive_embedding

# The optimizer's variables.
IGNORED = r"(/Adam(_1)?|(^|/)beta[12]_power|^global_step)$"
SCOPE = "transformer"
LAYER = {
  "rel_attn/qkv/kernel": mapping.QKV,
  "rel_attn/r/kernel": ("attention/position",),
  "rel_attn/o/kernel": ("attention/output",),
  "rel_attn/LayerNorm/gamma": ("mixer_norm/scale",),
  "rel_attn/LayerNorm/beta": ("mixer_norm/bias",),
  "ff/layer_1/kernel": ("feed_forward/in_kernel",),
  "ff/layer_1/bias": ("feed_forward/in_bias",),
  "ff/layer_2/kernel": ("feed_forward/out_kernel",),
  "ff/layer_2/bias": ("feed_forward/out_bias",),
  "ff/LayerNorm/gamma": ("feed_forward_norm/scale",),
  "ff/LayerNorm/beta": ("feed_forward_norm/bias",),
}


def read(path: str) -> mapping.Source:
  """Reads a checkpoint.

  The path is the prefix (.../model.ckpt-0), its folder, or the published folder
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
  for path in folders:
    _check_corpus(os.path.join(path, "corpus-info.json"), fields)
  names = [os.path.join(path, "cache.pkl") for path in folders]
  vocabulary = next(filter(os.path.exists, names), None)
  return mapping.Source(bundle, bundle.files, fields, None, vocabulary)


def layout(config: schema.ModelConfig) -> Iterator[mapping.Tensor]:
  """Lists the variables of a model."""
  params = mapping.parameter_shapes(config)

  def tensor(
    theirs: str, ours: str, at: int | slice | EllipsisType = ...
  ) -> mapping.Tensor:
    return mapping.Tensor(f"{SCOPE}/{theirs}", (ours,), at)

  folder = f"{mapping.LAYERS}/attention/" if config.untie_biases else ""
  yield tensor("r_w_bias", f"{folder}content_bias")
  yield tensor("r_r_bias", f"{folder}position_bias")
  for layer in range(config.num_layers):
    for theirs, names in LAYER.items():
      parameters = tuple(f"{mapping.LAYERS}/{name}" for name in names)
      name = f"{SCOPE}/layer_{layer}/{theirs}"
      yield mapping.Tensor(name, parameters, layer, axis=-1)
  clusters = adaptive_embedding.clusters(config)
  for index in range(1 if config.div_val == 1 else len(clusters)):
    scope = "adaptive_embed"
    if config.div_val > 1:
      scope = f"{scope}/cutoff_{index}"
    yield tensor(f"{scope}/lookup_table", f"embedding/table_{index}")
    if (name := f"embedding/projection_{index}") in params:
      yield tensor(f"{scope}/proj_W", name)
  if len(clusters) == 1:
    yield tensor("adaptive_softmax/bias", "softmax/bias")
    return
  head = "adaptive_softmax/cutoff_0"
  yield tensor(f"{head}/cluster_W", "softmax/cluster_kernel")
  yield tensor(f"{head}/cluster_b", "softmax/cluster_bias")
  for index, cluster in enumerate(clusters):
    scope = f"adaptive_softmax/cutoff_{index}"
    rows = slice(cluster.start, cluster.stop)
    yield tensor(f"{scope}/b", "softmax/bias", rows)
    if (name := f"softmax/projection_{index}") in params:
      yield tensor(f"{scope}/proj", name)


def _find_prefix(path: str) -> str:
  """Returns the prefix of the checkpoint in a folder, or the given prefix."""
  for folder in (path, os.path.join(path, "model")):
    found = sorted(glob.glob("*.index", root_dir=folder))
    prefixes = [os.path.join(folder, name[: -len(".index")]) for name in found]
    if len(found) > 1:
      raise errors.UserError(
        f"{folder} has {len(found)} checkpoints ({', '.join(found)}); name "
        f"one: --source={prefixes[0]}."
      )
    if found:
      return prefixes[0]
  return path.removesuffix(".index")


def _check_corpus(path: str, fields: mapping.Fields) -> None:
  """Compares the model with corpus-info.json, if it exists.

  The file's cutoffs include 0 and the vocabulary's size.
  """
  if not os.path.exists(path):
    return
  try:
    info = json.loads(pathlib.Path(path).read_text("utf-8"))
    size = info["vocab_size"]
    cutoffs = tuple(info["cutoffs"][1:-1])
  except (ValueError, LookupError, TypeError, RecursionError) as error:
    raise errors.UserError(
      f"{path} is damaged ({error}); copy it again, or delete it."
    ) from None
  known = fields["vocab_size"]
  ends = fields["cutoffs"]
  # A single table has no cutoffs, whatever the file states.
  if size != known or (ends and cutoffs != ends):
    raise errors.UserError(
      f"{path} is for {size} symbols with the cutoffs {cutoffs}, but the "
      f"checkpoint has {known} with {ends}; they belong to two models."
    )


def _model(shapes: dict[str, tuple[int, ...]]) -> mapping.Fields:
  """Fields of our `ModelConfig`, from names and shapes."""

  def shape(name: str) -> tuple[int, ...]:
    return shapes[f"{SCOPE}/{name}"]

  def count(pattern: str) -> int:
    names = map(f"{SCOPE}/{pattern}".format, itertools.count())
    return sum(1 for _ in itertools.takewhile(shapes.__contains__, names))

  biases = shape("r_w_bias")
  sizes = [
    shape(f"adaptive_softmax/cutoff_{index}/b")[0]
    for index in range(count("adaptive_softmax/cutoff_{}/b"))
  ]
  scopes = [
    f"adaptive_embed/cutoff_{index}"
    for index in range(count("adaptive_embed/cutoff_{}/lookup_table"))
  ] or ["adaptive_embed"]
  tables = [shape(f"{scope}/lookup_table") for scope in scopes]
  projects = [f"{SCOPE}/{scope}/proj_W" in shapes for scope in scopes]
  names = [f"adaptive_softmax/cutoff_{i}/proj" for i in range(1, len(sizes))]
  tied = "all_but_first"
  if any(projects) and not sizes:  # The softmax has none of its own.
    tied = "all"
  elif any(projects) and any(f"{SCOPE}/{name}" in shapes for name in names):
    tied = "none"
  return {
    "vocab_size": sum(table[0] for table in tables),
    "num_layers": count("layer_{}/rel_attn/r/kernel"),
    "model_dim": shape("layer_0/rel_attn/LayerNorm/gamma")[0],
    "num_heads": biases[-2],
    "head_dim": biases[-1],
    "ff_dim": shape("layer_0/ff/layer_1/bias")[0],
    "embed_dim": tables[0][1],
    "cutoffs": tuple(itertools.accumulate(sizes))[:-1],
    "div_val": mapping.div_val([table[1] for table in tables]),
    "tie_weights": True,  # The flag of the published code has no effect.
    "tie_projections": tied,
    # Only narrowing embeddings leave a choice (specification, section 11).
    "project_equal_width": len(scopes) == 1 or projects[0],
    "untie_biases": len(biases) == 3,
    "pre_norm": False,
    "memory_start": "zeros",
    "same_length_window": "mem_len_plus_one",
    "layer_norm_epsilon": 1e-12,
  }
