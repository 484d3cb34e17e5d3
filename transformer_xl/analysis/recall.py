"""Recall: over which distance a model's answers are right; `--mode=recall`.

The text is one of the synthetic tasks (data_prep/synthetic), in which some
tokens are answers whose evidence lies at a known distance. An answer is right
if it is the likeliest token there. Runs that exist are compared: the run itself
and those of `config.analysis.group`, with a curve of right answers by distance
for each length of their `eval.mem_len`. A study of such a task (study.py)
measures its rows by the same functions.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jaxtyping as jt
import numpy as np
from absl import logging
from matplotlib import figure as figure_lib

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.analysis import group
from transformer_xl.analysis import plotting
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import per_token
from transformer_xl.evaluation import settings as settings_lib
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import network
from transformer_xl.model import pattern
from transformer_xl.model import reader as reader_lib
from transformer_xl.model import visibility
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import trained_model


class Guess(NamedTuple):
  """What a model expects in the place of each token."""

  nll: shapes.Losses  # Of the token, in nats.
  likeliest: shapes.Tokens


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError if the split has no answers, or a run cannot read it."""
  open_answers(config.data.dataset_dir, config.eval.split)
  for each in group.checked(config, workdir):
    evaluate.check(each, workdir)


def open_answers(
  dataset_dir: str, split: str
) -> tuple[token_file.TokenFile, token_file.Answers]:
  """A split, and the answers among its tokens.

  Raises:
    UserError: there are none.
  """
  file = token_file.open_split(dataset_dir, split)
  if file.answers is None or not len(file.answers.positions):
    names = ", ".join(registry.tasks)
    raise errors.UserError(
      f"right answers are known for the tasks of data_prep ({names}), and "
      f"{split} of {dataset_dir} has none; set --config.data.name, or prepare "
      "the task again if an older version made it."
    )
  return file, file.answers


class Scale(NamedTuple):
  """The distances of a split's answers, in bins, near ones first.

  Attributes:
    bins: indices of the answers in each bin.
    distances: the shortest and the longest distance in each bin.
    num_answers: the number of answers in each bin.
    chance: the share of right answers of a guess among all answers.
  """

  bins: list[jt.Int[np.ndarray, "?"]]
  distances: list[list[int]]
  num_answers: list[int]
  chance: float


