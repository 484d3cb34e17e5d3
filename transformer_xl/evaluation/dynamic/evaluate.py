"""Dynamic evaluation and neural cache, reported separately from static results.

`--mode=eval` first scores a split with fixed parameters. If `config.eval` turns
on dynamic evaluation or a neural cache, it scores the split again with them,
once per setting, and writes those results to a separate file
(docs/dynamic.md).
"""

import itertools
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation.dynamic import gradient
from transformer_xl.evaluation.dynamic import neural_cache
from transformer_xl.evaluation.dynamic import scorer
from transformer_xl.evaluation.dynamic import update


class AdaptiveEvaluator:
  """Scores a split at one memory length and temperature.

  It compiles once for all settings of dynamic evaluation and cache.
  """

  def __init__(
    self,
    config: schema.ExperimentConfig,
    mesh: jax.sharding.Mesh,
    *,
    mem_len: int,
    temperature: float = 1.0,
  ):
    evaluation = config.eval
    self._config, self._mesh = config, mesh
    self._stream = evaluate.open_stream(
      config, split=evaluation.split, mem_len=mem_len
    )
    self.file = self._stream.file
    self._scorer = scorer.AdaptiveScorer(
      config, mesh, mem_len=mem_len, temperature=temperature
    )
    numbers = np.array(_mixtures(evaluation.cache), np.float32)
    self._mixtures = neural_cache.Mixture(*numbers.T)
    self._mean_squares: shapes.PyTree = None
    self._is_compiled = False

  def __call__(
    self, params: shapes.PyTree, rule: update.Rule
  ) -> list[evaluate.Score]:
    """Scores the whole split under one rule and each mixture of the cache."""
    count = self._config.eval.segments_per_call
    steps, sums = self._steps(params, rule), []
    if not self._is_compiled:
      # A call past the end scores nothing; its state is discarded.
      state = self._scorer.start(params)
      self._score_chunk(state, params, steps, self._num_steps)
      self._is_compiled = True
    state = self._scorer.start(params)
    start = time.perf_counter()
    for step in range(0, self._num_steps, count):
      state, chunk = self._score_chunk(state, params, steps, step)
      sums.append(chunk)
    sums = jax.device_get(sums)
    seconds = time.perf_counter() - start
    nll = sum(chunk.nll.sum((0, 1), dtype="float64") for chunk in sums)
    tokens = sum(chunk.num_tokens.sum(dtype="float64") for chunk in sums)
    return [evaluate.Score(float(n), round(tokens), seconds) for n in nll]

  @property
  def _num_steps(self) -> int:
    return self._stream.num_steps

  def _steps(self, params, rule) -> update.Steps | None:
    evaluation = self._config.eval
    kind = evaluation.dynamic.kind
    if kind == "none":
      return None
    if kind == "sgd":
      return self._scorer.steps(rule, params)
    if self._mean_squares is None:
      stream = streams.TrainStream(
        token_file.open_split(self._config.data.dataset_dir, "train"),
        num_lanes=evaluation.batch_size,
        segment_len=evaluation.segment_len,
        resets=streams.reset_rule(self._config),
        rotate=False,
        seed=0,
        context_len=evaluation.context_len,
      )
      self._mean_squares = self._scorer.mean_squares(
        params,
        self._scorer.start(params),
        self._segments(stream, 0, evaluation.dynamic.statistics_segments),
      )
    return self._scorer.steps(rule, self._mean_squares)

  def _score_chunk(self, state, params, steps, step):
    count = self._config.eval.segments_per_call
    texts = gradient.TextSegment(
      self._segments(self._stream, step, count),
      jnp.asarray(self._stream.is_text(step, count)),
    )
    return self._scorer.score(state, params, steps, self._mixtures, texts)

  def _segments(self, stream, step, count):
    return streams.device_segments(
      stream, step, count, mesh_lib.segments(self._mesh)
    )


