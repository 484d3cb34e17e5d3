"""Relative effective context length (paper, appendix C); `--mode=recl`.

The models of a group are compared on the tokens that are hardest for the best
of them. The effective length is the context beyond which their loss there stops
falling. Losses are measured with exactly c tokens of context, for each c of a
list: no layer sees anything before the last c tokens. A window that starts at s
gives the losses of the tokens s+1, s+2, ..., each with all contexts up to its
length, so one pass over all starts covers every c. A model with absolute
positions reads at most as many tokens as in training, even where the context is
longer.

Shapes: G models, C contexts, T tokens.
"""

import itertools
from typing import NamedTuple

import jax
import jaxtyping as jt
import numpy as np
from absl import logging
from matplotlib import figure as figure_lib

from transformer_xl import errors
from transformer_xl.analysis import context_windows
from transformer_xl.analysis import group
from transformer_xl.analysis import plotting
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import settings as settings_lib
from transformer_xl.model import nats
from transformer_xl.model import network
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import trained_model

# As in appendix C of the paper: shares of the tokens, the hardest, that are
# compared, and the relative gain below which a longer context is useless.
FRACTIONS = (0.1, 0.5, 1.0)
THRESHOLD = 0.01


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
  relative: jt.Float[np.ndarray, "C-1"], contexts: list[int], threshold: float
) -> tuple[int, bool]:
  """The first context whose next step gains less than the threshold, and True.

  Without one, the last context, a lower bound, and False.
  """
  below = np.flatnonzero(relative < threshold)
  return (contexts[below[0]], True) if len(below) else (contexts[-1], False)


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError if a run of the group cannot be measured."""
  contexts = _contexts(config.analysis.contexts)
  for each in group.checked(config, workdir):
    _text_and_lengths(
      each.scoring,
      each.train,
      contexts,
      num_tokens=each.analysis.num_tokens,
    )


def _contexts(numbers: tuple[int, ...]) -> list[int]:
  """The lengths of context of `analysis.contexts` in tokens, at least two."""
  if len(numbers) != 3:
    raise errors.UserError(
      "analysis.contexts must be three numbers, the shortest context, the "
      f"longest and a step: they are {numbers}; set "
      "--config.analysis.contexts='(16,256,16)'."
    )
  shortest, longest, step = numbers
  contexts = [*range(shortest, longest + 1, step)]
  if len(contexts) < 2:
    raise errors.UserError(
      f"analysis.contexts={numbers} has no context to compare with {shortest}: "
      f"the longest must be at least {shortest} + {step}; set "
      f"--config.analysis.contexts='({shortest},{shortest + step},{step})'."
    )
  return contexts


def _text_and_lengths(
  scoring: schema.Scoring,
  train: schema.TrainConfig,
  contexts: list[int],
  *,
  num_tokens: int,
) -> tuple[token_file.TokenFile, jt.Int[np.ndarray, "C"]]:
  """The split that a model is measured on, and what it reads of it.

  Returns:
    The split, and how many tokens are read for each context. A model that
    counts from the start of a segment was not trained on positions beyond what
    it read at a time.

  Raises:
    UserError: the split is too short, or the model cannot read so many tokens.
  """
  lengths = np.array(contexts)
  encoding = encodings.of(scoring.model)
  if encoding.counts_from_segment:
    lengths = np.minimum(lengths, segment_lengths.longest_read(train))
  encoding.check_segment_len(scoring.model, int(lengths.max()))
  longest = contexts[-1]
  needed = 2 * longest + num_tokens
  split = scoring.eval.split
  file = token_file.open_split(scoring.data.dataset_dir, split)
  if len(file.tokens) < needed:
    raise errors.UserError(
      f"analysis.num_tokens={num_tokens} with contexts up to {longest} needs "
      f"{needed} tokens and {split} has {len(file.tokens)}; lower one of them."
    )
  return file, lengths


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Compares the run with those of `config.analysis.group`.

  Returns the content of `results/recl.json`; a figure and the losses lie beside
  it.

  Raises:
    UserError: the contexts are too few, the split is too short, or a model
      cannot read so many tokens.
  """
  contexts = _contexts(config.analysis.contexts)
  models = []
  found = []
  names = group.names(config.analysis.group, workdir)
  for folder, each in group.configurations(config, workdir):
    subject = evaluate.load(each, folder)
    nll, length = measure(subject, contexts)
    found.append(nll)
    means = nll.mean(axis=1)
    models.append(
      {
        "name": names[folder],
        "workdir": folder,
        "checkpoint_step": subject.step,
        "settings": settings_lib.of_data(
          subject.config.scoring, segment_len=length, mem_len=0
        ),
        "num_parameters": network.num_parameters(subject.params),
        "perplexity": [nats.perplexity(float(mean)) for mean in means],
      }
    )
  losses = np.stack(found).astype(np.float64)
  result = {
    "made_by": plotting.made_by(),
    "dataset": config.data.name,
    "split": config.eval.split,
    "contexts": contexts,
    "num_tokens": losses.shape[2],
    "first_token": contexts[-1],
    "threshold": THRESHOLD,
    "models": models,
    "recl": [_entry(losses, fraction, contexts) for fraction in FRACTIONS],
  }
  for entry in result["recl"]:
    for index, model in enumerate(models):
      bound = "" if entry["is_reached"][index] else "at least "
      logging.info(
        "RECL at r = %g of %s: %s%d",
        entry["fraction"],
        model["name"],
        bound,
        entry["recl"][index],
      )
  plotting.write(
    workdir,
    "recl",
    result,
    {"recl": draw(result)},
    losses=losses.astype(np.float32),
    contexts=contexts,
  )
  return result


