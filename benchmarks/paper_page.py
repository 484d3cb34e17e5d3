"""Writes what `--mode=paper` has measured into docs/paper.md.

    python -m benchmarks.paper_page runs/paper

Each item whose result is in the folder is written between the marks of its
name: the published rows beside the measured ones, and whether they are in the
same order.
"""

import json
import pathlib
import shutil
import sys

from transformer_xl.analysis import plotting
from transformer_xl.analysis.paper import methods
from transformer_xl.analysis.paper import published
from transformer_xl.analysis.paper import repeat

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGE = DOCS / "paper.md"
PICTURES = DOCS / "measurements/paper"


def measured(result: dict) -> dict[str, methods.Measured]:
  """The measured rows of `results/ITEM.json`, by variant."""
  rows = {}
  for row in result["rows"]:
    if row["measured"]:
      rows[row["variant"]] = methods.Measured(
        values=tuple(row["measured"].values()),
        low=row["low"],
        high=row["high"],
        num_parameters=row["num_parameters"],
      )
  return rows


def text(name: str, result: dict) -> str:
  """The table of an item, and its order in words."""
  item = published.ITEMS[name]
  rows = measured(result)
  table = plotting.markdown(repeat.table(item, rows))
  lines = [f"- {line}" for line in repeat.sentences(item, rows)]
  return "\n".join([table, *lines])


def replaced(page: str, name: str, content: str) -> str:
  """The page with new content between the marks of an item."""
  start = f"<!-- {name}: start -->"
  end = f"<!-- {name}: end -->"
  before, found, rest = page.partition(start)
  _, also, after = rest.partition(end)
  if not found or not also:
    raise SystemExit(f"docs/paper.md has no marks {start} and {end}")
  return f"{before}{start}\n\n{content}\n\n{end}{after}"


def main(folder: str) -> None:
  """Writes all items of a folder into the page, and copies their pictures."""
  results = pathlib.Path(folder) / "results"
  page = PAGE.read_text("utf-8")
  for name, item in published.ITEMS.items():
    path = results / f"{name}.json"
    if item.rows and path.exists():
      result = json.loads(path.read_text("utf-8"))
      page = replaced(page, name, text(name, result))
      print(f"{name}: {len(measured(result))} rows")
  PAGE.write_text(page, "utf-8")
  PICTURES.mkdir(parents=True, exist_ok=True)
  for picture in sorted(results.glob("*.png")):
    if f"measurements/paper/{picture.name}" in page:
      shutil.copy(picture, PICTURES)
      print(picture.name)


if __name__ == "__main__":
  main(sys.argv[1])
