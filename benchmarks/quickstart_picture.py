"""Draws the quick start: loss in training, and by length of memory.

    python -m benchmarks.quickstart_picture --workdir=runs/quickstart

reads `metrics.jsonl` and `results/eval_test.json` and writes
docs/quickstart.svg.
"""

import json
import math
import pathlib

import matplotlib
from absl import flags
from matplotlib import pyplot

from transformer_xl import command_line

_WORKDIR = flags.DEFINE_string(
  "workdir", "runs/quickstart", "Folder of the run."
)
_OUTPUT = flags.DEFINE_string("output", "docs/quickstart.svg", "The picture.")


def main(argv: list[str]) -> None:
  """Reads the run and writes the picture."""
  del argv
  run = pathlib.Path(_WORKDIR.value)
  lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
  log = [line for line in map(json.loads, lines) if "loss" in line]
  result = json.loads((run / "results" / "eval_test.json").read_text("utf-8"))
  matplotlib.use("Agg")
  # Text stays text, and the same run gives the same file.
  matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "0"})
  figure, (left, right) = pyplot.subplots(
    1, 2, sharey=True, figsize=(8, 3), layout="constrained"
  )
  draw_training(left, log)
  draw_memory(right, result["cards"])
  figure.savefig(_OUTPUT.value, metadata={"Date": None})


def draw_training(axes, log: list[dict]) -> None:
  """Bits per byte of the training text, by the tokens read."""
  tokens = [line["tokens"] / 1e6 for line in log]
  axes.plot(tokens, [line["loss"] / math.log(2) for line in log])
  axes.set(xlabel="million bytes read", ylabel="bits per byte", ylim=(1.5, 4))
  axes.set_title("training", fontsize=10)


def draw_memory(axes, cards: list[dict]) -> None:
  """Bits per byte of the test files, by the length of the memory."""
  bits = [card["bits_per_character"] for card in cards]
  axes.bar([str(card["mem_len"]) for card in cards], bits, width=0.6)
  axes.bar_label(axes.containers[0], fmt="%.3f", fontsize=9)
  axes.set(xlabel="memory in bytes")
  axes.set_title("held-out files, after training", fontsize=10)


if __name__ == "__main__":
  command_line.run(main)
