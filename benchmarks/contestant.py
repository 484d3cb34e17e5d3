"""One side of `side_by_side`, in its own process.

Prints a JSON line when it is ready. Then, for every line on standard input, it
runs its segments and prints their time and memory.
"""

import json
import os
import resource
import sys
import time

from absl import app
from absl import flags

from benchmarks import workload
from transformer_xl import command_line

_WHO = flags.DEFINE_enum(
  "who", None, ["ours", "huggingface", "original"], "Implementation to run."
)
_WORK = flags.DEFINE_string("work", None, "The workload, as JSON.")
_COUNT = flags.DEFINE_integer("count", 1, "Segments per call.")
_CORES = flags.DEFINE_list("cores", ["0", "1"], "Cores to run on.")
_ORIGINAL = flags.DEFINE_string("original", None, "Checkout of the original.")


def main(argv: list[str]) -> None:
  del argv
  if _WHO.value == "ours":
    command_line.use_huge_pages()  # As our commands do.
  # Must precede the threads that the libraries start.
  os.sched_setaffinity(0, map(int, _CORES.value))
  work = workload.make(json.loads(_WORK.value))
  runner = _runner(work)
  _print(
    {
      "compile_seconds": runner.compile_seconds,
      "planned_bytes": runner.peak_bytes,
    }
  )
  for _ in sys.stdin:
    start, cpu_start = time.perf_counter(), time.process_time()
    loss = runner()
    _print(
      {
        "seconds": (time.perf_counter() - start) / _COUNT.value,
        "cpu_seconds": (time.process_time() - cpu_start) / _COUNT.value,
        "loss": loss,
        "resident_bytes": 1024
        * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
      }
    )


def _runner(work):
  """The runner of this side; imports JAX or PyTorch, never both."""
  if _WHO.value == "ours":
    from benchmarks import ours

    return ours.make(work, count=_COUNT.value)
  import torch

  from benchmarks import peers

  torch.set_num_threads(len(_CORES.value))
  original = _ORIGINAL.value if _WHO.value == "original" else None
  return peers.make(work, count=_COUNT.value, original=original)


def _print(values: dict) -> None:
  print(json.dumps(values), flush=True)


if __name__ == "__main__":
  app.run(main)
