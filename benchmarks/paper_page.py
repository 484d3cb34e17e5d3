"""Writes what `--mode=paper` has measured into docs/paper.md.

    python -m benchmarks.paper_page runs/paper

Each item whose result is in the folder is written between the marks of its
name: the published rows beside the measured ones, and whether they are in the
same order. Folders after the first have the same items with other seeds, and
rows are then means with a range.
"""

import json
import pathlib
import shutil
import statistics
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


def over_seeds(rows: list[methods.Measured]) -> methods.Measured:
  """One row of several, each of one seed.

  Losses, of which perplexity is the exponential, have an arithmetic mean.
  """
  values = []
  by_row = [row.values for row in rows]
  for column in zip(*by_row, strict=True):
    is_same = len({*column}) == 1
    values.append(column[0] if is_same else statistics.geometric_mean(column))
  return rows[0]._replace(
    values=tuple(values),
    low=min(row.low for row in rows),
    high=max(row.high for row in rows),
  )


def joined(results: list[dict]) -> dict[str, methods.Measured]:
  """The rows that all results of an item have, by variant."""
  if len(results) == 1:
    return measured(results[0])
  by_result = [measured(result) for result in results]
  rows = {}
  for variant in by_result[0]:
    of_variant = [found[variant] for found in by_result]
    rows[variant] = over_seeds(of_variant)
  return rows


def text(name: str, rows: dict[str, methods.Measured]) -> str:
  """The table of an item, and its order in words."""
  item = published.ITEMS[name]
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


def main(folder: str, *other_seeds: str) -> None:
  """Writes all items of a folder into the page, and copies their pictures."""
  results = pathlib.Path(folder) / "results"
  page = PAGE.read_text("utf-8")
  for name, item in published.ITEMS.items():
    paths = [
      pathlib.Path(one) / f"results/{name}.json"
      for one in (folder, *other_seeds)
    ]
    found = [
      json.loads(one.read_text("utf-8")) for one in paths if one.exists()
    ]
    if item.rows and paths[0].exists():
      rows = joined(found)
      page = replaced(page, name, text(name, rows))
      print(f"{name}: {len(rows)} rows, {len(found)} results")
  PAGE.write_text(page, "utf-8")
  PICTURES.mkdir(parents=True, exist_ok=True)
  for picture in sorted(results.glob("*.png")):
    if f"measurements/paper/{picture.name}" in page:
      shutil.copy(picture, PICTURES)
      print(picture.name)


if __name__ == "__main__":
  main(*sys.argv[1:])
