"""Speed of training, evaluation and generation by encoding, side by side.

    python -m benchmarks.encodings [--table=FILE] [--num_layers=12 ...]

Prints one JSON line for each task and encoding. The runners of a task are
compiled first and then take turns: A B C A B C. Milliseconds, of a segment or
of a generated token, are medians over the rounds, and `times_as_long` is the
median of each round's ratio to the first encoding.
"""

import json
import statistics
import time
from typing import Any

import jax
from absl import app
from absl import flags

from benchmarks import ours
from benchmarks import workload
from transformer_xl.model.encodings import table as table_lib

SIZES = workload.SMALL | {"dtype": "float32"}

# Each task and its segments in one call.
TASKS = {
  "train": (workload.TRAIN, 2),
  "evaluate": (workload.EVALUATE, 1),
  "generate": (workload.GENERATE, 16),
}


def define_flags() -> None:
  """Defines the flags of `main`."""
  workload.define_flags(SIZES)
  names = [*table_lib.ENCODINGS]
  flags.DEFINE_multi_enum("encoding", names, names, "To compare.")
  flags.DEFINE_integer("rounds", 7, "Number of rounds.")
  flags.DEFINE_string("table", None, "Markdown file to write.")


def main(argv: list[str]) -> None:
  del argv
  chosen = flags.FLAGS
  sizes = {name: chosen[name].value for name in SIZES}
  results = []
  for task in TASKS:
    found = compare(
      task, sizes, encodings=chosen.encoding, rounds=chosen.rounds
    )
    for result in found:
      print(json.dumps(result), flush=True)
    results += found
  if chosen.table:
    with open(chosen.table, "w", encoding="utf-8") as file:
      file.write(table(results))


def compare(
  task: str, sizes: dict[str, Any], *, encodings: list[str], rounds: int
) -> list[dict[str, Any]]:
  """Figures of one task, in the order of the encodings.

  Args:
    task: a name from `TASKS`.
    sizes: fields of the workload besides those of the task.
    encodings: the first is what the others are compared with.
    rounds: how often each takes its turn.
  """
  fields, count = TASKS[task]
  works = [
    workload.make(fields, sizes, {"encoding": name}) for name in encodings
  ]
  runners = [ours.make(work, count=count) for work in works]
  seconds = [
    [_seconds(runner) / count for runner in runners] for _ in range(rounds)
  ]
  results = []
  for index, (work, runner) in enumerate(zip(works, runners, strict=True)):
    own = [turn[index] for turn in seconds]
    ratio = statistics.median(turn[index] / turn[0] for turn in seconds)
    median = statistics.median(own)
    results.append(
      {
        "benchmark": "encodings",
        "task": task,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        **workload.fields(work),
        "rounds": rounds,
        "milliseconds": round(median * 1e3, 2),
        "fastest_milliseconds": round(min(own) * 1e3, 2),
        "times_as_long": round(ratio, 2),
        "tokens_per_second": round(work.tokens / median),
        "compile_seconds": round(runner.compile_seconds, 2),
        "peak_bytes": runner.peak_bytes,
      }
    )
  return results


def table(results: list[dict[str, Any]]) -> str:
  """Markdown table with a row for each encoding and columns for each task."""
  tasks = list(dict.fromkeys(result["task"] for result in results))
  header = ["encoding"]
  for task in tasks:
    header += [f"{task}, ms", "times as long"]
  rows: dict[str, list[str]] = {}
  for result in results:
    cells = rows.setdefault(result["encoding"], [result["encoding"]])
    cells += [str(result["milliseconds"]), str(result["times_as_long"])]
  lines = [header, ["---"] * len(header), *rows.values()]
  return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _seconds(runner: ours.Runner) -> float:
  start = time.perf_counter()
  runner()
  return time.perf_counter() - start


if __name__ == "__main__":
  define_flags()
  app.run(main)
