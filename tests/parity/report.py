"""Writes the table of differences in docs/measurements/parity.md.

    python -m tests.parity.report

runs every drawn model here and in HuggingFace's implementation, imports each
from the folder that `save_pretrained` writes, and replaces what is between the
two marks in the page. It needs the `parity` extra.
"""

import datetime
import importlib.metadata
import pathlib
import platform

import jax

from tests.parity import configurations
from tests.parity import differences
from tests.parity import ours
from tests.parity import theirs

PAGE = pathlib.Path(__file__).parents[2] / "docs/measurements/parity.md"
START, END = "<!-- parity: start -->", "<!-- parity: end -->"
PACKAGES = ("jax", "flax", "numpy", "torch", "transformers", "safetensors")
HEADER = """
| # | clusters, div_val | E, D | tied | u, v | norm | T | M | clamp | same | B \
| log-probs | memory | gradients |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
  text = PAGE.read_text("utf-8")
  before, rest = text.split(START)
  _, after = rest.split(END)
  parts = (f"{before}{START}", _versions(), _table(), f"{END}{after}")
  PAGE.write_text("\n\n".join(parts), "utf-8")


def _versions() -> str:
  versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
  today = datetime.date.today().isoformat()
  return (
    f"Measured on {today} with {', '.join(versions)} and Python "
    f"{platform.python_version()} on one {jax.devices()[0].platform.upper()}:"
  )


def _table() -> str:
  rows, found = [], []
  for index in range(configurations.NUM_DRAWN):
    drawn = configurations.draw(index)
    reference = theirs.run(drawn, theirs.make(drawn))
    found.append(differences.between(ours.run_drawn(index), reference))
    rows.append(_row(drawn, found[-1]))
  worst = differences.Differences(
    *(max(values) for values in zip(*found, strict=True))
  )
  summary = (
    f"Worst of {len(found)}: log-probabilities {worst.log_probs:.1e}, memories "
    f"{worst.memories:.1e} (absolute), gradients {worst.gradients:.1e} "
    "(relative)."
  )
  return "\n".join((summary, HEADER, *rows))


def _row(drawn: configurations.Drawn, found: differences.Differences) -> str:
  model = drawn.model
  tied = "tables, " if model.tie_weights else ""
  cells = (
    drawn.index,
    f"{1 + len(model.cutoffs)}, {model.div_val}",
    f"{model.embed_dim}, {model.model_dim}",
    f"{tied}{model.tie_projections.replace('_', ' ')}",
    "per layer" if model.untie_biases else "shared",
    "before" if model.pre_norm else "after",
    "-".join(str(length) for length in drawn.segment_lens),
    drawn.mem_len,
    drawn.clamp_len or "none",
    "yes" if drawn.same_length else "no",
    drawn.batch_size,
    *(f"{value:.1e}" for value in found),
  )
  return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
  main()
