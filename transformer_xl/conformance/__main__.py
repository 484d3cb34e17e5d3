r"""Tries a mixer or an encoding: is it right, and if not, where is it wrong?

Prints a row for each check: passed, FAILED with the smallest case and the
largest difference beside the tolerance in brackets, or not applicable with the
reason. The exit status is 0, or 1 if a check failed.

For example

    transformer-xl-conformance delta
    transformer-xl-conformance ema --extensions=my_memory.py
"""

import contextlib
import difflib
import importlib.metadata
import os
import time

from absl import flags

from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl import signals
from transformer_xl.config import extensions

_EXTENSIONS = flags.DEFINE_string(
  "extensions",
  "",
  "Files (my_memory.py) or modules that register what is tried, with commas.",
)


def main(words: list[str]) -> None:
  """Tries what is registered under the name on the command line.

  Raises:
    UserError: nothing is, or no name is given.
    WrongResultError: a check failed.
  """
  with contextlib.closing(signals.end_at_signals()):  # Imports take long.
    _compile_fast()
    from transformer_xl.config import registry
    from transformer_xl.conformance import kit

  extensions.load_installed()
  extensions.load(extensions.split(_EXTENSIONS.value))
  known = (*registry.mixers, *registry.encodings)
  names = words[1:]
  if len(names) != 1 or names[0] not in known:
    raise errors.UserError(_usage(names, known))
  start = time.perf_counter()
  rows = []
  for row in kit.rows(names[0]):
    print(kit.told(row), flush=True)
    rows.append(row)
  failed = [row.name for row in rows if row.failed]
  passed = [row for row in rows if row.outcome == kit.PASSED]
  seconds = time.perf_counter() - start
  if failed:
    raise errors.WrongResultError(
      f"{len(failed)} of {len(failed) + len(passed)} checks of {names[0]} "
      f"failed: {'; '.join(failed)}."
    )
  print(f"{names[0]} passed {len(passed)} checks in {seconds:.0f} seconds.")


def _usage(names: list[str], known: tuple[str, ...]) -> str:
  """What is wrong with the names that were given."""
  listed = ", ".join(known)
  if len(names) != 1:
    return (
      "give the name of one mixer or encoding, as in "
      f"transformer-xl-conformance {known[0]}; there are {listed}."
    )
  near = difflib.get_close_matches(names[0], known, n=1)
  hint = f"did you mean {near[0]}?" if near else f"there are {listed}."
  return (
    f"no mixer or encoding is called {names[0]!r}; {hint} "
    "--extensions=my_memory.py adds those of a file."
  )


def _compile_fast() -> None:
  """Has XLA compile fast, and a CPU count as two devices.

  Small models are compiled some hundred times and read a few tokens each.
  """
  given = os.environ.get("XLA_FLAGS", "")
  fast = ["--xla_cpu_parallel_codegen_split_count=1"]
  # Later releases have no other way of writing loops.
  if importlib.metadata.version("jaxlib").startswith("0.10."):
    fast.append("--xla_cpu_use_fusion_emitters=false")
  os.environ["XLA_FLAGS"] = " ".join([*fast, *filter(None, [given])])
  import jax

  if "xla_force_host_platform_device_count" not in given:
    jax.config.update("jax_num_cpu_devices", 2)
  if jax.devices()[0].platform == "cpu":
    jax.config.update("jax_disable_most_optimizations", True)


if __name__ == "__main__":
  command_line.run(main, takes_words=True)
