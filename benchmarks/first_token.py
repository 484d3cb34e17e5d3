"""Seconds until a trained model answers in Python, as one JSON line.

    python -m benchmarks.first_token --workdir=runs/quickstart [--repeats=3]

Each repeat is two processes, of which the second finds the compiled programs of
the first in a folder of `JAX_COMPILATION_CACHE_DIR`. Medians are reported.
`first_token` is the first piece of `model.stream`, `second_prompt` that of
another prompt, for which nothing is compiled.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

import jax
from absl import app
from absl import flags

_WORKDIR = flags.DEFINE_string("workdir", None, "A run.", required=True)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Number of repeats.")
_USER = """
import json, sys, time
times = [time.perf_counter()]
def lap():
  times.append(time.perf_counter())
import transformer_xl
lap()
model = transformer_xl.load(sys.argv[1])
lap()
next(model.stream("def main(argv):", tokens_per_call=1))
lap()
next(model.stream("import os", tokens_per_call=1))
lap()
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""
_NAMES = ("import", "load", "first_token", "second_prompt")


def measure(workdir: str, cache: str) -> list[float]:
  """Seconds of each step in a new process."""
  environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache}
  printed = subprocess.check_output(
    [sys.executable, "-c", _USER, workdir], env=environment, text=True
  )
  return json.loads(printed)


def main(argv: list[str]) -> None:
  """Measures all repeats and prints the line."""
  del argv
  runs = []
  for _ in range(_REPEATS.value):
    with tempfile.TemporaryDirectory() as cache:
      runs.append([measure(_WORKDIR.value, cache) for _ in range(2)])
  result = {
    kind: {
      name: round(statistics.median(run[index][step] for run in runs), 3)
      for step, name in enumerate(_NAMES)
    }
    for index, kind in enumerate(("nothing_compiled", "compiled_before"))
  }
  device = jax.devices()[0].device_kind
  print(json.dumps({"device": device, "jax": jax.__version__} | result))


if __name__ == "__main__":
  app.run(main)
