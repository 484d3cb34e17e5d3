"""Checkpoints of the original PyTorch code: model.pt or its state dict.

The format is described in docs/specification.md, section 21.2. Names and shapes
of tensors determine most of a model's configuration. The rest is in the
attributes of a pickled module; for a state dict the caller gives it.
"""

import itertools
import os
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.formats import torch_file
from transformer_xl.importers import mapping
from transformer_xl.importers import source
from transformer_xl.importers import torch_layout

VOCABULARIES = ("cache.pt", "vocab.pkl", "vocab.bin", "vocab.txt")
PARALLEL = "module."  # Prefix added by torch.nn.DataParallel.


def read(
  path: str, *, cutoffs: tuple[int, ...], pre_norm: bool
) -> source.Source:
  """Reads model.pt, a state dict, or a folder with model.pt.

  Args:
    path: of the file or folder.
    cutoffs: of a state dict with div_val=1; otherwise read from the file.
    pre_norm: of a state dict; a module states it.

  Raises:
    UserError: the file is missing or damaged, or the model is of another kind.
  """
  if os.path.isdir(path):
    path = os.path.join(path, "model.pt")
  file = torch_file.read(path)
  tensors = {
    name.removeprefix(PARALLEL): values
    for name, values in file.tensors().items()
  }
  try:
    given: dict[str, Any] = {"cutoffs": cutoffs, "pre_norm": pre_norm}
    lengths = None
    if file.attributes():
      given, lengths = _attributes(file), _lengths(file)
    fields = given | _model(tensors, path, given["cutoffs"])
  except LookupError as error:
    raise errors.UserError(
      f"{path} is not a language model of the original code with relative "
      f"attention (attn_type 0): {error} is missing; check --format."
    ) from None
  return source.Source(
    tensors=tensors,
    files=(path,),
    model=fields,
    lengths=lengths,
    vocabulary=source.find(os.path.dirname(path), VOCABULARIES),
  )


def layout(config: schema.ModelConfig) -> Iterator[mapping.Tensor]:
  """Lists the tensors of a language model; its head reverses the clusters."""
  return torch_layout.layout(config, prefix="", reverse_clusters=True)


def _model(
  tensors: Mapping[str, NDArray[Any]], path: str, cutoffs: tuple[int, ...]
) -> dict[str, Any]:
  """Fields of our `ModelConfig`, from names, shapes and shared values."""
  num_heads, head_dim = tensors["r_w_bias"].shape
  model_dim = tensors["layers.0.dec_attn.qkv_net.weight"].shape[1]
  tables = _numbered(tensors, "word_emb.emb_layers.{}.weight")
  projections = _numbered(tensors, "word_emb.emb_projs.{}")
  widths = [table.shape[1] for table in tables]
  sizes = [len(table) for table in tables]
  if len(tables) > 1:
    cutoffs = tuple(itertools.accumulate(sizes))[:-1]
  div_val = source.div_val(widths)
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
    "tie_weights": all(
      np.array_equal(table, tensors[f"crit.out_layers.{index}.weight"])
      for index, table in enumerate(tables)
    ),
    "tie_projections": _tie_projections(tensors, projections, num_tails),
    "project_equal_width": True,
    "untie_biases": False,
    "memory_start": "masked",
    "same_length_window": "mem_len",
    "layer_norm_epsilon": 1e-5,
    "init_style": "pytorch",
  }


def _tie_projections(tensors, projections, num_tails: int) -> str:
  if not projections:
    return "all_but_first"
  shared = itertools.cycle(projections)  # A single one if div_val is 1.
  return source.tie_projections(
    [
      np.array_equal(projection, tensors[f"crit.out_projs.{index}"])
      for index, projection in zip(range(num_tails + 1), shared, strict=False)
    ]
  )


def _attributes(file: torch_file.TorchFile) -> dict[str, Any]:
  """Settings that are attributes of a pickled module."""
  attention = ("layers", "0", "dec_attn")
  return {
    "cutoffs": tuple(file.attributes("crit")["cutoffs"][:-1]),
    "pre_norm": file.attributes(*attention)["pre_lnorm"],
    "dropout_rate": float(file.attributes("drop")["p"]),
    "attention_dropout_rate": float(
      file.attributes(*attention, "dropatt")["p"]
    ),
  }


def _lengths(file: torch_file.TorchFile) -> source.Lengths:
  """Lengths of training; published evaluations use others.

  These are listed in docs/specification.md, section 19.3.
  """
  attributes = file.attributes()
  return source.Lengths(
    segment_len=attributes["tgt_len"],
    mem_len=attributes["mem_len"],
    clamp_len=max(attributes["clamp_len"], 0),
    same_length=bool(attributes["same_length"]),
  )


def _numbered(
  tensors: Mapping[str, NDArray[Any]], pattern: str
) -> list[NDArray[Any]]:
  """Tensors whose names are the pattern with 0, 1, ... filled in."""
  names = itertools.takewhile(
    tensors.__contains__, map(pattern.format, itertools.count())
  )
  return [tensors[name] for name in names]
