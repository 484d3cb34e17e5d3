r"""This package beside an older version of it, or beside PyTorch.

    python -m benchmarks.side_by_side --before=HEAD~10

compares the checkout with a commit, tag or branch of its repository, both in
float32. Without --before, it is compared with HuggingFace's model and, if a
checkout of https://github.com/kimiyoung/transformer-xl is given, with the
original PyTorch code. That needs the `parity` extra:

    .venv-parity/bin/python -m benchmarks.side_by_side \
      --original=transformer-xl --table=side_by_side.md

Ours then computes in what `model.dtype=auto` takes on this machine.

Each side is a process on the same cores, and they take turns: A B, B A, A B.
Wall and CPU times are medians over the rounds. Ratios are taken in each round;
their median is given, and the quartiles, between which half of the rounds lie.
"""

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from absl import flags

from benchmarks import workload
from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl import hardware

ROOT = pathlib.Path(__file__).parents[1]
TRAIN = workload.TASKS["train"]
EVALUATE = workload.TASKS["evaluate"]
GENERATE = workload.TASKS["generate"]
_change = dataclasses.replace
# Each workload, and its segments in a turn.
CASES = {
  "train_small": (TRAIN, 2),
  "train_large": (_change(TRAIN, batch_size=4, **workload.LARGE), 1),
  "eval_small": (_change(EVALUATE, mem_len=128), 4),
  "eval_small_1600_b1": (_change(EVALUATE, batch_size=1), 4),
  "eval_small_1600_b8": (EVALUATE, 1),
  "eval_large": (
    _change(EVALUATE, mem_len=128, batch_size=4, **workload.LARGE),
    2,
  ),
  "eval_large_1600_b1": (_change(EVALUATE, batch_size=1, **workload.LARGE), 1),
  "generate_small": (GENERATE, 64),
  "generate_large": (_change(GENERATE, **workload.LARGE), 16),
}
KINDS = ("seconds", "cpu_seconds")


def define_flags() -> None:
  """Defines the flags of `main`."""
  flags.DEFINE_string("original", None, "Checkout of the original.")
  flags.DEFINE_string("before", None, "Commit, tag or branch to compare with.")
  flags.DEFINE_integer("rounds", 7, "Number of rounds.", lower_bound=2)
  flags.DEFINE_list("cores", ["0", "1"], "Cores to run on.")
  flags.DEFINE_string(
    "dtype",
    None,
    "Number format of our sides; float32 with --before, else auto.",
  )
  flags.DEFINE_string("table", None, "Markdown file to write.")
  flags.DEFINE_multi_enum("case", [*CASES], [*CASES], "To compare.")


def main(argv: list[str]) -> None:
  del argv
  chosen = flags.FLAGS
  with tempfile.TemporaryDirectory() as folder:
    if chosen.before:
      check_out(chosen.before, folder)
      folders = {"ours": str(ROOT), "before": folder}
    else:
      folders = {"ours": str(ROOT), "huggingface": str(ROOT)}
      if chosen.original:
        folders["original"] = str(ROOT)

    results = []
    for name in chosen.case:
      results.append(compare(name, folders))
      print(json.dumps(results[-1]), flush=True)
      if chosen.table:  # After every case, in case the run is stopped.
        pathlib.Path(chosen.table).write_text(table(results), "utf-8")


def check_out(revision: str, folder: str) -> None:
  """Writes the files of a revision into a folder.

  Raises:
    UserError: the repository has no such revision.
  """
  command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision]
  found = subprocess.run(command, capture_output=True)
  if found.returncode:
    raise errors.UserError(
      f"--before={revision} is no commit, tag or branch of {ROOT}: "
      f"{found.stderr.decode().strip()}"
    )
  # The module tarfile extracts safely from Python 3.11.4 on.
  subprocess.run(["tar", "-x", "-C", folder], input=found.stdout, check=True)


