"""The report of an import: where every tensor went."""

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
  """Returns the report that the workdir keeps as `results/import.json`.

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


def render(report: dict[str, Any]) -> str:
  """Formats the report; tensors that differ only by layer share a line."""
  groups: dict[tuple, list[int]] = {}
  for row in report["tensors"]:
    name = _LAYER.sub("*", row["name"])
    key = (name, tuple(row["shape"]), tuple(row["parameters"]))
    groups.setdefault(key, []).append(math.prod(row["shape"]))
  lines = [f"{report['format']} checkpoint"]
  lines += [
    f"  {name}  sha256 {digest}" for name, digest in report["files"].items()
  ]
  for (name, shape, parameters), sizes in groups.items():
    lines.append(
      f"  {len(sizes):3} x {name} {list(shape)} -> {', '.join(parameters)}: "
      f"{sum(sizes):,}"
    )
  vocabulary = report["vocabulary"]
  lines += [
    f"{report['num_tensors']} tensors, {report['num_parameters']:,} "
    "parameters: the sum of the tensors; none missing, none unused.",
    f"Vocabulary: {vocabulary['size']:,} {vocabulary['unit']}s.",
    f"memory_start={report['memory_start']}, same_length_window="
    f"{report['same_length_window']}, layer_norm_epsilon="
    f"{report['layer_norm_epsilon']}",
  ]
  return "\n".join(lines)
