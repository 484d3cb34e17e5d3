"""One side of `side_by_side`, in its own process.

Prints a JSON line when it is ready. Then, for every line on standard input, it
runs its segments and prints their time and memory. An older version answers the
same flags and lines, so changing them ends comparisons with it.
"""

import json
import os
import resource
import sys
import time
from typing import Any

from absl import app
from absl import flags

from benchmarks import workload
from transformer_xl import command_line

_WHO = flags.DEFINE_enum(
  "who",
  None,
  ["ours", "huggingface", "original", "nanogpt"],
  "Implementation to run.",
)
_WORK = flags.DEFINE_string("work", "{}", "The workload, as JSON.")
_COUNT = flags.DEFINE_integer("count", 1, "Segments per call.")
_CORES = flags.DEFINE_list("cores", ["0", "1"], "Cores to run on.")
_FOLDER = flags.DEFINE_string("folder", None, "Checkout of a peer's code.")
_PLATFORM = flags.DEFINE_enum(
  "platform", "cpu", ["cpu", "cuda"], "What to run on."
)
_COMPILED = flags.DEFINE_bool("compiled", False, "Whether PyTorch compiles.")


def main(argv: list[str]) -> None:
  del argv
  if _WHO.value == "ours":
    command_line.use_huge_pages()  # As our commands do.
  # Must precede the threads that the libraries start.
  os.sched_setaffinity(0, map(int, _CORES.value))
  work = workload.Workload(**json.loads(_WORK.value))

  # Imports JAX or PyTorch, never both.
  runner: Any
  if _WHO.value == "ours":
    from benchmarks import ours as side

    runner = side.make(work, count=_COUNT.value)
  else:
    import torch

    from benchmarks import peers as side

    torch.set_num_threads(len(_CORES.value))
    runner = side.make(
      _WHO.value,
      work,
      count=_COUNT.value,
      folder=_FOLDER.value,
      device=_PLATFORM.value,
      is_compiled=_COMPILED.value,
    )
  ready = {
    "compile_seconds": runner.compile_seconds,
    "planned_bytes": runner.peak_bytes,
  }
  print(json.dumps(ready), flush=True)

  for _ in sys.stdin:
    start = time.perf_counter()
    cpu_start = time.process_time()
    loss = runner()
    seconds = time.perf_counter() - start
    cpu_seconds = time.process_time() - cpu_start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    turn = {
      "seconds": seconds / _COUNT.value,
      "cpu_seconds": cpu_seconds / _COUNT.value,
      "loss": loss,
      "resident_bytes": 1024 * usage.ru_maxrss,
      "device_bytes": side.device_bytes(),
    }
    print(json.dumps(turn), flush=True)


if __name__ == "__main__":
  app.run(main)
