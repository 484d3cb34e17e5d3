"""Curves of several runs in one picture, and their loss by memory length."""

from collections.abc import Sequence
from typing import Any

from matplotlib import figure as figure_lib

from transformer_xl import storage
from transformer_xl.analysis import plotting
from transformer_xl.workdir import run_history


def compare(workdirs: Sequence[str], workdir: str) -> dict[str, Any]:
  """Compares runs by what they have logged, without loading a model.

  Writes `results/compare.json`, `.md` and `.png`; returns the JSON's content.

  Raises:
    UserError: a run has no configuration, or a damaged one.
  """
  runs = run_history.read_all(workdirs)
  summaries = [measure(run) for run in runs]
  result = {
    "made_by": plotting.made_by(),
    "runs": summaries,
    "differences": run_history.differences(runs),
  }
  plotting.write(
    workdir,
    "compare",
    result,
    {"compare": draw(runs)},
    table=table(summaries),
  )
  storage.publish(workdir)
  return result


def measure(run: run_history.History) -> dict[str, Any]:
  """The newest losses of a run, and its curves as pairs."""
  loss = run.training("loss")
  validation = run.validation()
  return {
    "name": run.name,
    "workdir": run.workdir,
    "step": int(loss.x[-1]) if len(loss.x) else None,
    "loss": float(loss.y[-1]) if len(loss.y) else None,
    "validation": _points(validation),
    "best_validation": float(validation.y.min()) if len(validation.y) else None,
    "loss_by_memory": {
      label: _points(curve) for label, curve in run.loss_by_memory().items()
    },
  }


def _points(curve: run_history.Curve) -> list[list[float]]:
  pairs = zip(curve.x.tolist(), curve.y.tolist(), strict=True)
  return [[x, y] for x, y in pairs]


def table(summaries: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
  """The newest training loss of each run, and its best validation loss."""
  lines = []
  for run in summaries:
    cells = {"run": run["name"]}
    for head in ("step", "loss", "best_validation"):
      value = run[head]
      form = "," if head == "step" else ".6g"
      cells[head.replace("_", " ")] = "" if value is None else f"{value:{form}}"
    lines.append(cells)
  return lines


@plotting.in_style
def draw(runs: Sequence[run_history.History]) -> figure_lib.Figure:
  """Plots training loss, validation loss, and loss by memory length."""
  figure, panels = plotting.subplots(1, 3, figsize=(10.5, 3.2))
  training, validation, memory = panels
  for index, run in enumerate(runs):
    style: Any = {"color": f"C{index}", "label": run.name}
    training.plot(*run.training("loss"), linewidth=1.0, **style)
    validation.plot(*run.validation(), marker=".", **style)
    for number, (label, curve) in enumerate(run.loss_by_memory().items()):
      style = {"color": f"C{index}", "label": f"{run.name}: {label}"}
      line = ("-", "--", ":", "-.")[number % 4]
      memory.plot(*curve, marker=".", linestyle=line, **style)
  for panel, title in zip(panels, ("training", "validation", ""), strict=True):
    panel.set_title(title, fontsize=9)
    panel.set_xlabel("step" if title else "memory length (tokens)")
    if panel.lines:
      panel.legend(fontsize=7)
  training.set_ylabel("loss (nats per token)")
  return figure
