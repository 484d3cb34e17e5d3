"""Speed of training, evaluation and generation, one JSON line each.

    python -m benchmarks.speed [--task=train] [--mem_len=512 ...]

Sizes and lengths are flags; without one, a task has those of
`workload.TASKS`. With several encodings,

    python -m benchmarks.speed --encoding=relative --encoding=rope

their runners are compiled first and then take turns: A B A B. Milliseconds, of
a segment or of a generated token, are medians over the rounds, and
`times_as_long` is the median of each round's ratio to the first encoding. MFU
is useful FLOPs over the device's peak, null if that is unknown.
"""

import dataclasses
import json
import statistics
import time
from typing import Any

import jax
from absl import app
from absl import flags

from benchmarks import ours
from benchmarks import workload
from transformer_xl import hardware
from transformer_xl.config import registry
from transformer_xl.model import network

# Segments in one call: enough that calling costs little beside them.
COUNTS = {"train": 2, "evaluate": 2, "generate": 64}


def define_flags() -> None:
  """Defines the flags of `main`."""
  tasks = [*workload.TASKS]
  flags.DEFINE_multi_enum("task", tasks, tasks, "What to time.")
  flags.DEFINE_multi_enum(
    "encoding", ["relative"], [*registry.encodings], "To compare."
  )
  for name in _sizes():
    flags.DEFINE_integer(name, None, "Instead of the task's own.")
  flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16", "auto"], "Number format."
  )
  flags.DEFINE_integer("rounds", 7, "Number of timed calls.", lower_bound=1)
  flags.DEFINE_string("table", None, "Markdown file to write.")


def main(argv: list[str]) -> None:
  del argv
  chosen = flags.FLAGS
  dtype = chosen.dtype
  if dtype == "auto":
    dtype = hardware.fast_dtype()
  changes: dict[str, Any] = {"dtype": dtype}
  changes |= {
    name: chosen[name].value
    for name in _sizes()
    if chosen[name].value is not None
  }
  results = []
  for task in chosen.task:
    work = dataclasses.replace(workload.TASKS[task], **changes)
    found = compare(work, encodings=chosen.encoding, rounds=chosen.rounds)
    for result in found:
      print(json.dumps(result), flush=True)
    results += found
  if chosen.table:
    with open(chosen.table, "w", encoding="utf-8") as file:
      file.write(table(results))


def compare(
  work: workload.Workload, *, encodings: list[str], rounds: int
) -> list[dict[str, Any]]:
  """Figures of a workload with each encoding, in their order.

  Args:
    work: its own encoding does not count.
    encodings: the first is what the others are compared with.
    rounds: how often each takes its turn.
  """
  count = COUNTS[work.task]
  works = [dataclasses.replace(work, encoding=name) for name in encodings]
  runners = [ours.make(each, count=count) for each in works]
  turns = [
    [_seconds(runner) / count for runner in runners] for _ in range(rounds)
  ]

  results = []
  for index, (work, runner) in enumerate(zip(works, runners, strict=True)):
    seconds = [turn[index] for turn in turns]
    median = statistics.median(seconds)
    tokens_per_second = work.tokens / median
    useful = network.forward_flops_per_token(
      ours.experiment(work).model,
      segment_len=work.segment_len,
      mem_len=work.mem_len,
    )
    if work.task == "train":
      useful *= 3  # The backward pass takes twice as many.
    device = jax.devices()[0].device_kind
    peak = hardware.PEAK_FLOPS.get(device)
    ratio = statistics.median(turn[index] / turn[0] for turn in turns)
    results.append(
      {
        "benchmark": "speed",
        "device": device,
        "num_devices": jax.device_count(),
        "jax": jax.__version__,
        **dataclasses.asdict(work),
        "rounds": rounds,
        "milliseconds": round(median * 1e3, 2),
        "fastest_milliseconds": round(min(seconds) * 1e3, 2),
        "times_as_long": round(ratio, 2),
        "tokens_per_second": round(tokens_per_second),
        "useful_flops_per_token": round(useful),
        "mfu": peak and tokens_per_second * useful / peak / jax.device_count(),
        "compile_seconds": round(runner.compile_seconds, 2),
        "peak_bytes": runner.peak_bytes,
      }
    )
  return results


def table(results: list[dict[str, Any]]) -> str:
  """Markdown table with a row for each encoding and columns for each task."""
  header = ["encoding"]
  for task in dict.fromkeys(result["task"] for result in results):
    header += [f"{task}, ms", "times as long"]
  rows: dict[str, list[str]] = {}
  for result in results:
    cells = rows.setdefault(result["encoding"], [result["encoding"]])
    cells += [str(result["milliseconds"]), str(result["times_as_long"])]
  lines = [header, ["---"] * len(header), *rows.values()]
  return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _sizes() -> list[str]:
  """Fields of a workload that are numbers."""
  return [
    field.name
    for field in dataclasses.fields(workload.Workload)
    if field.type is int
  ]


def _seconds(runner: ours.Runner) -> float:
  start = time.perf_counter()
  runner()
  return time.perf_counter() - start


if __name__ == "__main__":
  define_flags()
  app.run(main)
