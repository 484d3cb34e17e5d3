"""Figures in one style, tables, and the files of a result.

Each figure states the command that made it.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jaxtyping as jt
import matplotlib
import numpy as np
from absl import logging
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from numpy.typing import ArrayLike

from transformer_xl import command_line
from transformer_xl import storage
from transformer_xl.workdir import metrics_log

_STYLE: Any = {
  "axes.grid": True,
  "axes.spines.right": False,
  "axes.spines.top": False,
  "figure.constrained_layout.use": True,
  "font.size": 9,
  "grid.alpha": 0.3,
  "grid.linewidth": 0.5,
  "legend.frameon": False,
  "lines.linewidth": 1.4,
}
# Decorates a function that draws.
in_style = matplotlib.rc_context(_STYLE)


def made_by() -> str:
  """The command that runs, as one would type it."""
  return " ".join([command_line.words(), shlex.join(sys.argv[1:])])


def subplots(
  rows: int = 1,
  columns: int = 1,
  *,
  figsize: tuple[float, float],
  sharey: bool = False,
) -> tuple[figure_lib.Figure, Any]:
  """A figure and its axes, which no window shows and nobody has to close."""
  figure = figure_lib.Figure(figsize=figsize)
  return figure, figure.subplots(rows, columns, sharey=sharey)


class LineStyle(NamedTuple):
  """How a row is drawn: by ten colours, eight markers, and once more dashed."""

  color: str
  marker: str
  linestyle: str
  fillstyle: Literal["full", "none"]


def style_of(index: int) -> LineStyle:
  """The style of a row by its place in the table, from 0."""
  is_again = index >= 10  # Then the colour is that of another row, too.
  return LineStyle(
    color=f"C{index % 10}",
    marker="osv^DP*X"[index % 8],
    linestyle="--" if is_again else "-",
    fillstyle="none" if is_again else "full",
  )


def draw_row(
  axes: axes_lib.Axes,
  places: Sequence[float],
  median: jt.Float[np.ndarray, "N"],
  by_seed: jt.Float[np.ndarray, "S N"],
  *,
  style: LineStyle,
  label: str,
) -> None:
  """Draws a row of a comparison: its median, and the interval over seeds."""
  axes.plot(places, median, markersize=4, label=label, **style._asdict())
  axes.fill_between(
    places,
    by_seed.min(axis=0),
    by_seed.max(axis=0),
    color=style.color,
    alpha=0.15,
    linewidth=0,
  )


def write(
  workdir: str,
  name: str,
  result: metrics_log.Json,
  figures: dict[str, figure_lib.Figure],
  *,
  table: Sequence[dict[str, str]] = (),
  **arrays: ArrayLike,
) -> None:
  """Writes what an analysis has found to `results/` in the workdir.

  The result is `<name>.json`, the rows of the table, if any, are `<name>.md`,
  and the arrays, if any, `<name>.npz`. Figures are PNG files by name, which
  state the result's `made_by`. Only the first process writes.
  """
  if jax.process_index() != 0:
    return
  folder = os.path.join(storage.local(workdir), "results")
  os.makedirs(folder, exist_ok=True)
  metrics_log.write_json(workdir, f"results/{name}.json", result)
  if table:
    storage.write_text(os.path.join(folder, f"{name}.md"), markdown(table))
    logging.info("Wrote %s/results/%s.md.", workdir, name)
  if arrays:
    path = os.path.join(folder, f"{name}.npz")
    np.savez_compressed(path, allow_pickle=False, **arrays)
    logging.info("Wrote %s/results/%s.npz.", workdir, name)
  for name, figure in figures.items():
    path = os.path.join(folder, f"{name}.png")
    figure.savefig(path, dpi=150, metadata={"Description": result["made_by"]})
    logging.info("Wrote %s/results/%s.png.", workdir, name)


def markdown(rows: Sequence[dict[str, str]]) -> str:
  """A Markdown table of rows, which are cells by the heads of their columns."""
  heads = [*rows[0]]
  lines = [heads, ["---"] * len(heads)]
  lines += [[row[head] for head in heads] for row in rows]
  return "".join(f"| {' | '.join(line)} |\n" for line in lines)
