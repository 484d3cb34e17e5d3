"""Studies of synthetic tasks: right answers by distance and by bytes of state.

A row of study.py is a mechanism that remembers. Its model answers the questions
of a task, and the table has the share that is right beside what it costs.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import figure as figure_lib

from transformer_xl.analysis import costs
from transformer_xl.analysis import over_seeds
from transformer_xl.analysis import plotting
from transformer_xl.analysis import recall
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import trials
from transformer_xl.workdir import trained_model

# A bin is a quarter of an octave wide, so a column is an octave wide.
_BINS_PER_COLUMN = 4
# A model that is right in so many of all answers has learned the task: guesses
# of every task are right far less often, and few models are in between.
SOLVED = 0.9


def measure(
  model: trained_model.TrainedModel, lengths: Sequence[int]
) -> trials.Measurement:
  """The mean loss of the answers, and how many are right, with each memory."""
  config = model.config
  file, answers = recall.open_answers(
    config.data.dataset_dir, config.eval.split
  )
  scale = recall.scale(file, answers)
  losses = {}
  bins = {}
  for length in lengths:
    guesses = recall.guess(
      model, length, warmup_len=int(answers.distances.max())
    )
    result = recall.right_answers(guesses, file, answers, scale.bins)
    losses[length] = float(np.average(result["nll"], weights=scale.num_answers))
    bins[length] = result["accuracy"]
  return trials.Measurement(losses, bins)


def shares(
  row: rows_lib.Row,
  scale: recall.Scale,
  first: int = 0,
  last: int | None = None,
) -> over_seeds.OverSeeds:
  """The share of right answers in the bins from `first` to `last`, or all."""
  stop = len(scale.num_answers) if last is None else last + 1
  return over_seeds.of(
    [
      np.average(each[first:stop], weights=scale.num_answers[first:stop])
      for each in row.bins_by_seed
    ]
  )


def num_solved(every: over_seeds.OverSeeds) -> int:
  """How many seeds have learned the task, by all their answers."""
  return sum(share >= SOLVED for share in every.by_seed)


def table(
  rows: Sequence[rows_lib.Row], scale: recall.Scale
) -> list[dict[str, str]]:
  """Right answers in per cent, beside parameters, state, operations and time.

  Numbers are medians over seeds. Columns of distances are about an octave wide,
  counted from the longest. The time on a chip has a column if it was planned.
  """
  # The last bin of each column.
  lasts = range(len(scale.num_answers) - 1, -1, -_BINS_PER_COLUMN)
  is_planned = any(row.planned_seconds_per_token for row in rows)
  of_rows = [shares(row, scale) for row in rows]
  ranks = over_seeds.ranks(of_rows, is_higher_better=True)
  lines = []
  for row, every, rank in zip(rows, of_rows, ranks, strict=True):
    cells = cost_cells(row, is_planned=is_planned)
    cells["learning rate"] = rows_lib.rate_cell(row)
    cells["right, %"] = f"{100 * every.median:.1f}"
    cells["over seeds"] = rows_lib.seeds_cell(
      every, lambda share: f"{100 * share:.1f}"
    )
    cells[f"solved ({100 * SOLVED:.0f} % right)"] = (
      f"{num_solved(every)} of {len(every.by_seed)}"
    )
    cells["rank"] = rank
    for last in reversed(lasts):
      first = max(0, last - _BINS_PER_COLUMN + 1)
      ends = {scale.distances[first][0], scale.distances[last][1]}
      head = "-".join(map(str, sorted(ends)))
      cells[head] = f"{100 * shares(row, scale, first, last).median:.0f}"
    lines.append(cells)
  return lines


def cost_cells(row: rows_lib.Row, *, is_planned: bool) -> dict[str, str]:
  """The name of a row and its costs; those of a chip if they were planned."""
  model = row.config.model
  evaluation = row.config.eval
  flops = costs.forward_flops_per_token(model, evaluation, row.length)
  num_bytes = costs.state_bytes(model, evaluation, row.length)
  cells = {
    "variant": row.name,
    "parameters": f"{row.num_parameters:,}",
    "state, bytes": f"{num_bytes:,}",
    "kFLOP a token": f"{flops / 1e3:.0f}",
    "µs a token: training / evaluation / generation": _times(
      row.seconds_per_token
    ),
  }
  if is_planned:
    cells["the same, planned for a chip"] = _times(
      row.planned_seconds_per_token
    )
  return cells


def _times(seconds: costs.Seconds | None) -> str:
  """Microseconds a token, in training, in evaluation and in generation."""
  if seconds is None:
    return ""
  rounded = [float(f"{1e6 * each:.3g}") for each in seconds]
  return " / ".join(f"{each:g}" for each in rounded)


@plotting.in_style
def draw(
  rows: Sequence[rows_lib.Row], scale: recall.Scale
) -> figure_lib.Figure:
  """Plots right answers by distance, and by bytes of state."""
  figure, (left, right) = plotting.subplots(1, 2, figsize=(9, 3.8), sharey=True)
  middles = [math.sqrt(low * high) for low, high in scale.distances]
  for index, row in enumerate(rows):
    style = plotting.style_of(index)
    by_seed = 100 * np.array(row.bins_by_seed)
    plotting.draw_row(
      left,
      middles,
      np.median(by_seed, axis=0),
      by_seed,
      style=style,
      label=row.name,
    )
    every = shares(row, scale)
    size = costs.state_bytes(row.config.model, row.config.eval, row.length)
    percent = 100 * every.median
    right.errorbar(
      [size],
      [percent],
      yerr=[
        [percent - 100 * every.low],
        [100 * every.high - percent],
      ],
      fmt=style.marker,
      color=style.color,
      fillstyle=style.fillstyle,
      capsize=2,
      markersize=6,
      alpha=0.8,
    )
  for axes in (left, right):
    axes.axhline(100 * scale.chance, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
  left.set_ylim(0, 103)
  left.set_xlabel("distance")
  left.set_ylabel("right answers (%)")
  right.set_xlabel("bytes of state a lane")
  figure.legend(loc="outside right upper", fontsize=8)
  return figure
