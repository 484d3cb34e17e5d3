"""Studies of documents: the loss by the position of a token in its document.

At the start of a document there is nothing to remember; what a memory is worth
shows later. A row of study.py is a model whose memory is empty where a document
starts (`data.reset_at_documents`), and its table has perplexities by position
beside what the model costs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jaxtyping as jt
import numpy as np
from matplotlib import figure as figure_lib
from matplotlib import ticker

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.analysis import answers
from transformer_xl.analysis import over_seeds
from transformer_xl.analysis import plotting
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import trials
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import token_file
from transformer_xl.evaluation import per_token
from transformer_xl.model import nats
from transformer_xl.model import reader as reader_lib
from transformer_xl.workdir import trained_model

# The first bin ends before this position, and each further one four times
# later.
_FIRST_END = 16
_FACTOR = 4
# Perplexities at the axis, times powers of ten: two may be close to 100.
_MARKS = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)


class Scale(NamedTuple):
  """The positions of a split's tokens in their documents, in bins.

  The first token of a document is in none, since what stands before it is
  another document.

  Attributes:
    bins: indices of tokens in each bin, into all tokens of the split but the
      first.
    positions: the first and the last position in each bin, from 1.
    num_tokens: the number of tokens in each bin.
  """

  bins: list[jt.Int[np.ndarray, "?"]]
  positions: list[list[int]]
  num_tokens: list[int]


def scale(file: token_file.TokenFile) -> Scale:
  """The positions of the tokens in a split.

  Raises:
    UserError: no document has more than one token.
  """
  targets = np.arange(1, len(file.tokens))
  starts = np.union1d([0], file.documents)
  document = np.searchsorted(starts, targets, side="right") - 1
  positions = targets - starts[document]
  bins = []
  ends = []
  first = 1
  stop = _FIRST_END
  while first <= positions.max():
    inside = np.flatnonzero((positions >= first) & (positions < stop))
    if len(inside):
      bins.append(inside)
      ends.append([first, min(stop - 1, int(positions.max()))])
    first = stop
    stop = _FACTOR * stop
  if not bins:
    raise errors.UserError(
      "no document of the split has a second token, so there is nothing to "
      "remember; prepare longer documents, or set "
      "--config.data.reset_at_documents=false."
    )
  return Scale(bins, ends, [len(one) for one in bins])


def measure(
  model: trained_model.TrainedModel, lengths: Sequence[int]
) -> trials.Measurement:
  """The mean loss of all tokens and of each bin, with each memory."""
  config = model.config
  file = token_file.open_split(config.data.dataset_dir, config.eval.split)
  bins = scale(file).bins
  losses = {}
  by_bin = {}
  for length in lengths:
    nll = per_token.read(model, mem_len=length, read_segment=_losses)
    losses[length] = float(nll.mean(dtype=np.float64))
    by_bin[length] = [float(nll[one].mean(dtype=np.float64)) for one in bins]
  return trials.Measurement(losses, by_bin)


def _losses(
  reader: reader_lib.TokenReader,
  frozen: shapes.PyTree,
  state: shapes.PyTree,
  segment: segment_lib.Segment[jax.Array],
) -> tuple[shapes.PyTree, shapes.Losses]:
  """Reads one segment: the next state, and losses [B, U]."""
  nll, state = reader.nll(
    frozen, state, segment.inputs, segment.targets, segment.resets
  )
  return state, nll


def table(rows: Sequence[rows_lib.Row], scale: Scale) -> list[dict[str, str]]:
  """Perplexity of all tokens and by position, beside what a row costs.

  Numbers are medians over seeds.
  """
  is_planned = any(row.planned_seconds_per_token for row in rows)
  of_rows = [row.over_seeds for row in rows]
  ranks = over_seeds.ranks(of_rows, is_higher_better=False)
  lines = []
  for row, seeds, rank in zip(rows, of_rows, ranks, strict=True):
    cells = answers.cost_cells(row, is_planned=is_planned)
    cells["learning rate"] = rows_lib.rate_cell(row)
    cells["PPL"] = f"{nats.perplexity(row.nll):.4g}"
    cells["over seeds"] = rows_lib.seeds_cell(
      seeds, lambda nll: f"{nats.perplexity(nll):.4g}"
    )
    cells["rank"] = rank
    by_bin = np.median(row.bins_by_seed, axis=0)
    for (first, last), nll in zip(scale.positions, by_bin, strict=True):
      cells[f"{first}-{last}"] = f"{nats.perplexity(nll):.4g}"
    lines.append(cells)
  return lines


@plotting.in_style
def draw(rows: Sequence[rows_lib.Row], scale: Scale) -> figure_lib.Figure:
  """Plots perplexity by position, with the interval over seeds."""
  figure, axes = plotting.subplots(figsize=(6.5, 3.8))
  middles = [math.sqrt(first * last) for first, last in scale.positions]
  for index, row in enumerate(rows):
    plotting.draw_row(
      axes,
      middles,
      np.exp(np.median(row.bins_by_seed, axis=0)),
      np.exp(row.bins_by_seed),
      style=plotting.style_of(index),
      label=row.name,
    )
  axes.set_xscale("log", base=2)
  axes.set_yscale("log")
  axes.xaxis.set_major_formatter("{x:.0f}")
  axes.yaxis.set_major_formatter("{x:.3g}")
  axes.yaxis.set_minor_locator(ticker.LogLocator(subs=_MARKS))
  axes.yaxis.set_minor_formatter("{x:.3g}")
  axes.set_xlabel("position in the document (tokens)")
  axes.set_ylabel("perplexity")
  figure.legend(loc="outside right upper", fontsize=8)
  return figure
