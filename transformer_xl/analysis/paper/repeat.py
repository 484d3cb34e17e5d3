"""The paper's tables and figures, measured beside the published ones.

    python -m transformer_xl.main --mode=paper --workdir=runs/paper \
      --config=experiments/paper.py:table6:small

trains what is missing, measures it and writes `results/table6.md`, `.json` and
`.png`: the published rows in the paper's order and words, each beside what was
measured here. `experiments/paper.py` has what is trained, at the scale of the
paper and at a small one.
"""

import dataclasses
import html
import itertools
import os
from collections.abc import Mapping
from typing import NamedTuple

import jax
from absl import logging
from matplotlib import figure as figure_lib

from transformer_xl import storage
from transformer_xl.analysis import plotting
from transformer_xl.analysis import trials
from transformer_xl.analysis.paper import methods
from transformer_xl.analysis.paper import published
from transformer_xl.config import schema
from transformer_xl.workdir import metrics_log

_NOTHING = methods.Measured(())


class Order(NamedTuple):
  """Whether the rows of a column are in the order of the paper.

  Attributes:
    same: pairs of rows in the published order.
    against: pairs, as names, in the other order.
    equal: pairs that measurement does not tell apart.
  """

  same: int
  against: list[tuple[str, str]]
  equal: int


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Repeats `config.analysis.paper`; returns `results/ITEM.json`.

  Raises:
    UserError: there is no such item, or something cannot be trained or
      measured.
    StoppedError: a signal stopped training; the same command resumes there.
  """
  name, item = published.find(config.analysis.paper)
  found = methods.measure(methods.Request(item, config, workdir))
  result: metrics_log.Json = {
    "made_by": plotting.made_by(),
    "item": name,
    "title": item.title,
    "dataset": config.data.name,
    "split": config.analysis.split,
    "seeds": [*found.seeds],
    **trials.provenance(),
    "columns": [*item.columns],
    "rows": [_entry(item, row, found.rows) for row in item.rows],
    "order": {
      column: order(item, index, found.rows)._asdict()
      for index, column in enumerate(item.columns)
    },
    "config": dataclasses.asdict(config),
    "details": found.details,
  }
  figures = {f"{name}_{end}": each for end, each in found.figures.items()}
  if item.rows:
    figures[name] = draw(item, found.rows)
  lines = table(item, found.rows)
  if found.texts:
    lines = [{head: _in_a_cell(text) for head, text in found.texts.items()}]
  plotting.write(workdir, name, result, figures, table=lines)
  _copy_pictures(found.pictures, name, workdir)
  for line in sentences(item, found.rows):
    logging.info("%s: %s", name, line)
  return result


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError for an item that cannot be trained or measured."""
  _, item = published.find(config.analysis.paper)
  methods.check(methods.Request(item, config, workdir))


def _entry(
  item: published.Item,
  row: published.Row,
  measured: Mapping[str, methods.Measured],
) -> metrics_log.Json:
  """A row of the JSON file."""
  here = measured.get(row.variant, _NOTHING)
  return {
    "name": row.name,
    "group": row.group,
    "variant": row.variant,
    "published": dict(zip(item.columns, row.values, strict=True)),
    "measured": dict(zip(item.columns, here.values, strict=False)),
    "low": here.low,
    "high": here.high,
    "num_parameters": here.num_parameters,
  }


def table(
  item: published.Item, measured: Mapping[str, methods.Measured]
) -> list[dict[str, str]]:
  """The published values and the measured ones, in the paper's order."""
  lines = []
  for row in item.rows:
    here = measured.get(row.variant, _NOTHING)
    cells = {"row": row.name}
    for index, column in enumerate(item.columns):
      cells[f"{column}, published"] = _shown(row.values[index])
      value = here.values[index] if here.values else None
      text = _shown(value)
      if index == 0 and here.low is not None and here.low != here.high:
        text += f" ({_shown(here.low)} to {_shown(here.high)})"
      cells[f"{column}, measured"] = text
    count = here.num_parameters
    cells["parameters, measured"] = "-" if count is None else f"{count:,}"
    lines.append(cells)
  return lines


