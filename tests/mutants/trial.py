"""Runs tests on a package that has a mistake.

Each run is a fork of a process that has imported JAX and the other libraries,
but nothing that may be mutated, so that it starts at once. The working tree
stays as it is: the mutant's source takes the place of the module's while it is
imported.
"""

import importlib.machinery
import os
import pathlib
import resource
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

import pytest

_MEMORY = 8 << 30  # Bytes that a mutant may take.
_OPTIONS = (
  *("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"),
  # The libraries are already imported, which is a warning where assertions are
  # rewritten.
  *("--assert=plain", "--durations=0"),
  # `_Chosen` has its own rule for those that `make test` leaves out.
  *("-m", "not (faults or combinations)"),
)


class Outcome(NamedTuple):
  """What came of one run of the tests."""

  status: str  # "passed", "failed" or "timeout".
  seconds: float  # CPU time.
  output: str


class _Chosen:
  """A pytest plugin that keeps the tests that are named, in this order.

  A name is the beginning of an identifier, as
  `tests/data/test_streams.py::test_lanes`. Tests of the rest are kept if their
  whole function is named. Every name must keep some.
  """

  def __init__(self, names: Sequence[str]):
    self._names = names

  def pytest_configure(self, config: pytest.Config) -> None:
    config.option.whole = True  # All parameters of tests marked `some`.

  @pytest.hookimpl(trylast=True)
  def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
    chosen: dict[pytest.Item, None] = {}
    for name in self._names:
      function = name.partition("[")[0]
      tried = [
        item
        for item in items
        if item.nodeid.startswith(name)
        and (
          item.nodeid.partition("[")[0] == function
          or not item.get_closest_marker("rest")
        )
      ]
      if not tried:
        raise pytest.UsageError(f"No test is tried for the name {name}.")
      chosen.update(dict.fromkeys(tried))
    items[:] = chosen


def run(
  names: Sequence[str],
  *,
  replaced: pathlib.Path | None = None,
  source: str = "",
  seconds: int = 3600,
) -> Outcome:
  """Runs tests in a fork of this process until one fails.

  Args:
    names: of the tests, or how these begin, in the order to run them in.
    replaced: the file of a module in place of which `source` is imported.
    source: of the mutant.
    seconds: of CPU that the tests may take.
  """
  files = list(dict.fromkeys(name.partition("::")[0] for name in names))
  output, output_end = os.pipe()
  child = os.fork()
  if child == 0:
    os.dup2(output_end, 1)
    os.dup2(output_end, 2)
    os.close(output)
    status = 1
    try:
      resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
      resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
      signal.alarm(20 * seconds)  # If it waits forever, or others work, too.
      if replaced is not None:
        _replace(replaced, source)
      status = int(pytest.main([*_OPTIONS, *files], plugins=[_Chosen(names)]))
      sys.stdout.flush()
      sys.stderr.flush()
    finally:
      os._exit(status)
  os.close(output_end)
  with os.fdopen(output, errors="replace") as stream:
    text = stream.read()
  _, status, used = os.wait4(child, 0)
  code = os.waitstatus_to_exitcode(status)
  stopped = code in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL)
  result = "timeout" if stopped else "failed" if code else "passed"
  return Outcome(result, used.ru_utime + used.ru_stime, text)


def _replace(path: pathlib.Path, source: str) -> None:
  """Makes imports of a file read `source` instead."""
  loader = importlib.machinery.SourceFileLoader
  get_code = loader.get_code

  def get_code_of_mutant(self, fullname):
    if pathlib.Path(self.path) == path:
      return self.source_to_code(source.encode(), self.path)
    return get_code(self, fullname)

  loader.get_code = get_code_of_mutant
