"""Draws docs/quickstart.svg, the picture of the README, from a finished run.

    make quickstart
    python -m benchmarks.quickstart_picture --workdir=runs/quickstart

The same run gives the same file.
"""

import json
import math
import pathlib

import matplotlib
from absl import app
from absl import flags

from transformer_xl.analysis import plotting
from transformer_xl.workdir import metrics_log

_WORKDIR = flags.DEFINE_string("workdir", "runs/quickstart", "A finished run.")
_FILE = flags.DEFINE_string("file", "docs/quickstart.svg", "What to write.")
_LEAST, _MOST = 1.5, 4.0  # Bits per byte in the picture.


@matplotlib.rc_context({"svg.hashsalt": "quickstart"})  # The same file again.
@plotting.in_style
def main(argv: list[str]) -> None:
  del argv
  folder = pathlib.Path(_WORKDIR.value)
  lines = metrics_log.read_lines(folder / "metrics.jsonl")
  training = [line for line in lines if "loss" in line]
  found = (folder / "results" / "eval_test.json").read_text("utf-8")
  cards = json.loads(found)["cards"]

  figure, (left, right) = plotting.subplots(1, 2, figsize=(8, 3), sharey=True)
  left.plot(
    [line["tokens"] / 1e6 for line in training],
    [line["loss"] / math.log(2) for line in training],
  )
  left.set_title("training")
  left.set_xlabel("million bytes read")
  left.set_ylabel("bits per byte")
  left.set_ylim(_LEAST, _MOST)
  bars = right.bar(
    range(len(cards)), [card["bits_per_byte"] for card in cards], width=0.6
  )
  right.set_xticks(range(len(cards)), [card["mem_len"] for card in cards])
  right.bar_label(bars, fmt="%.3f")
  right.set_title("held-out files, after training")
  right.set_xlabel("memory in bytes")
  right.grid(visible=False, axis="x")
  figure.savefig(_FILE.value, metadata={"Date": None})


if __name__ == "__main__":
  app.run(main)
