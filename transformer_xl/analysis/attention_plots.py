"""Figures of the paper's appendix D: attention by distance, memory and terms.

Shapes: N layers, H heads, T queries, K = M + T keys.
"""

from typing import Any

import jaxtyping as jt
import numpy as np
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from matplotlib import image as image_lib

from transformer_xl.analysis import plotting

NUM_TARGETS = 16  # Rows, each labelled with a word.
TERMS = (
  "(a) query and key",
  "(b) query and distance",
  "(c) bias u and key",
  "(d) bias v and distance",
)


@plotting.in_style
def distances(
  profile: jt.Float[np.ndarray, "N H R"],
) -> figure_lib.Figure:
  """Mean attention by distance, one row per head (figure 5)."""
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
    [str(layer + 1) for layer in range(num_layers)],
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
  chosen: list[tuple[int, int]],
  words: list[str],
) -> figure_lib.Figure:
  """Attention of the widest heads to memory, for some targets (figure 6)."""
  _, segment_len, context_len = weights.shape
  mem_len = context_len - segment_len
  count = min(NUM_TARGETS, segment_len)
  figure, panels = plotting.subplots(
    1, len(chosen), figsize=(3.0 * len(chosen) + 0.9, 3.6), sharey=True
  )
  panels = np.atleast_1d(panels)  # One head gives a single panel.
  for panel, rows, (layer, head) in zip(panels, weights, chosen, strict=True):
    seen = rows[segment_len - count :, :mem_len]
    image = _image(
      panel,
      100 * seen,
      cmap="Blues",
      vmin=0,
      vmax=100 * np.quantile(seen, 0.995),
      extent=(-mem_len, 0, count - 0.5, -0.5),
    )
    figure.colorbar(image, ax=panel, location="top", shrink=0.8).set_label(
      f"layer {layer + 1}, head {head + 1}: attention (%)"
    )
    panel.set_xlabel("position in memory (tokens)")
  last = [_label(word) for word in words[context_len - count :]]
  panels[0].set_yticks(range(count), last, fontsize=7)
  panels[0].set_ylabel("last token that the query has read")
  return figure


@plotting.in_style
def terms(
  parts: jt.Float[np.ndarray, "4 T K"], chosen: tuple[int, int]
) -> figure_lib.Figure:
  """The terms of the scores of one head, (layer, head) (figure 7)."""
  _, segment_len, context_len = parts.shape
  mem_len = context_len - segment_len
  query = np.arange(segment_len)[:, None]
  hidden = np.arange(context_len)[None] > mem_len + query
  figure, panels = plotting.subplots(1, 4, figsize=(8.6, 2.8), sharey=True)
  shown = np.where(hidden, np.nan, parts)
  for panel, values, title in zip(panels, shown, TERMS, strict=True):
    # Adding a constant to a row changes no attention: centre on the mean.
    values = values - np.nanmean(values)
    bound = max(np.nanquantile(np.abs(values), 0.995), 1e-6)
    image = _image(
      panel,
      values,
      cmap="RdBu_r",
      vmin=-bound,
      vmax=bound,
      extent=(-mem_len, segment_len, segment_len - 0.5, -0.5),
    )
    figure.colorbar(image, ax=panel, location="bottom", shrink=0.9)
    panel.set_title(title, fontsize=9)
    panel.set_xlabel("key (position)")
    panel.axvline(0, color="black", linewidth=0.5)
  panels[0].set_ylabel("query (position)")
  layer, head = chosen
  figure.suptitle(
    f"Layer {layer + 1}, head {head + 1}: score over keys, less its mean; "
    "keys left of the line are in memory",
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
