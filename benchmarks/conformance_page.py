r"""Writes what the kit says of layers of other libraries into a page.

Each adapter in examples/conformance/ prints its table where its library is
installed; this puts all of them into docs/conformance.md:

    python examples/conformance/flax_lstm.py > build/conformance/flax_lstm.txt
    python -m benchmarks.conformance_page build/conformance/*.txt
"""

import pathlib
import re
import sys
from typing import NamedTuple

PAGE = pathlib.Path(__file__).parents[1] / "docs/conformance.md"
START, END = "<!-- layers: start -->", "<!-- layers: end -->"
SIGNS = {"passed": "✓", "FAILED": "✗", "not applicable": ""}


class Layer(NamedTuple):
  """What was printed of one layer: outcome and rest by name of the check."""

  title: str
  rows: dict[str, tuple[str, str]]


def layers(printed: str) -> list[Layer]:
  """The tables that adapters printed, one after another."""
  found: list[Layer] = []
  for line in printed.splitlines():
    outcome = next((one for one in SIGNS if line.startswith(one)), None)
    if outcome is None:
      found.append(Layer(line, {}))
      continue
    # Columns are at least two spaces apart.
    _, name, rest = (re.split(r"\s{2,}", line, maxsplit=2) + [""])[:3]
    found[-1].rows[name] = (outcome, rest)
  return found


def tables(found: list[Layer]) -> str:
  """A row for each layer, then a row for each check that applies to one."""
  lines = ["| | library and version | layer | passed | failed |"]
  lines += ["|---|---|---|---|---|"]
  for number, one in enumerate(found, 1):
    library, _, layer = one.title.partition(": ")
    outcomes = [outcome for outcome, _ in one.rows.values()]
    failed = [
      f"{name}: {rest}"
      for name, (outcome, rest) in one.rows.items()
      if outcome == "FAILED"
    ]
    passed = outcomes.count("passed")
    cell = "<br>".join(failed) or "none"
    lines.append(f"| {number} | {library} | `{layer}` | {passed} | {cell} |")
  numbers = " | ".join(str(number + 1) for number in range(len(found)))
  lines += ["", f"| check | {numbers} |", "|---" * (len(found) + 1) + "|"]
  for name in found[0].rows:
    signs = [SIGNS[one.rows[name][0]] for one in found]
    if any(signs):
      lines.append(f"| {name} | {' | '.join(signs)} |")
  return "\n".join(lines)


def main(paths: list[str]) -> None:
  """Writes the tables of these files between the marks of the page."""
  printed = "".join(pathlib.Path(path).read_text("utf-8") for path in paths)
  before, _, rest = PAGE.read_text("utf-8").partition(START)
  _, _, after = rest.partition(END)
  found = tables(layers(printed))
  PAGE.write_text(f"{before}{START}\n\n{found}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
  main(sys.argv[1:])
