"""Interactive figures of runs, drawn by Bokeh in the browser.

Colours are legible on a light and on a dark page. Dragging is off until a tool
is chosen, so that a finger on a figure scrolls the page.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jaxtyping as jt
import numpy as np
from bokeh import embed
from bokeh import models
from bokeh import palettes
from bokeh import plotting

from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_history

# A `plotting.figure`. Bokeh's types do not admit the arguments that it takes.
Figure = Any
Style = dict[str, Any]  # Properties of what is drawn.
Scale = Literal["auto", "linear", "log"]

COLOURS = (
  "#3b82c4",
  "#e07b39",
  "#3f9f6b",
  "#b561b8",
  "#c9a227",
  "#d1495b",
  "#4fb3bf",
  "#8d7b68",
)
MOST_POINTS = 2000  # Per curve; a quarter of them if there are several runs.
_GREY = "#878d96"
_RED = "#d1495b"
_LONGEST_NAME = 36  # In a legend, in characters.
_SEPARATOR = re.compile(r"([-_/ ])")  # It stands between parts of a name.
_DOTTED = [2, 6]  # Bokeh's own dots lie so close that they make a line.
# What is marked: its steps, colour and dashes.
_MARKS = {
  "resumed": (run_history.History.resumes, _GREY, _DOTTED),
  "rewound": (run_history.History.rewinds, _RED, "solid"),
  "not a number": (run_history.History.lost_steps, _RED, "dashed"),
}
# Title, unit, field of a training line, and the scale.
_CURVES: tuple[tuple[str, str, str, Scale], ...] = (
  ("Loss", "nats per token", "loss", "linear"),
  ("Learning rate", "", "learning_rate", "linear"),
  ("Gradient norm", "global L2 norm", "gradient_norm", "log"),
  ("Speed", "tokens per second", "tokens_per_second", "linear"),
)


def thinned(
  x: jt.Num[np.ndarray, "K"], y: jt.Num[np.ndarray, "K"], *, most: int
) -> tuple[jt.Num[np.ndarray, "P"], jt.Num[np.ndarray, "P"]]:
  """At most `most` points, 4 or more, that look the same when drawn.

  The first, lowest, highest and last point of each stretch of the curve stay,
  so no spike is lost.
  """
  if len(x) <= most:
    return x, y
  kept = set[int]()
  edges = np.linspace(0, len(x), most // 4 + 1).astype(int)
  for low, high in itertools.pairwise(edges.tolist()):
    part = y[low:high]
    kept |= {low, low + int(part.argmin()), low + int(part.argmax()), high - 1}
  index = sorted(kept)
  return x[index], y[index]


def training(runs: Sequence[run_history.History]) -> list[Figure]:
  """Curves of the log by step; each figure has the curves of all runs.

  Those of a single run are named after what they are, others after their run.
  """
  figures = []
  for title, unit, field, scale in _CURVES:
    figure = _figure(title, unit, "step", y_axis_type=scale)
    for run, colour in zip(runs, _colours(runs), strict=True):
      name = run.name if len(runs) > 1 else None
      _draw_run(figure, run, field, colour, name=name)
    if figure.renderers:
      figures.append(figure)
  return figures


def short_names(names: Sequence[str]) -> list[str]:
  """Names of at most `_LONGEST_NAME` characters, which stay different.

  The parts that all of them begin or end with are left out first, then the
  middle. Names that are equal then get numbers.
  """
  if max(map(len, names), default=0) <= _LONGEST_NAME:
    return [*names]
  parts = [_SEPARATOR.split(name) for name in names]
  start = _num_common(parts)
  end = _num_common([part[start:][::-1] for part in parts])
  shorter = ["".join(part[start : len(part) - end]) for part in parts]
  if all(shorter):
    before = "…" if start else ""
    after = "…" if end else ""
    names = [f"{before}{name}{after}" for name in shorter]
  cut = [_without_middle(name) for name in names]
  if len({*cut}) < len(cut):
    cut = [f"{number}: {name}" for number, name in enumerate(cut, start=1)]
  return cut


def _num_common(names: Sequence[Sequence[str]]) -> int:
  """The number of parts that all names begin with; 0 for a single name."""
  if len(names) < 2:
    return 0
  at_each_place = zip(*names, strict=False)
  common = itertools.takewhile(lambda found: len({*found}) == 1, at_each_place)
  return sum(1 for _ in common)


def _without_middle(name: str) -> str:
  """A name, with an ellipsis in place of its middle if it is long."""
  if len(name) <= _LONGEST_NAME:
    return name
  half = _LONGEST_NAME // 2
  return f"{name[:half]}…{name[-half:]}"


def _draw_run(
  figure: Figure,
  run: run_history.History,
  field: str,
  colour: str,
  *,
  name: str | None,
) -> None:
  """The curve of one run, its validation, and where it was interrupted.

  Curves are named after their run if it has a `name`.
  """
  most = MOST_POINTS if name is None else MOST_POINTS // 4

  def legend(label: str) -> Style:
    return {"legend_label": label} if field == "loss" else {}

  x, y = run.training(field)
  if isinstance(figure.y_scale, models.LogScale):  # It has no place for zeros.
    is_shown = y > 0
    x = x[is_shown]
    y = y[is_shown]
  if len(x):
    style = legend(name or "training") | {"color": colour}
    x, y = thinned(x, y, most=most)
    _draw_curve(figure, x, y, style)
  if field == "loss":
    x, y = thinned(*run.validation(), most=most)
    if len(x):
      style = legend(name or "validation")
      style["color"] = colour if name else COLOURS[1]
      figure.line(x, y, line_dash=[6, 3], line_width=1.6, **style)
      figure.scatter(x, y, size=5, **style)
  for label, (steps_of, colour, dash) in _MARKS.items():
    steps = steps_of(run)
    if steps:
      style = legend(label) | {"color": colour, "line_dash": dash}
      figure.vspan(x=steps, line_width=1.3, **style)


def _draw_curve(
  figure: Figure,
  x: Sequence[float] | np.ndarray,
  y: Sequence[float | None] | np.ndarray,
  style: Style,
) -> None:
  """A line; a single point has none, and is marked."""
  figure.line(x, y, line_width=1.6, **style)
  if len(x) == 1:
    figure.scatter(x, y, size=6, **style)


def loss_by_memory(
  runs: Sequence[run_history.History],
) -> list[Figure]:
  """Loss at each memory length that was evaluated; no figure without any."""
  curves = [
    (label if len(runs) == 1 else f"{run.name}: {label}", curve)
    for run in runs
    for label, curve in run.loss_by_memory().items()
  ]
  if not curves:
    return []
  figure = _figure("Loss by memory length", "nats per token", "memory (tokens)")
  for (label, curve), colour in zip(curves, _colours(curves), strict=True):
    options: Style = {"color": colour, "legend_label": label}
    figure.line(*curve, line_width=1.6, **options)
    figure.scatter(*curve, size=7, **options)
  return [figure]


def effective_context(result: metrics_log.Json) -> list[Figure]:
  """Draws perplexity and gains by context from the content of `recl.json`."""
  contexts = result["contexts"]
  rows = result["models"]
  perplexity = _figure("Perplexity by context", "", "context (tokens)")
  gains = _figure(
    "Gain from a longer context", "%, hardest tokens", "context (tokens)"
  )
  hardest = min(result["recl"], key=lambda entry: entry["fraction"])
  for index, (row, colour) in enumerate(zip(rows, _colours(rows), strict=True)):
    options: Style = {"color": colour, "legend_label": row["name"]}
    _draw_curve(perplexity, contexts, row["perplexity"], options)
    relative = hardest["relative_gains"][index]
    percent = [None if gain is None else 100 * gain for gain in relative]
    _draw_curve(gains, contexts[:-1], percent, options)
  return [perplexity, gains]


def attention(result: metrics_log.Json) -> list[Figure]:
  """Draws distances of heads and shares of memory from `attention.json`."""
  layers = result["attending_layers"]
  reach = result["mean_distance"]  # [N, H]
  points = [
    (layer, distance)
    for layer, row in zip(layers, reach, strict=True)
    for distance in row
  ]
  distances = _figure("Mean distance of each head", "tokens", "layer")
  distances.scatter(*zip(*points, strict=True), size=9, color=COLOURS[0])
  shares = [100 * share for share in result["memory_share_by_layer"]]
  memory = _figure("Attention to memory", "%", "layer")
  bars = {"x": layers, "y": shares}
  memory.vbar(x="x", top="y", source=bars, width=0.7, color=COLOURS[0])
  for figure in (distances, memory):
    figure.xaxis.ticker = models.FixedTicker(ticks=layers)
  return [distances, memory]


def items(
  figures: Sequence[Figure],
) -> list[Mapping[str, object]]:
  """Figures as JSON, for `Bokeh.embed.embed_item`."""
  for figure in figures:
    hover = figure.select_one(models.HoverTool)
    hover.renderers = [
      drawn
      for drawn in figure.renderers
      if not isinstance(drawn.glyph, models.VSpan)  # It has no value.
    ]
    _widen_if_flat(figure)
    # Only now do legends exist. Bokeh warns of changing one that does not.
    for legend in [*figure.legend]:
      _place_below(figure, legend)
  return [embed.json_item(figure) for figure in figures]


def _widen_if_flat(figure: Figure) -> None:
  """Gives a constant a range of its size; Bokeh's is 2, whatever its size."""
  values = {
    value
    for drawn in figure.renderers
    for value in drawn.data_source.data.get("y", ())
    if value is not None and np.isfinite(value)
  }
  if len(values) == 1 and isinstance(figure.y_scale, models.LinearScale):
    (value,) = values
    figure.y_range.default_span = abs(float(value)) or 1.0


