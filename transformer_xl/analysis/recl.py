"""Relative effective context length (paper, appendix C); `--mode=recl`.

The models of a group are compared on the tokens that are hardest for the best
of them. The effective length is the context beyond which their loss there stops
falling. Losses are measured with exactly c tokens of context, for each c of a
list.

Shapes: G models, C contexts, T tokens.
"""

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
from transformer_xl.evaluation import units

GroupLosses = jt.Float[np.ndarray, "G C T"]


class Gains(NamedTuple):
  """Gain of each model from each context to the next, [G, C-1]."""

  relative: jt.Float[np.ndarray, "G C-1"]
  perplexity: jt.Float[np.ndarray, "G C-1"]  # Not normalised: figure 3.


def gains(losses: GroupLosses, *, fraction: float) -> Gains:
  """Gains of each model from c to the next c', relative to the group's best.

  The baseline is the lowest loss of the group at c. A model's loss at c' counts
  only where it is below the baseline, on the given fraction of tokens with the
  highest baseline.
  """
  num_models, num_contexts, num_tokens = losses.shape
  count = max(1, round(fraction * num_tokens))
  shape = (num_models, num_contexts - 1)
  result = Gains(np.empty(shape), np.empty(shape))
  for index in range(num_contexts - 1):
    baseline = losses[:, index].min(axis=0)
    hardest = np.argsort(-baseline, kind="stable")[:count]
    before = np.exp(baseline[hardest].mean())
    after = np.minimum(baseline, losses[:, index + 1])[:, hardest]
    gained = before - np.exp(after.mean(axis=1))
    result.perplexity[:, index] = gained
    result.relative[:, index] = gained / before
  return result


def effective_length(
  relative: jt.Float[np.ndarray, "C-1"],
  contexts: list[int],
  *,
  threshold: float,
) -> tuple[int, bool]:
  """The first context whose next step gains less than the threshold.

  Returns:
    That context and True; or the last context, a lower bound, and False.
  """
  below = np.flatnonzero(relative < threshold)
  if len(below):
    return contexts[int(below[0])], True
  return contexts[-1], False


def run(config: schema.ExperimentConfig, workdir: str) -> dict[str, Any]:
  """Compares the run with those of `config.analysis.group`.

  Returns:
    The content of `results/recl.json`; a figure and the losses lie beside it.

  Raises:
    UserError: the contexts are too few, the split is too short, or a model
      does not support the kind of context.
  """
  contexts = _contexts(config.analysis)
  runs = [(workdir, config), *context_losses.group(config)]
  found = [
    context_losses.run_losses(run_config, folder, contexts=contexts)
    for folder, run_config in runs
  ]
  losses = np.stack([one.losses for one in found]).astype(np.float64)
  result = {
    "made_by": plotting.made_by(),
    "split": config.eval.split,
    "context": config.analysis.context,
    "contexts": contexts,
    "num_tokens": losses.shape[2],
    "first_token": found[0].first_token,
    "threshold": config.analysis.threshold,
    "models": [
      {
        "name": os.path.basename(os.path.normpath(folder)),
        "workdir": folder,
        "checkpoint_step": one.step,
        "num_parameters": one.num_parameters,
        "perplexity": [
          units.perplexity(float(nll)) for nll in one.losses.mean(axis=1)
        ],
      }
      for (folder, _), one in zip(runs, found, strict=True)
    ],
    "recl": _lengths(losses, contexts, config.analysis),
  }
  _log(result)
  arrays = {"losses": losses.astype(np.float32), "contexts": contexts}
  plotting.write(workdir, "recl", result, {"recl": draw(result)}, **arrays)
  return result


def _contexts(analysis: schema.AnalysisConfig) -> list[int]:
  start, step = analysis.context_start, analysis.context_step
  contexts = list(range(start, analysis.context_stop + 1, step))
  if len(contexts) < 2:
    raise errors.UserError(
      f"there is no context to compare with {start}: analysis.context_stop="
      f"{analysis.context_stop} must be at least context_start + context_step "
      f"= {start + step}."
    )
  return contexts


def _lengths(losses, contexts, analysis) -> list[dict[str, Any]]:
  """Effective lengths for each fraction, in the order of the group."""
  results = []
  for fraction in analysis.fractions:
    found = gains(losses, fraction=fraction)
    ends = [
      effective_length(row, contexts, threshold=analysis.threshold)
      for row in found.relative
    ]
    results.append(
      {
        "fraction": fraction,
        "recl": [length for length, _ in ends],
        "is_reached": [reached for _, reached in ends],
        "relative_gains": found.relative.tolist(),
        "perplexity_gains": found.perplexity.tolist(),
      }
    )
  return results


def _log(result: dict[str, Any]) -> None:
  for entry in result["recl"]:
    for index, model in enumerate(result["models"]):
      logging.info(
        "RECL at r = %g of %s: %s%d",
        entry["fraction"],
        model["name"],
        "" if entry["is_reached"][index] else "at least ",
        entry["recl"][index],
      )


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
        dashes: Any = (5 * index, (5, 5))
        panel.axvline(
          entry["recl"][index],
          color=f"C{index}",
          linewidth=1.2,
          linestyle=dashes,
        )
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
