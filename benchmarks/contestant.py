"""One side of `side_by_side`, in a process of its own.

Prints one JSON line when it is ready; then, for each line that it is sent, runs
its segments and prints what they took.
"""

import json
import os
import resource
import sys
import time

from absl import app
from absl import flags

from benchmarks import workload

_WHO = flags.DEFINE_enum(
  "who", None, ["ours", "huggingface", "original"], "Which side."
)
_WORK = flags.DEFINE_string("work", None, "The workload, as JSON.")
_COUNT = flags.DEFINE_integer("count", 1, "Segments in a call.")
_CORES = flags.DEFINE_list("cores", ["0", "1"], "Cores to run on.")
_ORIGINAL = flags.DEFINE_string("original", None, "Checkout of the original.")


def main(argv: list[str]) -> None:
  del argv
  # Before the libraries start their threads.
  os.sched_setaffinity(0, map(int, _CORES.value))
  work = workload.make(json.loads(_WORK.value))
  runner = _runner(work)
  _say(
    {
      "compile_seconds": runner.compile_seconds,
      "planned_bytes": runner.peak_bytes,
    }
  )
  for _ in sys.stdin:
    start, cpu_start = time.perf_counter(), time.process_time()
    loss = runner()
    _say(
      {
        "seconds": (time.perf_counter() - start) / _COUNT.value,
        "cpu_seconds": (time.process_time() - cpu_start) / _COUNT.value,
        "loss": loss,
        "resident_bytes": 1024
        * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
      }
    )


def _runner(work):
  """Imports JAX or PyTorch, never both."""
  if _WHO.value == "ours":
    from benchmarks import ours

    return ours.make(work, count=_COUNT.value)
  import torch

  from benchmarks import peers

  torch.set_num_threads(len(_CORES.value))
  original = _ORIGINAL.value if _WHO.value == "original" else None
  return peers.make(work, count=_COUNT.value, original=original)


def _say(values: dict) -> None:
  print(json.dumps(values), flush=True)


if __name__ == "__main__":
  app.run(main)
