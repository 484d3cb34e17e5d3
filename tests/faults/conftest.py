"""The tables of faults: what was tried, what survived, what was lost.

Faults of runs on disk are in one table, those of runs in buckets in another.
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
# How each try ended, by table and row; None if something was lost.
FAULTS = collections.defaultdict(list)
BUCKETS = collections.defaultdict(list)
# How both processes of a run ended: status, seconds and last line of each.
PROCESSES = collections.defaultdict(list)


def pytest_addoption(parser):
  parser.addoption(
    "--fault-table",
    action="store_true",
    help="Write the tables of faults into docs/measurements/reliability.md.",
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


@pytest.fixture
def trying_processes(request):
  """The same for what happens to one of two; the block says how both ended."""

  def count(when, what):
    return _noted(request, "fault of a process", [when, what])

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
        "fault of a process": PROCESSES,
      }.get(name)
      if table is not None:
        row, end = outcome
        table[tuple(row)].append(end)


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
  """One uninterrupted run for all."""
  return victim.Bench(tmp_path_factory.mktemp("faults"))


def pytest_terminal_summary(terminalreporter, config):
  for name, table, rows, packages in (
    ("faults", FAULTS, _rows(), PACKAGES),
    ("processes", PROCESSES, _process_rows(), PACKAGES),
    ("buckets", BUCKETS, _bucket_rows(), (*PACKAGES, *BUCKET_PACKAGES)),
  ):
    if table:
      text = "\n".join(rows)
      terminalreporter.write_line(text)
      if config.getoption("fault_table", False):
        _write(name, text, packages)


def _write(name, table, packages):
  """Replaces one of the tables in the page."""
  start, end = f"<!-- {name}: start -->", f"<!-- {name}: end -->"
  text = PAGE.read_text("utf-8")
  before, rest = text.split(start)
  _, after = rest.split(end)
  parts = (f"{before}{start}", _versions(packages), table, f"{end}{after}")
  PAGE.write_text("\n\n".join(parts), "utf-8")


def _rows():
  """A row for each kind of fault, which is named before a colon."""
  kinds = collections.defaultdict(list)
  for (fault,), ends in FAULTS.items():
    kinds[fault.partition(":")[0]] += ends
  yield "| fault | tried | survived | lost |"
  yield "|---|---|---|---|"
  for kind, ends in sorted(kinds.items()):
    lost = ends.count(None)
    yield f"| {kind} | {len(ends)} | {len(ends) - lost} | {lost} |"
  tried, lost = _totals(FAULTS)
  yield f"| **all** | **{tried}** | **{tried - lost}** | **{lost}** |"


def _bucket_rows():
  """A row for each fault, at whatever time of a run."""
  faults = collections.defaultdict(list)
  for (_, fault), ends in BUCKETS.items():
    faults[fault] += ends
  yield "| fault | outcome | tried | lost |"
  yield "|---|---|---|---|"
  for fault, ends in sorted(faults.items()):
    outcome = " or ".join(sorted({end for end in ends if end}))
    lost = ends.count(None)
    yield f"| {fault} | {outcome} | {len(ends)} | {lost} |"
  tried, lost = _totals(BUCKETS)
  yield f"| **all** | | **{tried}** | **{lost}** |"


# The stages that a run of several processes goes through, in their order.
_STAGES = (
  *("before joining", "compiling", "training", "saving", "validating"),
  "after training",
)


def _process_rows():
  yield "| when | what | process 0 | process 1 |"
  yield "|---|---|---|---|"

  def place(found):
    (when, what), _ = found
    order = [when.startswith(stage) for stage in _STAGES]
    return order.index(True), when, what

  for (when, what), ends in sorted(PROCESSES.items(), key=place):
    both = [end for end in ends if end is not None]
    cells = [_process_cell(one) for one in zip(*both, strict=True)]
    cells = cells or ["lost", "lost"]
    yield f"| {when} | {what} | {cells[0]} | {cells[1]} |"


def _process_cell(ends):
  """Status, longest time and line of a process over all tries."""
  statuses = sorted({str(status) for status, _, _ in ends})
  seconds = max(seconds for _, seconds, _ in ends)
  line = min(line for _, _, line in ends)
  text = f"{' or '.join(statuses)} after {seconds:.1f} s"
  return f"{text}: {line}" if line else text


def _totals(table):
  """How many faults were tried, and how many lost something."""
  ends = [end for found in table.values() for end in found]
  return len(ends), ends.count(None)


def _versions(packages):
  versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
  return (
    f"Written by `make test-faults` on {datetime.date.today()} with "
    f"{', '.join(versions)} and Python {platform.python_version()} on "
    f"{os.cpu_count()} {platform.machine()} cores, on the CPU backend:"
  )
