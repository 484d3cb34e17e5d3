r"""This package, HuggingFace and the original PyTorch code, side by side.

    python -m benchmarks.side_by_side --original=transformer-xl \
      --table=docs/measurements/side_by_side.md

Each side is a process on the same cores, and they run alternately: A B C A B C.
Wall and CPU times are medians over the rounds; ratios are medians of the ratios
of each round. Needs the `parity` extra. The original code takes part if its
checkout is given: https://github.com/kimiyoung/transformer-xl. With
--before=CHECKOUT, an older checkout of this repository, the two versions are
compared instead, in float32. Ours otherwise computes in what `model.dtype=auto`
takes on this machine, unless --dtype says what.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from absl import app
from absl import flags

from benchmarks import workload
from transformer_xl import hardware

_ORIGINAL = flags.DEFINE_string("original", None, "Checkout of the original.")
_BEFORE = flags.DEFINE_string("before", None, "Older checkout, to compare.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Number of rounds.")
_CORES = flags.DEFINE_list("cores", ["0", "1"], "Cores to run on.")
_DTYPE = flags.DEFINE_string(
  "dtype", None, "Number format of our side; float32 with --before, else auto."
)
_TABLE = flags.DEFINE_string("table", None, "Markdown file to write.")
_CASES = flags.DEFINE_list("cases", [], "Names from CASES; all if empty.")


def _cases():
  """Each workload, and its segments per round."""
  make, small, large = workload.make, workload.SMALL, workload.LARGE
  train, evaluate = workload.TRAIN, workload.EVALUATE
  short, one = {"mem_len": 128}, {"batch_size": 1}
  four = {"batch_size": 4}
  return {
    "train_small": (make(train, small), 2),
    "eval_small": (make(evaluate, small, short), 4),
    "eval_small_1600_b1": (make(evaluate, small, one), 4),
    "eval_small_1600_b8": (make(evaluate, small), 1),
    "generate_small": (make(workload.GENERATE, small), 16),
    "generate_large": (make(workload.GENERATE, large), 4),
    "eval_large_1600_b1": (make(evaluate, large, one), 1),
    "train_large": (make(train, large, four), 1),
    "eval_large": (make(evaluate, large, short, four), 2),
    "eval_large_1600_b8": (make(evaluate, large), 1),
  }


CASES = _cases()


def main(argv: list[str]) -> None:
  del argv
  results = []
  for name in _CASES.value or CASES:
    results.append(compare(name))
    print(json.dumps(results[-1]), flush=True)
    if _TABLE.value:  # After every case, in case the run is stopped.
      with open(_TABLE.value, "w", encoding="utf-8") as file:
        file.write(table(results))


def table(results: list[dict[str, Any]]) -> str:
  """Markdown table: milliseconds per segment and speed-up, wall and CPU."""
  lines = [
    "| case | layers, width, memory, batch | side | wall ms | CPU ms "
    "| ours faster, wall | CPU |",
    "|---|---|---|---|---|---|---|",
  ]
  for result in results:
    sizes = ("num_layers", "model_dim", "mem_len", "batch_size")
    size = ", ".join(str(result[name]) for name in sizes)
    for who, side in result["sides"].items():
      faster = result["times_faster_than"]
      ratios = [faster[kind].get(who, "") for kind in faster]
      figures = [side["milliseconds"], side["cpu_milliseconds"], *ratios]
      name = f"{who}, {side['dtype']}"
      cells = [result["case"], size, name, *figures]
      lines.append("| " + " | ".join(map(str, cells)) + " |")
  return "\n".join(lines) + "\n"


def compare(name: str) -> dict[str, Any]:
  """Runs one case and returns its figures."""
  work, count = CASES[name]
  if _BEFORE.value:
    names = ["ours", "before"]
  else:
    names = ["ours", "huggingface"] + ["original"] * bool(_ORIGINAL.value)
  sides = {who: _Side(who, work, count) for who in names}
  rounds = [
    {who: side.take_turn() for who, side in sides.items()}
    for _ in range(_ROUNDS.value)
  ]
  for side in sides.values():
    side.close()
  return {
    "benchmark": "side_by_side",
    "case": name,
    **dataclasses.asdict(work),
    "cores": len(_CORES.value),
    "rounds": _ROUNDS.value,
    "sides": {
      who: {"dtype": sides[who].dtype}
      | _summary([each[who] for each in rounds], sides[who].ready)
      for who in names
    },
    "times_faster_than": {
      kind: {who: _ratio(rounds, who, kind) for who in names if who != "ours"}
      for kind in ("seconds", "cpu_seconds")
    },
  }


class _Side:
  """The process of one side."""

  def __init__(self, who, work, count):
    self.dtype = work.dtype
    if who in ("ours", "before"):  # PyTorch computes in float32 by default.
      usual = "float32" if _BEFORE.value else "auto"
      self.dtype = _DTYPE.value or usual
      if self.dtype == "auto":
        self.dtype = hardware.fast_dtype()
    work = dataclasses.replace(work, dtype=self.dtype)
    command = [
      *(sys.executable, "-m", "benchmarks.contestant"),
      f"--who={'ours' if who == 'before' else who}",
      f"--work={json.dumps(workload.changed(work))}",
      f"--count={count}",
      f"--cores={','.join(_CORES.value)}",
    ]
    if _ORIGINAL.value:
      command.append(f"--original={_ORIGINAL.value}")
    self._process = subprocess.Popen(
      command,
      cwd=_BEFORE.value if who == "before" else None,
      env=os.environ | {"JAX_PLATFORMS": "cpu"},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    self.ready = self._read()

  def take_turn(self) -> dict[str, Any]:
    self._process.stdin.write("\n")
    self._process.stdin.flush()
    return self._read()

  def close(self) -> None:
    self._process.stdin.close()
    self._process.wait()

  def _read(self):
    line = self._process.stdout.readline()
    if not line:
      raise RuntimeError(f"stopped: {' '.join(self._process.args)}")
    return json.loads(line)


def _summary(turns, ready):
  median = {
    kind: statistics.median(turn[kind] for turn in turns)
    for kind in ("seconds", "cpu_seconds")
  }
  return {
    "milliseconds": round(median["seconds"] * 1e3, 2),
    "fastest_milliseconds": round(
      min(turn["seconds"] for turn in turns) * 1e3, 2
    ),
    "cpu_milliseconds": round(median["cpu_seconds"] * 1e3, 2),
    "compile_seconds": round(ready["compile_seconds"], 2),
    "peak_resident_megabytes": round(turns[-1]["resident_bytes"] / 1e6),
  }


def _ratio(rounds, who, kind):
  ratios = [each[who][kind] / each["ours"][kind] for each in rounds]
  return round(statistics.median(ratios), 2)


if __name__ == "__main__":
  app.run(main)