def scale(file: token_file.TokenFile, answers: token_file.Answers) -> Scale:
  """The distances of the answers in a split."""
  bins = by_distance(answers.distances)
  ends = [
    [int(answers.distances[one].min()), int(answers.distances[one].max())]
    for one in bins
  ]
  return Scale(
    bins=bins,
    distances=ends,
    num_answers=[len(one) for one in bins],
    chance=1 / len(np.unique(file.tokens[answers.positions])),
  )


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Measures the run and those of `config.analysis.group`.

  Returns the content of `results/recall.json`; a table and a figure lie beside
  it.

  Raises:
    UserError: the split has no answers.
  """
  split = config.eval.split
  file, answers = open_answers(config.data.dataset_dir, split)
  distances = scale(file, answers)
  result: metrics_log.Json = {
    "made_by": plotting.made_by(),
    "dataset": config.data.name,
    "split": split,
    "chance": distances.chance,
    "distances": distances.distances,
    "num_answers": distances.num_answers,
    "curves": [],
  }
  names = group.names(config.analysis.group, workdir)
  for folder, each in group.configurations(config, workdir):
    model = evaluate.load(each, folder)
    for mem_len in model.config.eval.mem_len:
      guesses = guess(model, mem_len, warmup_len=distances.distances[-1][1])
      curve = {
        "name": names[folder],
        "workdir": folder,
        "checkpoint_step": model.step,
        "num_parameters": network.num_parameters(model.params),
        "num_layers": model.config.model.num_layers,
        **settings_lib.of_evaluation(model.config.scoring, mem_len),
        "reach": reach(model.config.model, model.config.eval, mem_len),
        **right_answers(guesses, file, answers, distances.bins),
      }
      result["curves"].append(curve)
      logging.info(
        "%s, memory %s: at least half of the answers are right up to a "
        "distance of %d",
        curve["name"],
        settings_lib.memory_text(curve),
        answers_up_to(result, curve),
      )
  plotting.write(
    workdir, "recall", result, {"recall": draw(result)}, table=table(result)
  )
  return result


def guess(
  subject: trained_model.TrainedModel, mem_len: int, *, warmup_len: int
) -> Guess:
  """What a model expects for each token of the split but the first, in order.

  Lanes read `warmup_len` tokens first, unless `eval.warmup_len` says how many.
  """
  config = subject.config
  if config.eval.warmup_len < 0:
    config = load.replaced(config, {"eval.warmup_len": warmup_len})
    subject = subject._replace(config=config)
  return per_token.read(subject, mem_len=mem_len, read_segment=_guess_segment)


def _guess_segment(
  reader: reader_lib.TokenReader,
  frozen: shapes.PyTree,
  state: shapes.PyTree,
  segment: segment_lib.Segment[jax.Array],
) -> tuple[shapes.PyTree, Guess]:
  """Reads one segment: the next state, and guesses [B, U]."""
  targets = segment.targets
  hidden, state = reader.read(frozen, state, segment.inputs, segment.resets)
  hidden = hidden[:, -targets.shape[1] :]
  head = reader.head(frozen)
  _, best = adaptive_softmax.top_k(hidden, head, 1)
  nll = adaptive_softmax.nll(hidden, targets, head)
  return state, Guess(nll, best[..., 0])


def by_distance(
  distances: jt.Int[np.ndarray, "Q"],
) -> list[jt.Int[np.ndarray, "?"]]:
  """Indices of answers in bins of a quarter of an octave, near ones first.

  The last bin ends with the longest distance.
  """
  bins = np.ceil(4 * np.log2(distances / distances.max()))
  return [np.flatnonzero(bins == one) for one in np.unique(bins)]


def right_answers(
  guesses: Guess,
  file: token_file.TokenFile,
  answers: token_file.Answers,
  bins: list[np.ndarray],
) -> dict[str, list[float]]:
  """The share of right answers and their mean loss, in each bin of answers.

  `guesses` are for all tokens but the first, and each bin has indices [?].
  """
  nll, likeliest = (array[answers.positions - 1] for array in guesses)
  is_right = likeliest == file.tokens[answers.positions]
  return {
    "accuracy": [float(is_right[one].mean()) for one in bins],
    "nll": [float(nll[one].mean(dtype=np.float64)) for one in bins],
  }


def answers_up_to(result: metrics_log.Json, curve: metrics_log.Json) -> int:
  """The distance up to which at least half of the answers are right, or 0."""
  pairs = zip(result["distances"], curve["accuracy"], strict=True)
  right = itertools.takewhile(lambda pair: pair[1] >= 0.5, pairs)
  return max((longest for (_, longest), _ in right), default=0)


def reach(
  model: schema.ModelConfig, evaluation: schema.EvalConfig, mem_len: int
) -> int | None:
  """Tokens back to the farthest on which a query's guess can depend.

  The last query of a segment reaches through the memory of each layer, a
  compressed slot counting as the states that it is made of. What the memory of
  an upper layer holds was computed in segments, so it counts in whole ones.
  With `same_length`, each layer adds its window instead. Resets at documents,
  which can only shorten it, are left out. None: there is no such limit, as for
  the state of a recurrent network, or none that a formula gives, as for slots
  in a window.
  """
  if model.num_memory_tokens:
    return None
  # The tokens that are read at once; without memory, the context is.
  segment_len = evaluation.read_len
  lengths = []
  windows = []
  for layer in pattern.all_layers(model):
    held_len = layer.mem_len(mem_len)
    held = layer.mixer.remembered_tokens(model, held_len)
    if held is None:
      return None
    lengths.append(held)
    is_whole = model.same_length_window == "mem_len_plus_one"
    windows.append(held_len if is_whole else held_len - 1)
  if visibility.has_window(mem_len, same_length=evaluation.same_length):
    has_slots = any(
      not layer.mixer.keys_are_tokens for layer in pattern.all_layers(model)
    )
    return None if has_slots else sum(windows)
  whole = sum(math.ceil(length / segment_len) for length in lengths[1:])
  return segment_len - 1 + lengths[0] + whole * segment_len


def table(result: metrics_log.Json) -> list[dict[str, str]]:
  """Right answers in per cent, a row for each curve."""
  rows = []
  for curve in result["curves"]:
    cells = {
      "model": curve["name"],
      "segment": str(curve["segment_len"]),
      "memory": settings_lib.memory_text(curve),
      "half right up to": str(answers_up_to(result, curve)),
    }
    for ends, share in zip(result["distances"], curve["accuracy"], strict=True):
      distances = "-".join(map(str, sorted({*ends})))
      cells[distances] = f"{100 * share:.0f}"
    rows.append(cells)
  return rows


@plotting.in_style
def draw(result: metrics_log.Json) -> figure_lib.Figure:
  """Plots accuracy by distance, and where each `reach` ends."""
  figure, axes = plotting.subplots(figsize=(6.5, 3.4))
  middles = [math.sqrt(low * high) for low, high in result["distances"]]
  for curve in result["curves"]:
    label = f"{curve['name']}, memory {settings_lib.memory_text(curve)}"
    percent = 100 * np.array(curve["accuracy"])
    axes.plot(middles, percent, ".-", label=label)
  ends = {curve["reach"] for curve in result["curves"]}
  for end in ends & {*range(result["distances"][-1][1])}:
    axes.axvline(end, linestyle="--", color="grey", linewidth=0.8)
  label = "memory of all layers + segment"
  axes.plot([], [], "--", label=label, color="grey", linewidth=0.8)
  chance = 100 * result["chance"]
  axes.axhline(chance, label="chance", color="grey", linewidth=0.8)
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_formatter("{x:.0f}")
  axes.set_xlabel("distance of the evidence (tokens)")
  axes.set_ylabel("right answers (%)")
  axes.set_ylim(0, 103)
  axes.legend(fontsize=7)
  return figure
