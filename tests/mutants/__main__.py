"""Shows which mistakes in the package the tests would not see: `make mutants`.

python -m tests.mutants [--modules=model/ring,data/streams] [--sample=8]
  [--seed=0] [--only=PART_OF_A_NAME]

Makes a small mistake in a module, such as `<` for `<=`, runs the tests of that
module and sees whether one fails. Prints a table with a row for each module,
and the mistakes that no test saw. A sample of 0 is all of them.
"""

import argparse
import importlib
import pathlib
import random
import sys
import time

# First, as it has the settings with which all tests import JAX.
from tests import conftest  # noqa: F401  # isort: skip
import jax

from tests.mutants import mutations
from tests.mutants import table
from tests.mutants import trial

_ROOT = pathlib.Path(__file__).parents[2]
# Imported once, before the forks.
_LIBRARIES = ("beartype", "flax.linen", "optax", "orbax.checkpoint")
_KEEPS_FROM = "jax_persistent_cache_min_compile_time_secs"


def main() -> None:
  """Tries a sample of mutants of each module."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--modules", default="", help="as data/streams; all")
  parser.add_argument("--sample", type=int, default=8, help="of each module")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--only", default="", help="as streams.py:12")
  options = parser.parse_args()
  for library in _LIBRARIES:
    importlib.import_module(library)
  print("| module | mutants | killed | of them by time | survived |")
  print("|---|---|---|---|---|")
  totals = [0, 0, 0, 0]
  survivors = []
  modules = options.modules.split(",") if options.modules else list(table.TESTS)
  for module in modules:
    if module not in table.TESTS:
      parser.error(f"{module} is not one of {', '.join(table.TESTS)}.")
    path = _ROOT / "transformer_xl" / f"{module}.py"
    names = {
      f"{module}.py:{mutant.name}": mutant
      for mutant in mutations.mutants(path.read_text("utf-8"))
    }
    chosen = [name for name in names if options.only in name]
    if options.sample and not options.only:
      generator = random.Random(f"{options.seed} {module}")
      chosen = generator.sample(chosen, min(options.sample, len(chosen)))
    # What mutants compile is of no use to anyone, so it is not kept.
    jax.config.update(_KEEPS_FROM, 0.0)
    sound = trial.run(table.TESTS[module])
    jax.config.update(_KEEPS_FROM, 1e9)
    if sound.status != "passed":
      sys.exit(f"The tests of {module} fail without a mutant:\n{sound.output}")
    counts = {"passed": 0, "failed": 0, "timeout": 0}
    for name in chosen:
      outcome = trial.run(
        table.TESTS[module],
        replaced=path,
        source=names[name].source,
        # What is compiled comes from a cache in the sound run only.
        seconds=30 + 10 * round(sound.seconds),
      )
      counts[outcome.status] += 1
      if outcome.status == "passed":
        survivors.append(name)
      print(
        f"{time.strftime('%H:%M:%S')} {outcome.seconds:4.0f} s "
        f"{outcome.status}: {name}",
        file=sys.stderr,
        flush=True,
      )
    killed = counts["failed"] + counts["timeout"]
    row = [len(chosen), killed, counts["timeout"], counts["passed"]]
    totals = [a + b for a, b in zip(totals, row, strict=True)]
    cells = " | ".join(str(number) for number in row)
    print(f"| `{module}` | {cells} |", flush=True)
  print(f"| **all** | {' | '.join(str(number) for number in totals)} |\n")
  for name in survivors:
    print(f"- `{name}`")


if __name__ == "__main__":
  main()
