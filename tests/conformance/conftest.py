"""The table of combinations: how many checks each passes.

`make test-conformance` writes it into docs/measurements/conformance.md.
"""

import collections
import datetime
import importlib.metadata
import pathlib
import platform

import pytest

from tests.conformance import refusals
from transformer_xl.config import registry

PAGE = pathlib.Path(__file__).parents[2] / "docs/measurements/conformance.md"
START, END = "<!-- conformance: start -->", "<!-- conformance: end -->"
PACKAGES = ("jax", "flax", "numpy")
PARTS = ("checks", "oracle")
# Whether each passed, by memory, encoding and part.
COUNTS = collections.defaultdict(list)


def pytest_addoption(parser):
  parser.addoption(
    "--conformance-table",
    action="store_true",
    help="Write the table into docs/measurements/conformance.md.",
  )


@pytest.fixture
def counting(request):
  """Counts what a test finds for an adapter in one of the `PARTS`."""

  def count(part, adapter):
    encoding = adapter.config.encoding if adapter.has_attention else ""
    # So it reaches the process that writes the table.
    request.node.user_properties.append(
      ("conformance", [adapter.memory, encoding, part])
    )

  return count


def pytest_runtest_logreport(report):
  if report.when == "call":
    for name, row in report.user_properties:
      if name == "conformance":
        COUNTS[tuple(row)].append(report.passed)


def pytest_terminal_summary(terminalreporter, config):
  if COUNTS and config.getoption("conformance_table", False):
    text = "\n\n".join((_versions(), _table(), _recurrent(), _refused()))
    terminalreporter.write_line(text)
    before, rest = PAGE.read_text("utf-8").split(START)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", "utf-8")


def _table():
  encodings = [*registry.encodings]
  rows = [
    ["memory", *(f"`{name}`" for name in encodings)],
    ["---"] * (1 + len(encodings)),
  ]
  memories = dict.fromkeys(memory for memory, encoding, _ in COUNTS if encoding)
  for memory in sorted(memories):
    rows.append([memory, *(_cell(memory, name) for name in encodings)])
  return _markdown(rows)


def _recurrent():
  """Recurrent networks have no encoding."""
  memories = dict.fromkeys(
    memory for memory, encoding, _ in COUNTS if not encoding
  )
  rows = [["memory", "passed"], ["---"] * 2]
  return _markdown(
    rows + [[name, _cell(name, "")] for name in sorted(memories)]
  )


def _refused():
  rows = [["memory", "refused with"], ["---"] * 2]
  for name, others in refusals.found().items():
    rows.append([name, ", ".join(others) or "nothing"])
  return _markdown(rows)


def _cell(memory, encoding):
  """Checks and comparisons with the oracle that passed, and what failed."""
  ends = [COUNTS[memory, encoding, part] for part in PARTS]
  text = " + ".join(str(sum(passed)) for passed in ends)
  failed = sum(passed.count(False) for passed in ends)
  return f"{text}, **{failed} failed**" if failed else text


def _markdown(rows):
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _versions():
  versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
  ends = [passed for one in COUNTS.values() for passed in one]
  return (
    f"Written by `make test-conformance` on {datetime.date.today()} with "
    f"{', '.join(versions)} and Python {platform.python_version()} on the CPU "
    f"backend: {sum(ends)} of {len(ends)} passed."
  )