def run(config: schema.ExperimentConfig, workdir: str) -> list[dict]:
  """Evaluates a checkpoint (`--mode=eval`).

  Returns:
    The cards of static evaluation, then those written to
    `results/dynamic_<split>.json`, if any.
  """
  subject = evaluate.load(config, workdir)
  static = evaluate.evaluate_loaded(subject, workdir)
  if config.eval.dynamic.kind == "none" and not config.eval.cache.size:
    return static
  config, cards = subject.config, []
  with jax.set_mesh(subject.mesh):
    for setting in evaluate.settings(config.eval):
      evaluator = AdaptiveEvaluator(config, subject.mesh, **setting)
      for score, options in _scores(evaluator, subject.params, config.eval):
        values = subject.card(score, evaluator.file, **setting)
        cards.append(_finite(values) | options)
        _log(cards[-1])
  if len(cards) > 1:
    _log_best(cards)
  result = {"static": static, "cards": cards}
  evaluate.keep_cards(workdir, f"dynamic_{config.eval.split}", result)
  return static + cards


def _scores(evaluator, params, evaluation: schema.EvalConfig):
  """Yields the score of each setting, and the setting as a card states it."""
  options, cache = evaluation.dynamic, evaluation.cache
  is_dynamic = options.kind != "none"
  rates, decays = options.learning_rate, options.decay
  rules = itertools.product(rates, decays) if is_dynamic else [(0.0, 0.0)]
  for rate, decay in rules:
    rule = update.Rule(*map(jnp.float32, (rate, decay, options.epsilon)))
    is_rms = options.kind == "rms"
    dynamic = {
      "kind": options.kind,
      "lanes": options.lanes,
      "learning_rate": rate,
      "decay": decay,
      "epsilon": options.epsilon if is_rms else None,
      "statistics_segments": options.statistics_segments if is_rms else None,
    }
    scores = evaluator(params, rule)
    for score, (flatness, share) in zip(scores, _mixtures(cache), strict=True):
      mixed = {"size": cache.size, "flatness": flatness, "share": share}
      yield (
        score,
        {
          "dynamic": dynamic if is_dynamic else None,
          "cache": mixed if cache.size else None,
        },
      )


def _mixtures(cache: schema.CacheConfig) -> list[tuple[float, float]]:
  """Flatness and share of each setting; without a cache, a share of 0."""
  if not cache.size:
    return [(0.0, 0.0)]
  return [*itertools.product(cache.flatness, cache.share)]


def _finite(values: dict[str, Any]) -> dict[str, Any]:
  """Replaces infinities and NaN, which JSON lacks, by None."""
  return {
    name: None
    if isinstance(value, float) and not math.isfinite(value)
    else value
    for name, value in values.items()
  }


def _log(card: dict[str, Any]) -> None:
  """Logs a result with its settings, so that it never looks static."""
  text = f"{card['split']}, {_settings(card)}"
  if card["nll"] is None:
    logging.info("%s: diverged", text)
  else:
    evaluate.log_card(card | {"split": text})


def _settings(card: dict[str, Any]) -> str:
  parts = []
  for name in ("dynamic", "cache"):
    if card[name]:
      values = (f"{key} {value}" for key, value in card[name].items())
      parts.append(f"{name} ({', '.join(values)})")
  return ", ".join(parts)


def _log_best(cards: list[dict[str, Any]]) -> None:
  """Logs the flags of the setting with the lowest loss."""
  best = min(cards, key=lambda card: card["nll"] or math.inf)
  flags = [
    f"--config.eval.{name}={best[name]}" for name in ("mem_len", "temperature")
  ]
  for group, names in (
    ("dynamic", ("learning_rate", "decay")),
    ("cache", ("flatness", "share")),
  ):
    if best[group]:
      flags += [
        f"--config.eval.{group}.{name}={best[group][name]}" for name in names
      ]
  logging.info("lowest perplexity of %d: %s", len(cards), " ".join(flags))
