"""Where every evaluation starts: `--mode=eval`.

A checkpoint is loaded and scores a split with fixed parameters, once for each
memory length and temperature. If `config.eval` turns on dynamic evaluation or a
neural cache, the split is scored again with them (docs/dynamic.md). Results
with and without them are kept apart.
"""

import dataclasses
import itertools
from collections.abc import Iterable

import jax
from absl import logging

from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.evaluation import cards as cards_lib
from transformer_xl.evaluation import evaluator as evaluator_lib
from transformer_xl.evaluation.dynamic import evaluator as dynamic
from transformer_xl.model import network
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import params_reader
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model


def run(config: schema.ExperimentConfig, workdir: str) -> list[cards_lib.Card]:
  """Evaluates a checkpoint.

  Returns:
    One card for each memory length and temperature, then those of dynamic
    evaluation and cache, if any. They are also written to
    `results/eval_<split>.json` and `results/dynamic_<split>.json`, and added to
    `results/cards.jsonl`, which keeps those of earlier calls.

  Raises:
    UserError: the checkpoint cannot be loaded, or the data do not suit it.
  """
  evaluation = _within_split(config.scoring)
  config = load_lib.replaced(config, {"eval": evaluation})
  model = load(config, workdir)
  static = evaluate(model)
  split = model.config.eval.split
  cards_lib.keep(workdir, f"eval_{split}", {"cards": static})
  if not dynamic.adapts(model.config.eval):
    return static

  adapted = evaluate(model, adapts=True)
  result = {"static": static, "cards": adapted}
  cards_lib.keep(workdir, f"dynamic_{split}", result)
  return static + adapted


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError if the data have no such split, or it cannot be read."""
  del workdir
  token_file.open_split(config.data.dataset_dir, config.eval.split)
  encodings.of(config.model).check_segment_len(
    config.model, config.eval.read_len
  )


def check_run(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError if a finished run cannot be evaluated."""
  check(config, workdir)
  config = _with_vocabulary(config, workdir)
  trained_model.make_mesh(config.model, config.mesh)
  params_reader.restore(
    workdir,
    which=params_reader.chosen(config.eval),
    target=network.abstract_params(config.model),
    only_check=True,
    base=config.train.init_from,
  )


def load(
  config: schema.ExperimentConfig, workdir: str
) -> trained_model.TrainedModel:
  """Loads the checkpoint that `config.eval` names.

  Raises:
    UserError: it was trained with another vocabulary than the data have, or it
      cannot be loaded.
  """
  config = _with_vocabulary(config, workdir)
  model = trained_model.load(config, workdir)
  logging.info("%s", mesh_lib.describe(model.mesh, config.eval.batch_size))
  return model


def _within_split(scoring: schema.Scoring) -> schema.EvalConfig:
  """Cuts memories, caches and warm-ups that are longer than the split.

  Arrays are as long as the memory: a length with some zeros too many would
  need more of the device than it has. A memory that starts with zeros, which
  are attended to, is full from the start, and each length has other losses.
  """
  evaluation = scoring.eval
  split = evaluation.split
  file = token_file.open_split(scoring.data.dataset_dir, split)
  longest = max(1, len(file.tokens) - 1)
  if evaluation.cache.size > longest:
    _warn_of_cut("eval.cache.size", evaluation.cache.size, split, longest)
    cache = dataclasses.replace(evaluation.cache, size=longest)
    evaluation = dataclasses.replace(evaluation, cache=cache)
  if evaluation.warmup_len > longest:
    _warn_of_cut("eval.warmup_len", evaluation.warmup_len, split, longest)
    evaluation = dataclasses.replace(evaluation, warmup_len=longest)
  is_full = scoring.model.memory_start == "zeros"
  if not is_full and max(evaluation.mem_len) > longest:
    _warn_of_cut("eval.mem_len", max(evaluation.mem_len), split, longest)
    cut = dict.fromkeys(min(length, longest) for length in evaluation.mem_len)
    evaluation = dataclasses.replace(evaluation, mem_len=tuple(cut))
  return evaluation


def _warn_of_cut(name: str, length: int, split: str, longest: int) -> None:
  logging.warning(
    "%s=%s is longer than the %s split, which has %d tokens before the last "
    "one; it is evaluated with %d.",
    name,
    length,
    split,
    longest,
    longest,
  )


def _with_vocabulary(
  config: schema.ExperimentConfig, workdir: str
) -> schema.ExperimentConfig:
  """Takes the size of the data's vocabulary, which has to be the run's."""
  run_record.check_vocabulary(config.data.dataset_dir, workdir)
  meta = token_file.read_meta(config.data.dataset_dir)
  return load_lib.with_vocab_size(config, meta)


def evaluate(
  model: trained_model.TrainedModel, *, adapts: bool = False
) -> list[cards_lib.Card]:
  """Scores `eval.split`: a card for each memory length and setting.

  Args:
    model: scores the split.
    adapts: with dynamic evaluation and cache, as `config.eval` sets them;
      otherwise with fixed parameters alone.
  """
  evaluation = model.config.eval
  if not adapts:  # Otherwise it was said before.
    trained_model.warn_of_untrained_segments(
      model.config.model,
      model.config.train,
      segment_len=evaluation.read_len,
      mem_len=max(evaluation.mem_len),
    )
  cards = []
  settings = itertools.product(evaluation.mem_len, evaluation.temperature)
  with jax.set_mesh(model.mesh):
    for mem_len, temperature in settings:
      changes = {"eval.temperature": (temperature,)}
      config = load_lib.replaced(model.config, changes)
      scores: Iterable[tuple[evaluator_lib.Score, metrics_log.Json]]
      if adapts:
        adaptive = dynamic.DynamicEvaluator(
          config.scoring, model.mesh, mem_len=mem_len
        )
        file = adaptive.stream.file
        scores = adaptive.each_setting(model.params)
      else:
        evaluator = evaluator_lib.Evaluator(
          config.scoring, model.mesh, mem_len=mem_len
        )
        file = evaluator.stream.file
        scores = [(evaluator(model.params), {})]
      for score, adaptation in scores:
        card = cards_lib.make(
          model._replace(config=config), score, file, mem_len
        )
        card |= adaptation
        cards_lib.log(card)
        cards.append(card)
  warning = vocabulary_lib.unknown_warning(
    cards[0]["unknown_share"] or 0.0, of=f"the {evaluation.split} split"
  )
  if warning and not adapts:
    logging.warning("%s", warning)
  is_compared = adapts or len(evaluation.temperature) > 1
  if is_compared and len(cards) > 1:
    cards_lib.log_best(cards)
  return cards
