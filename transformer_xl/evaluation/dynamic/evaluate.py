"""Dynamic evaluation and neural cache, reported separately from static results.

`--mode=eval` first scores a split with fixed parameters. If `config.eval` turns
on dynamic evaluation or a neural cache, it scores the split again with them,
once per setting, and writes those results to a separate file
(docs/dynamic.md).
"""

import dataclasses
import itertools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import cards as cards_lib
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation.dynamic import neural_cache
from transformer_xl.evaluation.dynamic import scorer
from transformer_xl.evaluation.dynamic import update

# rms measures the size of training gradients over this many segments of each
# lane.
STATISTICS_SEGMENTS = 50


class AdaptiveEvaluator:
  """Scores a split at one memory length; compiles once for all settings."""

  def __init__(
    self, config: schema.ExperimentConfig, mesh: Mesh, *, mem_len: int
  ):
    self._config, self._sharding = config, mesh_lib.segments(mesh)
    self._stream = evaluate.open_stream(config, mem_len)
    self.file = self._stream.file
    self._scorer = scorer.AdaptiveScorer(config, mesh, mem_len=mem_len)
    numbers = np.array(_mixtures(config.eval.cache), np.float32)
    self._mixtures = neural_cache.Mixture(*numbers.T)
    self._mean_squares: shapes.PyTree = None
    self._is_compiled = False

  def __call__(
    self, params: shapes.PyTree, rule: update.Rule
  ) -> list[evaluate.Score]:
    """Scores the whole split under one rule and each mixture of the cache."""
    num_steps, sums = self._stream.num_steps, []
    fixed = params, self._steps(params, rule), self._mixtures
    if not self._is_compiled:
      # A call past the end scores nothing; its state is discarded.
      self._score(self._scorer.start(params), fixed, num_steps)
      self._is_compiled = True
    state = self._scorer.start(params)
    start = time.perf_counter()
    for step in range(0, num_steps, self._config.eval.segments_per_call):
      state, chunk = self._score(state, fixed, step)
      sums.append(chunk)
    sums = jax.device_get(sums)
    seconds = time.perf_counter() - start
    nll = sum(chunk.nll.sum((0, 1), dtype="float64") for chunk in sums)
    tokens = sum(chunk.num_tokens.sum(dtype="float64") for chunk in sums)
    return [evaluate.Score(float(n), round(tokens), seconds) for n in nll]

  def _steps(self, params, rule) -> update.Steps | None:
    evaluation = self._config.eval
    kind = evaluation.dynamic.kind
    if kind == "rms" and self._mean_squares is None:
      stream = streams.TrainStream(
        token_file.open_split(self._config.data.dataset_dir, "train"),
        num_lanes=evaluation.batch_size,
        segment_len=evaluation.segment_len,
        resets=streams.reset_rule(self._config),
        context_len=evaluation.context_len,
      )
      segments = streams.device_segments(
        stream, 0, STATISTICS_SEGMENTS, self._sharding
      )
      state = self._scorer.start(params)
      self._mean_squares = self._scorer.mean_squares(params, state, segments)
    basis = self._mean_squares if kind == "rms" else params
    return None if kind == "none" else self._scorer.steps(rule, basis)

  def _score(self, state, fixed, step):
    stream, count = self._stream, self._config.eval.segments_per_call
    segments = streams.device_segments(stream, step, count, self._sharding)
    empty = segments.targets.shape[1] - stream.num_lanes
    is_text = np.pad(stream.is_text(step, count), ((0, 0), (0, empty), (0, 0)))
    texts = scorer.TextSegment(segments, jnp.asarray(is_text))
    return self._scorer.score(state, *fixed, texts)


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
  each = itertools.product(config.eval.mem_len, subject.at_each_temperature())
  with jax.set_mesh(subject.mesh):
    for mem_len, one in each:
      evaluator = AdaptiveEvaluator(one.config, one.mesh, mem_len=mem_len)
      for score, options in _scores(evaluator, one.params, config.eval):
        cards.append(one.card(score, evaluator.file, mem_len) | options)
        _log(cards[-1])
  if len(cards) > 1:
    cards_lib.log_best(cards)
  result = {"static": static, "cards": cards}
  cards_lib.keep(workdir, f"dynamic_{config.eval.split}", result)
  return static + cards


def _scores(evaluator, params, evaluation: schema.EvalConfig):
  """Yields the score of each setting, and the setting as a card states it."""
  options, cache = evaluation.dynamic, evaluation.cache
  dynamic = mixed = None
  rules = itertools.product(options.learning_rate, options.decay)
  for rate, decay in rules if options.kind != "none" else [(0.0, 0.0)]:
    if options.kind != "none":
      setting = {"learning_rate": rate, "decay": decay}
      dynamic = dataclasses.asdict(options) | setting
    rule = update.Rule(jnp.float32(rate), jnp.float32(decay))
    scores = evaluator(params, rule)
    for score, (flatness, share) in zip(scores, _mixtures(cache), strict=True):
      if cache.size:
        mixed = {"size": cache.size, "flatness": flatness, "share": share}
      yield score, {"dynamic": dynamic, "cache": mixed}


def _mixtures(cache: schema.CacheConfig) -> list[tuple[float, float]]:
  """Flatness and share of each setting; without a cache, a share of 0."""
  settings = itertools.product(cache.flatness, cache.share)
  return [*settings] if cache.size else [(0.0, 0.0)]


def _log(card: dict[str, Any]) -> None:
  """Logs a result with its settings, so that it never looks static."""
  text = card["split"]
  for name in cards_lib.ADAPTED:
    if card[name]:
      values = (f"{key} {value}" for key, value in card[name].items())
      text += f", {name} ({', '.join(values)})"
  cards_lib.log(card | {"split": text})
