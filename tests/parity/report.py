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
import tempfile

import jax

from tests.importers import stored_files
from tests.parity import configurations
from tests.parity import differences
from tests.parity import ours
from tests.parity import theirs
from transformer_xl.importers import import_run

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
  parts = (_versions(), _table(), "The certificate of one import:", _example())
  PAGE.write_text(
    "\n\n".join((f"{before}{START}", *parts, f"{END}{after}")), "utf-8"
  )


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


def _example() -> str:
  """The certificate of the stored TensorFlow checkpoint like wt103."""
  with tempfile.TemporaryDirectory() as folder:
    made = import_run.make(
      format_name="tensorflow",
      source=str(stored_files.tensorflow("wt103")),
      workdir=f"{folder}/run",
    )
  return f"```\n{import_run.render(made)}\n```"


if __name__ == "__main__":
  main()