def _entry(
  losses: jt.Float[np.ndarray, "G C T"], fraction: float, contexts: list[int]
) -> metrics_log.Json:
  """Effective lengths for a fraction, in the order of the group."""
  found = gains(losses, fraction=fraction)
  ends = [effective_length(row, contexts, THRESHOLD) for row in found.relative]
  return {
    "fraction": fraction,
    "recl": [length for length, _ in ends],
    "is_reached": [reached for _, reached in ends],
    "relative_gains": found.relative.tolist(),
    "perplexity_gains": found.perplexity.tolist(),
  }


def measure(
  subject: trained_model.TrainedModel, contexts: list[int]
) -> tuple[jt.Float[np.ndarray, "C T"], int]:
  """Losses of the tokens after the longest context, in nats.

  Returns:
    The losses, and the most tokens that the model has read for one of them.

  Raises:
    UserError: the split is too short, or the model cannot read so many tokens.
  """
  config = subject.config
  count = config.analysis.num_tokens
  file, lengths = _text_and_lengths(
    config.scoring, config.train, contexts, num_tokens=count
  )
  longest = contexts[-1]
  wanted, columns = np.unique(lengths, return_inverse=True)
  with jax.set_mesh(subject.mesh):
    found = context_windows.losses(
      subject,
      file,
      np.arange(longest + count - wanted[0]),
      length=int(wanted[-1]),
      wanted=wanted - 1,
    )
  tokens = longest + np.arange(count)
  losses = found[tokens - lengths[:, None], columns[:, None]]
  return losses, int(lengths.max())


@plotting.in_style
def draw(result: metrics_log.Json) -> figure_lib.Figure:
  """Plots perplexity and, for each r, gains by context (figures 3 and 4)."""
  entries = result["recl"]
  contexts = result["contexts"]
  columns = len(entries) + 1
  figure, axes = plotting.subplots(1, columns, figsize=(2.6 * columns, 3.1))
  for index, model in enumerate(result["models"]):
    axes[0].plot(contexts, model["perplexity"], marker=".", label=model["name"])
    for entry, panel in zip(entries, axes[1:], strict=True):
      percent = 100 * np.array(entry["relative_gains"][index])
      panel.plot(contexts[:-1], percent, marker=".")
      if entry["is_reached"][index]:
        # Shift each model's dashes, so that equal lengths stay visible.
        panel.axvline(
          entry["recl"][index],
          linewidth=1.2,
          color=f"C{index}",
          linestyle=(5 * index, (5, 5)),
        )
  axes[0].set_title("all tokens", fontsize=9)
  axes[0].set_ylabel("perplexity")
  # Below the panels, since names may be longer than one is wide.
  figure.legend(loc="outside lower center", fontsize=8, ncols=2)
  step = contexts[1] - contexts[0]
  for entry, panel in zip(entries, axes[1:], strict=True):
    panel.axhline(100 * result["threshold"], color="grey", linewidth=0.8)
    panel.set_title(f"r = {entry['fraction']:g}", fontsize=9)
  axes[1].set_ylabel(f"gain from {step} more tokens (%)")
  for panel in axes:
    panel.set_xlabel("context length (tokens)")
  return figure
