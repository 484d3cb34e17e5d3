"""Figures of the paper's appendix D: attention by distance, memory and terms.

Shapes: N layers, H heads, T queries, K = M + T keys.
"""

from collections.abc import Sequence
from typing import Any

import jaxtyping as jt
import numpy as np
from matplotlib import axes as axes_lib
from matplotlib import colormaps
from matplotlib import colors as colours_lib
from matplotlib import figure as figure_lib
from matplotlib import image as image_lib

from transformer_xl.analysis import plotting
from transformer_xl.analysis import score_terms

NUM_TARGETS = 16  # Rows, each labelled with a word.


@plotting.in_style
def distances(
  profile: jt.Float[np.ndarray, "N H R"], layers: Sequence[int]
) -> figure_lib.Figure:
  """Mean attention by distance, one row per head (figure 5).

  `layers` are the numbers of the layers, from 1.
  """
  num_layers, num_heads, _ = profile.shape
  rows = profile.reshape(num_layers * num_heads, -1)
  height = min(1.2 + 0.16 * len(rows), 7.0)
  figure, axes = plotting.subplots(figsize=(6.5, height))
  # Logarithmic: distances 0 to 2 dominate, and the rest would be white.
  logarithms = np.log10(np.maximum(rows, 1e-5))
  image = _image(axes, logarithms, cmap="Blues", vmin=-4, vmax=0)
  axes.set_xlabel("distance from the query to the key (tokens)")
  axes.set_yticks(
    np.arange(num_layers) * num_heads + (num_heads - 1) / 2,
    [str(number) for number in layers],
  )
  axes.set_ylabel("layer (a row is a head)")
  for layer in range(1, num_layers):
    axes.axhline(layer * num_heads - 0.5, color="grey", linewidth=0.6)
  bar = figure.colorbar(image, ax=axes, ticks=[-4, -3, -2, -1, 0])
  bar.ax.set_yticklabels(["0.0001", "0.001", "0.01", "0.1", "1"])
  bar.set_label("average attention")
  return figure


@plotting.in_style
def memories(
  weights: jt.Float[np.ndarray, "C T K"],
  marked: jt.Bool[np.ndarray, "C T M"],
  names: Sequence[str],
  words: Sequence[str],
) -> figure_lib.Figure:
  """Attention of C heads to memory, for some targets (figure 6).

  A mark below the colour is for each key of a target that `marked` has.
  """
  num_heads, segment_len, num_keys = weights.shape
  mem_len = num_keys - segment_len
  count = min(NUM_TARGETS, segment_len)
  # One below the other, since a pixel is to show every token of the memory.
  figure, panels = plotting.subplots(
    num_heads, 1, figsize=(8.6, 0.6 + 2.9 * num_heads)
  )
  panels = np.atleast_1d(panels)  # One head gives a single panel.
  last = [_label(word) for word in words[num_keys - count :]]
  for panel, rows, marks, name in zip(
    panels, weights, marked, names, strict=True
  ):
    seen = rows[segment_len - count :, :mem_len]
    extent = (-mem_len, 0, count - 0.5, -0.5)
    image = _image(
      panel,
      100 * seen,
      cmap="Blues",
      vmin=0,
      vmax=100 * np.quantile(seen, 0.995),
      extent=extent,
    )
    # The lowest fourth of a row has its marks.
    strips = np.ma.masked_all((4 * count, mem_len))
    strips[3::4] = np.ma.masked_equal(marks[segment_len - count :], 0)
    _image(
      panel, strips, cmap=colours_lib.ListedColormap(["C1"]), extent=extent
    )
    figure.colorbar(image, ax=panel, pad=0.01).set_label("attention (%)")
    panel.set_title(f"{name}; orange marks the top fifth of the memory")
    panel.set_yticks(range(count), last, fontsize=7)
    panel.set_ylabel("last token that the query has read")
  panels[-1].set_xlabel("position in memory (tokens)")
  return figure


@plotting.in_style
def terms(
  by_distance: jt.Float[np.ndarray, "4 N H R"],
) -> figure_lib.Figure:
  """The terms of the scores by distance, of all heads (figure 7).

  Of each curve its mean is left out: adding a constant to the scores of a query
  changes no attention. Terms that the encoding does not have are left out, too.
  """
  _, num_layers, _, num_distances = by_distance.shape
  shown = score_terms.present(by_distance)
  seen = score_terms.seen_by_all(by_distance)
  figure, panels = plotting.subplots(
    1, len(shown), figsize=(0.8 + 2.5 * len(shown), 3.2), sharey=True
  )
  colours = colormaps["viridis"](np.linspace(0, 0.9, num_layers))
  for panel, place in zip(np.atleast_1d(panels), shown, strict=True):
    for layer, colour in zip(by_distance[place], colours, strict=True):
      for curve in layer:
        panel.plot(curve - np.nanmean(curve), color=colour, linewidth=0.5)
    mean = by_distance[place].mean(axis=(0, 1))[seen]
    panel.plot(seen, mean - mean.mean(), color="C3", linewidth=2.2)
    panel.set_title(score_terms.NAMES[place], fontsize=9)
    panel.set_xlabel("distance (tokens)")
    # The first tokens matter most, and the line would hide them.
    panel.set_xscale("symlog", linthresh=1)
    panel.set_xlim(0, num_distances - 1)
  np.atleast_1d(panels)[0].set_ylabel("mean score, less that of the curve")
  figure.suptitle(
    "Thin: a head, of the first layer (dark) to the last (light); "
    "thick: the average of all heads",
    fontsize=9,
  )
  return figure


def _image(
  axes: axes_lib.Axes,
  values: jt.Float[np.ndarray, "rows columns"],
  **options: Any,
) -> image_lib.AxesImage:
  """Draws values as colours; `options` are those of `imshow`."""
  axes.grid(visible=False)
  return axes.imshow(values, aspect="auto", interpolation="nearest", **options)


def _label(word: str) -> str:
  """A token as a label that shows white space."""
  visible = word.replace("\n", "\\n").strip() or "' '"
  # Matplotlib sets text between dollars as mathematics.
  return visible.replace("$", r"\$")
