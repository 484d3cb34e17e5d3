"""Relative effective context length (paper, appendix C); `--mode=recl`.

The models of a group are compared on the tokens that are hardest for the best
of them. The effective length is the context beyond which their loss there stops
falling. Losses are measured with exactly c tokens of context, for each c of a
list.

Shapes: G models, C contexts, T tokens.
"""

import itertools
import os
from typing import Any
from typing import NamedTuple

import jaxtyping as jt
import numpy as np
from absl import logging

from transformer_xl import errors
from transformer_xl.analysis import context_losses
from transformer_xl.analysis import plotting
from transformer_xl.config import schema
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import units
from transformer_xl.model import transformer_xl


class Gains(NamedTuple):
  """Gain of each model from each context to the next, [G, C-1]."""

  relative: jt.Float[np.ndarray, "G C-1"]
  perplexity: jt.Float[np.ndarray, "G C-1"]  # Not normalised: figure 3.


def gains(losses: jt.Float[np.ndarray, "G C T"], *, fraction: float) -> Gains:
  """Gains of each model from c to the next c', relative to the group's best.

  The baseline is the lowest loss of the group at c. A model's loss at c' counts
  only where it is below the baseline, on the given fraction of tokens with the
  highest baseline.
  """
  count = max(1, round(fraction * losses.shape[2]))
  columns = []
  for now, later in itertools.pairwise(losses.swapaxes(0, 1)):
    baseline = now.min(axis=0)
    hardest = np.argsort(-baseline, kind="stable")[:count]
    before = np.exp(baseline[hardest].mean())
    after = np.minimum(baseline, later)[:, hardest]
    gained = before - np.exp(after.mean(axis=1))
    columns.append((gained / before, gained))
  return Gains(*np.moveaxis(np.array(columns), 0, -1))


def effective_length(
  relative: jt.Float[np.ndarray, "C-1"],
  contexts: list[int],
  *,
  threshold: float,
) -> tuple[int, bool]:
  """The first context whose next step gains less than the threshold, and True.

  Without one, the last context, a lower bound, and False.
  """
  below = np.flatnonzero(relative < threshold)
  return (contexts[below[0]], True) if len(below) else (contexts[-1], False)


def run(config: schema.ExperimentConfig, workdir: str) -> dict[str, Any]:
  """Compares the run with those of `config.analysis.group`.

  Returns:
    The content of `results/recl.json`; a figure and the losses lie beside it.

  Raises:
    UserError: the contexts are too few, the split is too short, or a model
      does not support the kind of context.
  """
  analysis = config.analysis
  start, step = analysis.context_start, analysis.context_step
  contexts = [*range(start, analysis.context_stop + 1, step)]
  if len(contexts) < 2:
    raise errors.UserError(
      f"there is no context to compare with {start}: analysis.context_stop="
      f"{analysis.context_stop} must be at least context_start + context_step "
      f"= {start + step}."
    )
  models, found = [], []
  for folder, group_config in [
    (workdir, config),
    *context_losses.group(config),
  ]:
    subject = evaluate.load(group_config, folder)
    found.append(context_losses.measure(subject, contexts))
    means = found[-1].mean(axis=1)
    models.append(
      {
        "name": os.path.basename(os.path.normpath(folder)),
        "workdir": folder,
        "checkpoint_step": subject.step,
        "num_parameters": transformer_xl.num_parameters(subject.params),
        "perplexity": [units.perplexity(float(nll)) for nll in means],
      }
    )
  losses = np.stack(found).astype(np.float64)
  result = {
    "made_by": plotting.made_by(),
    "split": config.eval.split,
    "context": analysis.context,
    "contexts": contexts,
    "num_tokens": losses.shape[2],
    "first_token": contexts[-1],
    "threshold": analysis.threshold,
    "models": models,
    "recl": [
      _entry(losses, fraction, contexts, threshold=analysis.threshold)
      for fraction in analysis.fractions
    ],
  }
  for entry in result["recl"]:
    for model, length, is_reached in zip(
      models, entry["recl"], entry["is_reached"], strict=True
    ):
      logging.info(
        "RECL at r = %g of %s: %s%d",
        entry["fraction"],
        model["name"],
        "" if is_reached else "at least ",
        length,
      )
  arrays = {"losses": losses.astype(np.float32), "contexts": contexts}
  plotting.write(workdir, "recl", result, {"recl": draw(result)}, **arrays)
  return result


def _entry(losses, fraction, contexts, *, threshold) -> dict[str, Any]:
  """Effective lengths for a fraction, in the order of the group."""
  found = gains(losses, fraction=fraction)
  ends = [
    effective_length(row, contexts, threshold=threshold)
    for row in found.relative
  ]
  return {
    "fraction": fraction,
    "recl": [length for length, _ in ends],
    "is_reached": [reached for _, reached in ends],
    "relative_gains": found.relative.tolist(),
    "perplexity_gains": found.perplexity.tolist(),
  }


def draw(result: dict[str, Any]) -> Any:
  """Plots perplexity and, for each r, gains by context (figures 3 and 4)."""
  entries, contexts = result["recl"], result["contexts"]
  figure, axes = plotting.new(
    width=2.6 * (len(entries) + 1), height=2.7, columns=len(entries) + 1
  )
  for index, model in enumerate(result["models"]):
    axes[0].plot(contexts, model["perplexity"], marker=".", label=model["name"])
    for entry, panel in zip(entries, axes[1:], strict=True):
      percent = 100 * np.array(entry["relative_gains"][index])
      panel.plot(contexts[:-1], percent, marker=".")
      if entry["is_reached"][index]:
        # Shift each model's dashes, so that equal lengths stay visible.
        style: Any = {"color": f"C{index}", "linestyle": (5 * index, (5, 5))}
        panel.axvline(entry["recl"][index], linewidth=1.2, **style)
  axes[0].set_title("all tokens", fontsize=9)
  axes[0].set_ylabel("perplexity")
  axes[0].legend(fontsize=8)
  step = contexts[1] - contexts[0]
  for entry, panel in zip(entries, axes[1:], strict=True):
    panel.axhline(100 * result["threshold"], color="grey", linewidth=0.8)
    panel.set_title(f"r = {entry['fraction']:g}", fontsize=9)
  axes[1].set_ylabel(f"gain from {step} more tokens (%)")
  for panel in axes:
    panel.set_xlabel("context length (tokens)")
  return figure