def _shown(value: float | None) -> str:
  """A whole number, or another with two decimals; "-" for none."""
  if value is None:
    return "-"
  return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _in_a_cell(text: str) -> str:
  """A text as a cell of a Markdown table shows it."""
  escaped = html.escape(text, quote=False).replace("|", "\\|")
  return escaped.strip("\n").replace("\n", "<br>")


def order(
  item: published.Item, index: int, measured: Mapping[str, methods.Measured]
) -> Order:
  """Compares the order of the rows of a column, within each group.

  Rows that were published as equal do not count. Two rows are not told apart
  if they are equal, or in the first column if the ranges of their seeds
  overlap.
  """
  same = 0
  equal = 0
  against = []
  for one, other in itertools.combinations(item.rows, 2):
    if one.group != other.group:
      continue
    if one.variant not in measured or other.variant not in measured:
      continue
    here = (measured[one.variant], measured[other.variant])
    theirs = _difference(one.values[index], other.values[index])
    ours = _difference(here[0].values[index], here[1].values[index])
    if not theirs or ours is None:
      continue
    if ours == 0 or (index == 0 and _overlap(*here)):
      equal += 1
    elif (theirs > 0) == (ours > 0):
      same += 1
    else:
      against.append((one.name, other.name))
  return Order(same, against, equal)


def _difference(one: float | None, other: float | None) -> float | None:
  """One less the other, if both are known."""
  return None if one is None or other is None else one - other


def _overlap(one: methods.Measured, other: methods.Measured) -> bool:
  """Whether the ranges of two rows' seeds overlap, if both have several."""
  ranges = []
  for row in (one, other):
    if row.low is None or row.high is None or row.low == row.high:
      return False
    ranges.append((row.low, row.high))
  (low, high), (other_low, other_high) = ranges
  return low <= other_high and other_low <= high


def sentences(
  item: published.Item, measured: Mapping[str, methods.Measured]
) -> list[str]:
  """Says of each column whether the rows are in the order of the paper."""
  lines = []
  for index, column in enumerate(item.columns):
    found = order(item, index, measured)
    pairs = found.same + found.equal + len(found.against)
    if not pairs:
      continue
    line = f"{column}: {found.same} of {pairs} pairs of rows in the same order"
    if found.equal:
      line += f", {found.equal} not told apart"
    for one, other in found.against:
      line += f"; {one!r} and {other!r} are not"
    lines.append(line + ".")
  return lines


@plotting.in_style
def draw(
  item: published.Item, measured: Mapping[str, methods.Measured]
) -> figure_lib.Figure:
  """Draws the first column: published on the left, measured on the right."""
  places = range(len(item.rows))
  height = 0.9 + 0.26 * len(item.rows)
  figure, (left, right) = plotting.subplots(
    1, 2, figsize=(7.5, height), sharey=True
  )
  left.plot([row.values[0] for row in item.rows], places, "ko", markersize=5)
  for place, row in zip(places, item.rows, strict=True):
    here = measured.get(row.variant)
    if here is None or here.values[0] is None:
      continue
    right.plot([here.values[0]], [place], "C0o", markersize=5)
    if here.low is not None and here.high is not None:
      right.plot([here.low, here.high], [place, place], "C0-")
  left.set_yticks([*places], [row.name for row in item.rows])
  left.invert_yaxis()
  left.set_title("published", fontsize=9)
  right.set_title("measured here", fontsize=9)
  for axes in (left, right):
    axes.set_xlabel(item.columns[0])
  return figure


def _copy_pictures(
  pictures: Mapping[str, str], name: str, workdir: str
) -> None:
  """Puts pictures of an analysis beside the other results of the paper."""
  if jax.process_index() != 0:
    return
  for end, path in pictures.items():
    with open(path, "rb") as file:
      content = file.read()
    target = os.path.join(storage.local(workdir), "results")
    path = os.path.join(target, f"{name}_{end}.png")
    storage.write_bytes(path, content)
    logging.info("Wrote %s/results/%s_%s.png.", workdir, name, end)