def compare(case: str, folders: dict[str, str]) -> dict[str, Any]:
  """Runs one case and returns its figures.

  Args:
    case: a name from `CASES`.
    folders: of each side the checkout that it runs in, ours first.
  """
  chosen = flags.FLAGS
  work, count = CASES[case]
  sides = {who: _Side(who, folders[who], work, count) for who in folders}
  rounds = []
  for index in range(chosen.rounds):
    order = [*sides] if index % 2 == 0 else [*reversed(sides)]
    rounds.append({who: sides[who].take_turn() for who in order})
  for side in sides.values():
    side.close()

  figures = {}
  for who, side in sides.items():
    turns = [each[who] for each in rounds]
    medians = {
      kind: statistics.median(turn[kind] for turn in turns) for kind in KINDS
    }
    figures[who] = {
      "dtype": side.dtype,
      "milliseconds": round(medians["seconds"] * 1e3, 2),
      "cpu_milliseconds": round(medians["cpu_seconds"] * 1e3, 2),
      "compile_seconds": round(side.ready["compile_seconds"], 2),
      "peak_resident_megabytes": round(turns[-1]["resident_bytes"] / 1e6),
    }
    if who != "ours":
      figures[who]["times_as_long_as_ours"] = {
        kind: _ratio([each[who][kind] / each["ours"][kind] for each in rounds])
        for kind in KINDS
      }
  return {
    "benchmark": "side_by_side",
    "case": case,
    **dataclasses.asdict(work),
    "cores": len(chosen.cores),
    "rounds": chosen.rounds,
    "sides": figures,
  }


def table(results: list[dict[str, Any]]) -> str:
  """Markdown table: milliseconds per segment and ratios, wall and CPU."""
  lines = [
    "| case | layers, width, memory, batch | side | wall ms | CPU ms "
    "| times as long as ours, wall | CPU |",
    "|---|---|---|---|---|---|---|",
  ]
  for result in results:
    sizes = ("num_layers", "model_dim", "mem_len", "batch_size")
    size = ", ".join(str(result[name]) for name in sizes)
    for who, side in result["sides"].items():
      cells = [result["case"], size, f"{who}, {side['dtype']}"]
      cells += [str(side["milliseconds"]), str(side["cpu_milliseconds"])]
      ratios = side.get("times_as_long_as_ours", {})
      for kind in KINDS:
        cell = ""
        if kind in ratios:
          cell = "{median} ({lower} to {upper})".format(**ratios[kind])
        cells.append(cell)
      lines.append("| " + " | ".join(cells) + " |")
  return "\n".join(lines) + "\n"


class _Side:
  """The process of one side."""

  def __init__(
    self, who: str, folder: str, work: workload.Workload, count: int
  ):
    chosen = flags.FLAGS
    is_our_code = who in ("ours", "before")
    self.dtype = work.dtype  # PyTorch computes in float32 by default.
    if is_our_code:
      usual = "float32" if chosen.before else "auto"
      self.dtype = chosen.dtype or usual
      if self.dtype == "auto":
        self.dtype = hardware.fast_dtype()
    fields = dataclasses.asdict(work) | {"dtype": self.dtype}
    self._command = [
      sys.executable,
      "-m",
      "benchmarks.contestant",
      f"--who={'ours' if is_our_code else who}",
      f"--work={json.dumps(fields)}",
      f"--count={count}",
      f"--cores={','.join(chosen.cores)}",
    ]
    if chosen.original:
      self._command.append(f"--original={os.path.abspath(chosen.original)}")
    self._process = subprocess.Popen(
      self._command,
      cwd=folder,
      env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": folder},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    self.ready = self._read()

  def take_turn(self) -> dict[str, Any]:
    assert self._process.stdin
    self._process.stdin.write("\n")
    self._process.stdin.flush()
    return self._read()

  def close(self) -> None:
    assert self._process.stdin
    self._process.stdin.close()
    self._process.wait()

  def _read(self) -> dict[str, Any]:
    assert self._process.stdout
    line = self._process.stdout.readline()
    if not line:
      raise RuntimeError(f"stopped: {' '.join(self._command)}")
    return json.loads(line)


def _ratio(ratios: list[float]) -> dict[str, float]:
  """Median and quartiles of one ratio a round."""
  lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
  return {
    "median": round(median, 3),
    "lower": round(lower, 3),
    "upper": round(upper, 3),
  }


if __name__ == "__main__":
  define_flags()
  command_line.run(main)
