"""Writes the worst differences into docs/measurements/parity.md.

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


def main() -> None:
  text = PAGE.read_text("utf-8")
  before, rest = text.split(START)
  _, after = rest.split(END)
  parts = (f"{before}{START}", _versions(), _worst(), f"{END}{after}")
  PAGE.write_text("\n\n".join(parts), "utf-8")


def _versions() -> str:
  versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
  today = datetime.date.today().isoformat()
  return (
    f"Measured on {today} with {', '.join(versions)} and Python "
    f"{platform.python_version()} on one {jax.devices()[0].platform.upper()}:"
  )


def _worst() -> str:
  found = []
  for index in range(configurations.NUM_DRAWN):
    drawn = configurations.draw(index)
    reference = theirs.run(drawn, theirs.make(drawn))
    found.append(differences.between(ours.run_drawn(index), reference))
  worst = [max(values) for values in zip(*found, strict=True)]
  log_probs, memories, gradients = worst
  return (
    f"Worst of {len(found)}: log-probabilities {log_probs:.1e}, memories "
    f"{memories:.1e} (absolute), gradients {gradients:.1e} (relative)."
  )


if __name__ == "__main__":
  main()
