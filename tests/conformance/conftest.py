"""The table of combinations: how many checks each passes.

`make test-conformance` writes it into docs/measurements/conformance.md.
"""

import collections
import datetime
import importlib.metadata
import pathlib
import platform
import re

import pytest

from transformer_xl.config import registry

PAGE = pathlib.Path(__file__).parents[2] / "docs/measurements/conformance.md"
START, END = "<!-- conformance: start -->", "<!-- conformance: end -->"
PACKAGES = ("jax", "flax", "numpy")
PARTS = ("checks", "oracle")
SEVERAL = "several mixers"
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
    text = "\n\n".join((_versions(), _table()))
    terminalreporter.write_line(text)
    before, rest = PAGE.read_text("utf-8").split(START)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", "utf-8")


def _table():
  """Checks that passed, summed over whatever has the same mixers."""
  sums = collections.defaultdict(list)
  for (memory, encoding, part), passed in COUNTS.items():
    sums[_mixers(memory), encoding, part] += passed
  encodings = [*registry.encodings, ""]  # Recurrent networks have none.
  names = [f"`{name}`" for name in registry.encodings]
  rows = [
    ["mixer", *names, "no encoding"],
    ["---"] * (1 + len(encodings)),
  ]
  for mixers in sorted({mixers for mixers, _, _ in sums}):
    cells = [_cell(sums, mixers, name) for name in encodings]
    rows.append([mixers, *cells])
  return _markdown(rows)


def _mixers(memory):
  """The mixer of a memory such as "lstm, attention:3, reader"."""
  names = re.sub(r", reader$| with .*| \(.*?\)|:\d+", "", memory).split(", ")
  return f"`{names[0]}`" if len({*names}) == 1 else SEVERAL


def _cell(sums, mixers, encoding):
  """Checks and comparisons with the oracle that passed, and what failed."""
  ends = [sums[mixers, encoding, part] for part in PARTS]
  if not any(ends):
    return ""
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
