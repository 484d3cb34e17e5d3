"""The table of faults: what was tried, what survived, what was lost."""

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
START, END = "<!-- faults: start -->", "<!-- faults: end -->"
PACKAGES = ("jax", "flax", "orbax-checkpoint", "numpy")
TRIED, LOST = collections.Counter(), collections.Counter()


def pytest_addoption(parser):
  parser.addoption(
    "--fault-table",
    action="store_true",
    help="Write the table of faults into docs/measurements/reliability.md.",
  )


@pytest.fixture
def trying(request):
  """Counts a fault, and whether what follows it holds."""

  @contextlib.contextmanager
  def count(fault):
    outcome = [fault, False]
    # So it reaches the process that writes the table.
    request.node.user_properties.append(("fault", outcome))
    yield
    outcome[1] = True

  return count


def pytest_runtest_logreport(report):
  if report.when == "call":
    for name, outcome in report.user_properties:
      if name == "fault":
        TRIED[outcome[0]] += 1
        LOST[outcome[0]] += not outcome[1]


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
  """One uninterrupted run for all."""
  return victim.Bench(tmp_path_factory.mktemp("faults"))


def pytest_terminal_summary(terminalreporter, config):
  if not TRIED:
    return
  table = "\n".join(_rows())
  terminalreporter.write_line(table)
  if config.getoption("fault_table", False):
    text = PAGE.read_text("utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    parts = (f"{before}{START}", _versions(), table, f"{END}{after}")
    PAGE.write_text("\n\n".join(parts), "utf-8")


def _rows():
  yield "| fault | tried | survived | lost |"
  yield "|---|---|---|---|"
  for fault, tried in sorted(TRIED.items()):
    yield f"| {fault} | {tried} | {tried - LOST[fault]} | {LOST[fault]} |"
  tried, lost = TRIED.total(), LOST.total()
  yield f"| **all** | **{tried}** | **{tried - lost}** | **{lost}** |"


def _versions():
  versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
  return (
    f"Written by `make test-faults` on {datetime.date.today()} with "
    f"{', '.join(versions)} and Python {platform.python_version()} on "
    f"{os.cpu_count()} {platform.machine()} cores, on the CPU backend:"
  )