def _place_below(figure: Figure, legend: Any) -> None:
  """Moves a legend out of the figure, where it would hide curves.

  It has as many columns as a phone has room for.
  """
  named = [item for item in legend.items if item.label.value not in _MARKS]
  names = short_names([item.label.value for item in named])
  for item, name in zip(named, names, strict=True):
    item.label.value = name
  longest = max(len(item.label.value) for item in legend.items)
  num_columns = max(1, 320 // (45 + 7 * longest))
  num_rows = -(-len(legend.items) // num_columns)
  legend.update(
    background_fill_alpha=0.0,
    border_line_color=None,
    click_policy="hide",
    label_text_color=_GREY,
    label_text_font_size="11px",
    location="left",
    margin=0,
    ncols=num_columns,
    padding=2,
    spacing=8,
  )
  figure.center.remove(legend)
  figure.add_layout(legend, "below")
  figure.height += 10 + 26 * num_rows


def _figure(
  title: str, unit: str, x_label: str, *, y_axis_type: Scale = "auto"
) -> Figure:
  """An empty figure in the style of the page."""
  figure: Figure = plotting.figure(
    title=f"{title} ({unit})" if unit else title,
    height=270,
    sizing_mode="stretch_width",
    tools="pan,box_zoom,wheel_zoom,reset,save",
    active_drag=None,
    active_scroll=None,
    toolbar_location="above",
    background_fill_color=None,
    border_fill_color=None,
    outline_line_color=None,
    min_border_right=12,
    output_backend="canvas",
    y_axis_type=y_axis_type,
  )
  # Numbers as people write them: 20,000 and 0.0003, not 2e+4 and 3.000e-4.
  figure.xaxis.formatter = models.NumeralTickFormatter(format="0,0.[0000]")
  if y_axis_type != "log":
    figure.yaxis.formatter = models.NumeralTickFormatter(
      format="0,0.[00000000]"
    )
  figure.toolbar.logo = None
  figure.toolbar.autohide = True
  figure.title.update(text_color=_GREY, text_font_size="13px")
  figure.xaxis.axis_label = x_label
  figure.add_tools(
    models.HoverTool(
      tooltips=[("", "@x{0,0}: @y{%.4g}")], formatters={"@y": "printf"}
    )
  )
  figure.grid.grid_line_color = _GREY
  figure.grid.grid_line_alpha = 0.2
  for axis in figure.axis:
    axis.update(
      axis_label_text_color=_GREY,
      axis_label_text_font_size="12px",
      axis_label_text_font_style="normal",
      axis_line_color=_GREY,
      major_label_text_color=_GREY,
      major_tick_line_color=_GREY,
      minor_tick_line_color=None,
    )
  return figure


def _colours(items: Sequence[object]) -> list[str]:
  """A colour for each; of more than twenty, some have the same."""
  colours = COLOURS if len(items) <= len(COLOURS) else palettes.Category20_20
  return [colours[index % len(colours)] for index in range(len(items))]
