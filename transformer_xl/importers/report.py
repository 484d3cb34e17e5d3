"""What became of every tensor of an imported checkpoint."""

import math
import os
import re
from collections.abc import Iterable
from typing import Any

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.importers import mapping
from transformer_xl.model import transformer_xl

_LAYER = re.compile(r"(?<=layers\.)\d+|(?<=transformer/layer_)\d+")


def make(
  rows: list[mapping.Mapped],
  params: shapes.PyTree,
  config: schema.ModelConfig,
  *,
  format_name: str,
  files: Iterable[str],
  vocabulary: dict[str, Any],
) -> dict[str, Any]:
  """The certificate, as the workdir keeps it in `results/import.json`.

  Raises:
    ValueError: the tensors' sizes do not add up to the parameters; a bug.
  """
  total = transformer_xl.num_parameters(params)
  if sum(math.prod(row.shape) for row in rows) != total:
    raise ValueError(f"the mapped tensors do not add up to {total} parameters")
  return {
    "format": format_name,
    "files": {
      os.path.basename(path): token_file.sha256(path) for path in files
    },
    "num_tensors": len(rows),
    "num_parameters": total,
    "tensors": [row._asdict() for row in rows],
    "vocabulary": vocabulary,
    "memory_start": config.memory_start,
    "same_length_window": config.same_length_window,
    "layer_norm_epsilon": config.layer_norm_epsilon,
  }


def render(certificate: dict[str, Any]) -> str:
  """Lines for people; tensors that differ by their layer share one."""
  groups: dict[tuple, list[int]] = {}
  for row in certificate["tensors"]:
    name = _LAYER.sub("*", row["name"])
    key = (name, tuple(row["shape"]), tuple(row["parameters"]))
    groups.setdefault(key, []).append(math.prod(row["shape"]))
  lines = [f"{certificate['format']} checkpoint"]
  lines += [
    f"  {name}  sha256 {digest}"
    for name, digest in certificate["files"].items()
  ]
  for (name, shape, parameters), sizes in groups.items():
    lines.append(
      f"  {len(sizes):3} x {name} {list(shape)} -> {', '.join(parameters)}: "
      f"{sum(sizes):,}"
    )
  vocabulary = certificate["vocabulary"]
  lines += [
    f"{certificate['num_tensors']} tensors, {certificate['num_parameters']:,} "
    "parameters: the sum of the tensors; none missing, none unused.",
    f"Vocabulary: {vocabulary['size']:,} {vocabulary['unit']}s.",
    f"memory_start={certificate['memory_start']}, same_length_window="
    f"{certificate['same_length_window']}, layer_norm_epsilon="
    f"{certificate['layer_norm_epsilon']}",
  ]
  return "\n".join(lines)
