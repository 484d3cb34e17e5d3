"""Checkpoints of the original PyTorch code: model.pt or its state dict.

docs/specification.md, section 21.2, says more of the format. Names and shapes
of tensors determine most of a model's configuration. The rest is in the
attributes of a pickled module; for a state dict the caller gives it.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.formats import torch_file
from transformer_xl.importers import mapping
from transformer_xl.model import adaptive_embedding

# Constant frequencies of the position encodings.
IGNORED = r"(^|\.)pos_emb\.inv_freq$"
BIASES = {"r_w_bias": "content_bias", "r_r_bias": "position_bias"}  # u, v.
# A model has those of our parameters that its options call for. Only exports
# have a gate and norms of queries and keys.
LAYER = {
  "dec_attn.qkv_net.weight": mapping.QKV,
  "dec_attn.q_norm.weight": ("attention/query_scale",),
  "dec_attn.k_norm.weight": ("attention/key_scale",),
  "dec_attn.r_net.weight": ("attention/position",),
  "dec_attn.o_net.weight": ("attention/output",),
  "pos_ff.CoreNet.0.weight": (
    "feed_forward/in_kernel",
    "feed_forward/gate_kernel",
  ),
  "pos_ff.CoreNet.0.bias": ("feed_forward/in_bias",),
  "pos_ff.CoreNet.3.weight": ("feed_forward/out_kernel",),
  "pos_ff.CoreNet.3.bias": ("feed_forward/out_bias",),
  "dec_attn.layer_norm.weight": ("mixer_norm/scale",),
  "dec_attn.layer_norm.bias": ("mixer_norm/bias",),
  "pos_ff.layer_norm.weight": ("feed_forward_norm/scale",),
  "pos_ff.layer_norm.bias": ("feed_forward_norm/bias",),
}
FINAL_NORM = {
  "final_norm.weight": "final_norm/scale",
  "final_norm.bias": "final_norm/bias",
}
VOCABULARIES = ("cache.pt", "vocab.pkl", "vocab.bin", "vocab.txt")
PARALLEL = "module."  # Prefix added by torch.nn.DataParallel.


def read(
  path: str, *, cutoffs: tuple[int, ...], pre_norm: bool
) -> mapping.Source:
  """Reads model.pt, a state dict, or a folder with model.pt.

  Args:
    path: the file or folder.
    cutoffs: those of a state dict with div_val=1; other files state them.
    pre_norm: whether a state dict has layer norms in front; a module states it.

  Raises:
    UserError: the file is missing or damaged, or the model is of another kind.
  """
  if os.path.isdir(path):
    path = os.path.join(path, "model.pt")
  file = torch_file.read(path)
  named = file.tensors().items()
  tensors = {name.removeprefix(PARALLEL): values for name, values in named}
  given: mapping.Fields = {"cutoffs": cutoffs, "pre_norm": pre_norm}
  lengths = None
  try:
    if file.attributes():
      given, lengths = _settings(file)
    fields = given | _model(tensors, path, given["cutoffs"])
  except LookupError as error:
    raise errors.UserError(
      f"{path} is not a language model of the original code with relative "
      f"attention (attn_type 0): {error} is missing; check --format."
    ) from None
  vocabulary = mapping.find(os.path.dirname(path), VOCABULARIES)
  return mapping.Source(tensors, (path,), fields, lengths, vocabulary)


def layout(
  config: schema.ModelConfig, *, prefix: str = "", reverse_clusters: bool = True
) -> Iterator[mapping.Tensor]:
  """Lists all tensors of a language model, the original or HuggingFace's.

  PyTorch's linear layers compute x W^T, so kernels are transposed; embedding
  tables and softmax kernels are not. Names outside the softmax begin with
  `prefix`. With `reverse_clusters` the head lists the last cluster first.
  """
  params = mapping.parameter_shapes(config)
  for theirs, ours in BIASES.items():
    own = [
      f"{prefix}layers.{layer}.dec_attn.{theirs}"
      for layer in range(config.num_layers)
    ]
    of_layer = f"{mapping.LAYERS}/attention/{ours}"
    if of_layer in params:
      for layer, name in enumerate(own):
        yield mapping.Tensor(name, (of_layer,), layer)
    elif ours in params:
      name = f"{prefix}{theirs}"
      yield mapping.Tensor(name, (ours,), aliases=tuple(own))
  for layer in range(config.num_layers):
    for theirs, names in LAYER.items():
      paths = [f"{mapping.LAYERS}/{name}" for name in names]
      present = tuple(path for path in paths if path in params)
      if present:
        yield mapping.Tensor(
          f"{prefix}layers.{layer}.{theirs}",
          present,
          layer,
          transpose=True,  # Leaves vectors as they are.
        )
  for theirs, ours in FINAL_NORM.items():
    if ours in params:
      yield mapping.Tensor(f"{prefix}{theirs}", (ours,))
  yield from _clusters(config, f"{prefix}word_emb.", reverse_clusters)


def _clusters(
  config: schema.ModelConfig, prefix: str, reverse: bool
) -> Iterator[mapping.Tensor]:
  """Tensors of the embedding and of the softmax."""
  params = mapping.parameter_shapes(config)
  parts = adaptive_embedding.clusters(config)
  clusters = range(len(parts))
  tables = [clusters[i : i + 1] for i in clusters]  # The clusters of each.
  if config.div_val == 1:
    tables = [clusters]
  for index in range(len(tables)):
    name = f"{prefix}emb_layers.{index}"
    output = f"crit.out_layers.{index}"
    yield mapping.Tensor(
      f"{name}.weight",
      (f"embedding/table_{index}",),
      aliases=(f"{output}.weight",) if config.tie_weights else (),
    )
  for index, table in enumerate(tables):
    ours = f"embedding/projection_{index}"
    shared = [i for i in table if f"softmax/projection_{i}" not in params]
    names = tuple(f"crit.out_projs.{i}" for i in shared)
    if ours in params:
      name = f"{prefix}emb_projs.{index}"
      yield mapping.Tensor(name, (ours,), transpose=True, aliases=names)
  if len(parts) > 1:
    for theirs, ours in (("weight", "kernel"), ("bias", "bias")):
      name = f"crit.cluster_{theirs}"
      ours = f"softmax/cluster_{ours}"
      yield mapping.Tensor(name, (ours,), reverse=reverse)
  for index, table in enumerate(tables):
    rows = slice(parts[table[0]].start, parts[table[-1]].stop)
    name = f"crit.out_layers.{index}.bias"
    yield mapping.Tensor(name, ("softmax/bias",), rows)
  for index, table in enumerate(() if config.tie_weights else tables):
    names = tuple(f"softmax/kernel_{i}" for i in table)
    yield mapping.Tensor(f"crit.out_layers.{index}.weight", names)
  for index in clusters:
    ours = f"softmax/projection_{index}"
    if ours in params:
      yield mapping.Tensor(f"crit.out_projs.{index}", (ours,), transpose=True)


def _model(
  tensors: Mapping[str, np.ndarray], path: str, cutoffs: tuple[int, ...]
) -> mapping.Fields:
  """Fields of our `ModelConfig`, from names, shapes and shared values."""
  tables = _numbered(tensors, "word_emb.emb_layers.{}.weight")
  biases = tensors["r_w_bias"]
  kernel = tensors["layers.0.dec_attn.qkv_net.weight"]
  if any(array.ndim != 2 for array in (biases, kernel, *tables)):
    raise errors.UserError(
      f"{path} is not a language model of the original code with relative "
      "attention (attn_type 0): r_w_bias, qkv_net and the embeddings must have "
      "two axes."
    )
  num_heads, head_dim = biases.shape
  model_dim = kernel.shape[1]
  projections = _numbered(tensors, "word_emb.emb_projs.{}")
  widths = [table.shape[1] for table in tables]
  sizes = [len(table) for table in tables]
  if len(tables) > 1:
    cutoffs = tuple(itertools.accumulate(sizes))[:-1]
  div_val = mapping.div_val(widths)
  if len(tables) == 1 and projections and widths[0] == model_dim:
    div_val = 2  # Equal widths are projected only if div_val > 1.
  num_tails = len(tensors.get("crit.cluster_bias", ()))
  if len(cutoffs) != num_tails:
    raise errors.UserError(
      f"{path} has {num_tails} clusters besides its shortlist, but "
      f"--cutoffs={','.join(map(str, cutoffs))} makes {len(cutoffs)}; a state "
      "dict does not state where they start: set --cutoffs (wt103: "
      "20000,40000,200000)."
    )

  def shared(arrays: Sequence[np.ndarray], pattern: str) -> list[bool]:
    names = map(pattern.format, range(len(arrays)))
    pairs = zip(arrays, names, strict=True)
    return [np.array_equal(array, tensors[name]) for array, name in pairs]

  # With div_val=1 all clusters have the same one.
  each = (projections * (num_tails + 1))[: num_tails + 1]
  tied = shared(each, "crit.out_projs.{}") or [False]
  return {
    "vocab_size": sum(sizes),
    "num_layers": len(_numbered(tensors, "layers.{}.dec_attn.r_net.weight")),
    "model_dim": model_dim,
    "num_heads": num_heads,
    "head_dim": head_dim,
    "ff_dim": len(tensors["layers.0.pos_ff.CoreNet.0.bias"]),
    "embed_dim": widths[0],
    "cutoffs": cutoffs,
    "div_val": div_val,
    "tie_weights": all(shared(tables, "crit.out_layers.{}.weight")),
    "tie_projections": mapping.tie_projections(tied),
    "project_equal_width": True,
    "untie_biases": False,
    "memory_start": "masked",
    "same_length_window": "mem_len",
    "layer_norm_epsilon": 1e-5,
  }


def _settings(
  file: torch_file.TorchFile,
) -> tuple[mapping.Fields, mapping.Lengths]:
  """Fields and lengths of training, which are attributes of a module.

  Published evaluations use other lengths (docs/reproducing.md).
  """
  model = file.attributes()
  attention = ("layers", "0", "dec_attn")
  dropout = file.attributes("drop")["p"]
  attention_dropout = file.attributes(*attention, "dropatt")["p"]
  fields = {
    "cutoffs": tuple(file.attributes("crit")["cutoffs"][:-1]),
    "pre_norm": file.attributes(*attention)["pre_lnorm"],
    "dropout_rate": float(dropout),
    "attention_dropout_rate": float(attention_dropout),
  }
  return fields, mapping.Lengths(
    model["tgt_len"],
    model["mem_len"],
    clamp_len=max(model["clamp_len"], 0),
    same_length=bool(model["same_length"]),
  )


def _numbered(
  tensors: Mapping[str, np.ndarray], pattern: str
) -> list[np.ndarray]:
  """Tensors whose names are the pattern with 0, 1, ... filled in."""
  names = map(pattern.format, itertools.count())
  return [tensors[n] for n in itertools.takewhile(tensors.__contains__, names)]
