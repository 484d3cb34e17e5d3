"""How many faults were tried, and what was lost.

Faults of runs on disk are counted apart from those of runs in buckets.
"""

import collections
import contextlib
import datetime
import importlib.metadata
import os
import pathlib
import platform

import pytest

from tests.faults import victim

PAGE = pathlib.Path(__file__).parents[2] / "docs/measurements/reliability.md"
PACKAGES = ("jax", "flax", "orbax-checkpoint", "numpy")
BUCKET_PACKAGES = ("gcsfs", "tensorstore", "gcp-storage-emulator")
# How each try ended, by what was tried; None if something was lost.
FAULTS = collections.defaultdict(list)
BUCKETS = collections.defaultdict(list)


def pytest_addoption(parser):
  parser.addoption(
    "--fault-table",
    action="store_true",
    help="Write how many were survived into docs/measurements/reliability.md.",
  )


@pytest.fixture
def trying(request):
  """Counts a fault, and whether what follows it holds."""

  @contextlib.contextmanager
  def count(fault):
    with _noted(request, "fault", [fault]) as note:
      yield
      note("survived")

  return count


@pytest.fixture
def trying_bucket(request):
  """The same for a fault of a bucket; the block says how the run went on."""

  def count(operation, fault):
    return _noted(request, "bucket fault", [operation, fault])

  return count


@contextlib.contextmanager
def _noted(request, table, row):
  outcome = [row, None]
  # So it reaches the process that writes the table.
  request.node.user_properties.append((table, outcome))

  def note(end):
    outcome[1] = end

  yield note


def pytest_runtest_logreport(report):
  if report.when == "call":
    for name, outcome in report.user_properties:
      table = {
        "fault": FAULTS,
        "bucket fault": BUCKETS,
      }.get(name)
      if table is not None:
        row, end = outcome
        table[tuple(row)].append(end)


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
  """One uninterrupted run for all."""
  return victim.Bench(tmp_path_factory.mktemp("faults"))


def pytest_terminal_summary(terminalreporter, config):
  for name, table, packages in (
    ("faults", FAULTS, PACKAGES),
    ("buckets", BUCKETS, (*PACKAGES, *BUCKET_PACKAGES)),
  ):
    if table:
      text = _told(table, packages)
      terminalreporter.write_line(text)
      if config.getoption("fault_table", False):
        _write(name, text)


def _write(name, told):
  """Replaces one of the counts in the page."""
  start, end = f"<!-- {name}: start -->", f"<!-- {name}: end -->"
  before, rest = PAGE.read_text("utf-8").split(start)
  _, after = rest.split(end)
  text = "\n\n".join((f"{before}{start}", told, f"{end}{after}"))
  PAGE.write_text(text, "utf-8")


def _told(table, packages):
  """How many faults were tried with which versions, and the lost ones."""
  ends = [end for found in table.values() for end in found]
  lost = sorted({": ".join(row) for row, end in table.items() if None in end})
  return (
    f"{_versions(packages)} {len(ends)} tried, {ends.count(None)} lost"
    f"{': ' * bool(lost)}{'; '.join(lost)}."
  )


def _versions(packages):
  versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
  return (
    f"Written by `make test-faults` on {datetime.date.today()} with "
    f"{', '.join(versions)} and Python {platform.python_version()} on "
    f"{os.cpu_count()} {platform.machine()} cores, on the CPU backend:"
  )
