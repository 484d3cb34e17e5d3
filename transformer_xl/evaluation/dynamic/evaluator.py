"""Dynamic evaluation and neural cache (docs/dynamic.md).

Each segment is scored first. Then the parameters (in dynamic evaluation) learn
from the tokens that were scored, and the cache takes all of its text. Hidden
states that are already in memory or cache keep the values that earlier
parameters gave them (Krause et al. 2019).

Shapes: S segments, B lanes, T tokens, U targets, C settings of the cache.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np
from jax.sharding import Mesh

from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluator as evaluator_lib
from transformer_xl.evaluation import protocol
from transformer_xl.evaluation.dynamic import neural_cache
from transformer_xl.evaluation.dynamic import update
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.workdir import metrics_log

# rms measures the size of training gradients over this many segments of each
# lane.
STATISTICS_SEGMENTS = 50


def adapts(evaluation: schema.EvalConfig) -> bool:
  """Whether anything adapts to the split that is scored."""
  return evaluation.dynamic.kind != "none" or evaluation.cache.size > 0


class TextSegment(NamedTuple):
  """A segment and a mask of its real targets."""

  segment: segment_lib.Segment
  is_text: jt.Bool[shapes.Array, "B U"]  # False before and after the text.


class State(NamedTuple):
  """The state between segments; a stack of B states if lanes are apart."""

  params: shapes.PyTree  # None without dynamic evaluation.
  memory: network.State
  cache: neural_cache.Cache | None


class Adaptation(NamedTuple):
  """How parameters learn and how the cache is mixed in; a sweep changes it."""

  steps: update.Steps | None  # None without dynamic evaluation.
  mixtures: neural_cache.Mixture  # [C].


class LossSums(NamedTuple):
  """Sums over the scored tokens of each segment and lane, in float32."""

  nll: jt.Float[shapes.Array, "S B C"]  # For each setting of the cache.
  num_tokens: jt.Float[shapes.Array, "S B"]


class DynamicEvaluator:
  """Scores a split at one memory length; compiles once for all settings.

  Hyperparameters are arguments of the compiled functions, so a sweep over them
  compiles once. Parameters that all lanes share are sharded as in training;
  copies per lane are sharded with the lanes.
  """

  def __init__(self, scoring: schema.Scoring, mesh: Mesh, *, mem_len: int):
    self._scoring = scoring
    self._mesh = mesh
    self.stream = protocol.open_stream(scoring, mem_len)
    model = scoring.model
    evaluation = scoring.eval
    numbers = np.array(_cache_settings(evaluation.cache), np.float32)
    self._mixtures = neural_cache.Mixture(*numbers.T)
    self._mean_squares: shapes.PyTree = None
    self._is_compiled = False

    dynamic = evaluation.dynamic
    per_lane = dynamic.kind != "none" and dynamic.lanes == "apart"
    reader = make_reader(model, evaluation, mem_len, per_lane=per_lane)
    start = functools.partial(
      start_state,
      scoring=scoring,
      num_lanes=mesh_lib.padded_lanes(mesh, evaluation.batch_size),
      reader=reader,
      per_lane=per_lane,
    )
    params = network.abstract_params(model)
    state = jax.eval_shape(start, params)
    by_lane = jax.tree.map(lambda _: mesh_lib.lanes(mesh), state)
    splits = network.splits(model)
    if per_lane:
      copies = mesh_lib.lane_copies(mesh, params, splits)
      shardings = by_lane._replace(params=copies)
    else:
      shardings = mesh_lib.shardings(mesh, state, splits)
      shardings = shardings._replace(cache=by_lane.cache)
    self._start = jax.jit(start, out_shardings=shardings)
    self._make_steps = jax.jit(
      update.sgd_steps if dynamic.kind == "sgd" else update.rms_steps
    )
    self._measure_squares = jax.jit(
      functools.partial(
        mean_squares,
        reader=reader,
        per_lane=per_lane,
        num_lanes=evaluation.batch_size,
      ),
      out_shardings=mesh_lib.shardings(mesh, params, splits),
    )
    self._score = jax.jit(
      functools.partial(score_segments, reader=reader, per_lane=per_lane),
      donate_argnums=0,
      out_shardings=(shardings, mesh_lib.replicated(mesh)),
      compiler_options=mesh_lib.compiler_options(mesh),
    )

  def each_setting(
    self, params: shapes.PyTree
  ) -> Iterator[tuple[evaluator_lib.Score, metrics_log.Json]]:
    """Yields the score of each setting, and the setting as a card states it."""
    evaluation = self._scoring.eval
    options = evaluation.dynamic
    rules = [(0.0, 0.0)]
    if options.kind != "none":
      rules = [*itertools.product(options.learning_rate, options.decay)]
    for rate, decay in rules:
      dynamic = None
      if options.kind != "none":
        dynamic = dataclasses.asdict(options)
        dynamic |= {"learning_rate": rate, "decay": decay}
      rule = update.Rule(jnp.float32(rate), jnp.float32(decay))
      scores = self(params, rule)
      settings = _cache_settings(evaluation.cache)
      for score, (flatness, share) in zip(scores, settings, strict=True):
        cache = None
        if evaluation.cache.size:
          cache = {
            "size": evaluation.cache.size,
            "flatness": flatness,
            "share": share,
          }
        yield score, {"dynamic": dynamic, "cache": cache}

  def __call__(
    self, params: shapes.PyTree, rule: update.Rule
  ) -> list[evaluator_lib.Score]:
    """Scores the whole split under one rule and each setting of the cache."""
    num_steps = self.stream.num_steps
    adaptation = Adaptation(self._steps(params, rule), self._mixtures)

    def score_call(state: State, step: int) -> tuple[State, LossSums]:
      texts = self._texts(step, evaluator_lib.SEGMENTS_PER_CALL)
      return self._score(state, params, adaptation, texts)

    if not self._is_compiled:
      # A call past the end scores nothing; its state is discarded. Devices
      # still compute it when it returns.
      jax.block_until_ready(score_call(self._start(params), num_steps))
      self._is_compiled = True
    scored = evaluator_lib.score_calls(
      score_call, self._start(params), num_steps
    )
    assert scored is not None
    parts, seconds = scored
    losses = [np.sum(sums.nll, (0, 1), np.float64) for sums in parts]
    counts = [np.sum(sums.num_tokens, dtype=np.float64) for sums in parts]
    num_tokens = round(float(sum(counts)))
    return [
      evaluator_lib.Score(float(nll), num_tokens, seconds)
      for nll in np.sum(losses, axis=0)
    ]

  def _texts(self, step: int, count: int) -> TextSegment:
    """Consecutive segments [S, B, T], with the mask of real targets."""
    sharding = mesh_lib.segments(self._mesh)
    segments = streams.device_segments(self.stream, step, count, sharding)
    empty = segments.targets.shape[1] - self.stream.num_lanes
    is_text = self.stream.is_text(step, count)
    is_text = np.pad(is_text, ((0, 0), (0, empty), (0, 0)))
    return TextSegment(segments, jnp.asarray(is_text))

  def _steps(
    self, params: shapes.PyTree, rule: update.Rule
  ) -> update.Steps | None:
    """The steps of all parameters; None without dynamic evaluation."""
    dynamic = self._scoring.eval.dynamic
    if dynamic.kind == "none":
      return None
    if dynamic.kind == "sgd":
      return self._make_steps(rule, params)
    if self._mean_squares is None:
      evaluation = self._scoring.eval
      stream = streams.TrainStream(
        token_file.open_split(self._scoring.data.dataset_dir, "train"),
        num_lanes=evaluation.batch_size,
        segment_len=evaluation.segment_len,
        resets=streams.reset_rule(self._scoring.data, self._scoring.model),
        context_len=evaluation.context_len,
        targets=self._scoring.data.targets,
      )
      every = stream.read(0, STATISTICS_SEGMENTS, slice(None))
      if not every.loss_weights().any():
        raise errors.UserError(
          f"the first {STATISTICS_SEGMENTS} training segments of each lane "
          "have no answers, whose gradients eval.dynamic.kind=rms measures; "
          "set --config.eval.dynamic.kind=sgd, or a larger "
          "--config.eval.batch_size or --config.eval.segment_len."
        )
      segments = streams.device_segments(
        stream, 0, STATISTICS_SEGMENTS, mesh_lib.segments(self._mesh)
      )
      state = self._start(params)
      self._mean_squares = self._measure_squares(params, state, segments)
    return self._make_steps(rule, self._mean_squares)


def start_state(
  params: shapes.PyTree,
  *,
  scoring: schema.Scoring,
  num_lanes: int,
  reader: reader_lib.TokenReader,
  per_lane: bool,
) -> State:
  """The state before the first segment, of lanes that devices divide."""
  batch_size = 1 if per_lane else num_lanes
  cache = None
  if scoring.eval.cache.size:
    cache = neural_cache.empty(
      batch_size=batch_size,
      size=scoring.eval.cache.size,
      model_dim=scoring.model.model_dim,
    )
  is_dynamic = scoring.eval.dynamic.kind != "none"
  memory = reader.start(params, batch_size=batch_size)
  state = State(params if is_dynamic else None, memory, cache)
  if per_lane:
    return jax.tree.map(
      lambda leaf: jnp.broadcast_to(leaf[None], (num_lanes, *leaf.shape)),
      state,
    )
  # Copies: the state is donated to `score_segments`, the parameters are not.
  return jax.tree.map(jnp.copy, state)


def score_segments(
  state: State,
  trained: shapes.PyTree,
  adaptation: Adaptation,
  texts: TextSegment,
  *,
  reader: reader_lib.TokenReader,
  per_lane: bool,
) -> tuple[State, LossSums]:
  """Scores S consecutive segments, [S, B, T], and learns from each.

  `trained` are the parameters that steps pull back to. With `per_lane`, each
  lane has its own parameters.
  """
  steps = adaptation.steps

  def score(state: State, text: TextSegment) -> tuple[State, LossSums]:
    params = state.params
    segment = text.segment
    if steps is None:
      nll, hidden, memory = _read(trained, state.memory, segment, reader)
    else:
      gradient, read = _loss_gradient(params, state.memory, segment, reader)
      nll, hidden, memory = read
      params = steps.update(params, gradient, trained)

    losses = nll[None]
    cache = state.cache
    if cache is not None:
      next_tokens = jnp.where(text.is_text, segment.targets, -1)
      pairs, cache = neural_cache.append(cache, hidden, next_tokens)
      similarities = neural_cache.similarity(hidden, pairs)

      def mixed(mixture: neural_cache.Mixture) -> shapes.Losses:
        return neural_cache.losses(
          nll, segment.targets, pairs, similarities, mixture
        )

      losses = jax.lax.map(mixed, adaptation.mixtures)  # [C, B, U]
    weights = segment.loss_weights()
    sums = jnp.sum(losses * weights[None], axis=2).T  # [B, C]
    state = State(params, memory, cache)
    return state, LossSums(sums, jnp.sum(weights, axis=1))

  if not per_lane:
    return jax.lax.scan(score, state, texts)
  state, sums = jax.lax.scan(jax.vmap(score), state, _one_lane_each(texts))
  return state, jax.tree.map(lambda array: array[:, :, 0], sums)


def mean_squares(
  params: shapes.PyTree,
  state: State,
  segments: segment_lib.Segment,
  *,
  reader: reader_lib.TokenReader,
  per_lane: bool,
  num_lanes: int,
) -> shapes.PyTree:
  """Mean squares of the gradients that updates would use, on training text.

  Segments are [S, B, T], the parameters fixed. Gradients are those of each
  lane, or of the mean loss of all lanes. Beyond `num_lanes`, lanes are empty
  and have no gradient.
  """

  def squares(
    memory: network.State, segment: segment_lib.Segment
  ) -> tuple[shapes.PyTree, network.State]:
    gradient, (*_, memory) = _loss_gradient(params, memory, segment, reader)
    return jax.tree.map(jnp.square, gradient), memory

  def body(
    carry: tuple[shapes.PyTree, network.State], segment: segment_lib.Segment
  ) -> tuple[tuple[shapes.PyTree, network.State], None]:
    total, memory = carry
    if per_lane:
      new, memory = jax.vmap(squares)(memory, segment)
      new = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / num_lanes, new)
    else:
      new, memory = squares(memory, segment)
    return (jax.tree.map(jnp.add, total, new), memory), None

  if per_lane:
    segments = _one_lane_each(segments)
  zeros = jax.tree.map(jnp.zeros_like, params)
  (total, _), _ = jax.lax.scan(body, (zeros, state.memory), segments)
  return jax.tree.map(lambda leaf: leaf / len(segments.inputs), total)


def make_reader(
  model: schema.ModelConfig,
  evaluation: schema.EvalConfig,
  mem_len: int,
  *,
  per_lane: bool,
) -> reader_lib.NetworkReader:
  """The reader whose parameters may change."""
  if per_lane:
    model = dataclasses.replace(model, cluster_capacities=())
    is_tpu = hardware.device_kind().startswith("TPU")
    chosen = model.attention
    if chosen == "pallas" or (is_tpu and chosen == "auto"):
      # The kernel cannot batch over parameters.
      model = dataclasses.replace(model, attention="xla")
  return protocol.make_network_reader(model, evaluation, mem_len)


def _read(
  params: shapes.PyTree,
  memory: network.State,
  segment: segment_lib.Segment,
  reader: reader_lib.TokenReader,
) -> tuple[shapes.Losses, shapes.Hidden, network.State]:
  """Losses, last hidden states with targets, and next memory."""
  hidden, memory = reader.read(params, memory, segment.inputs, segment.resets)
  hidden = hidden[:, -segment.targets.shape[1] :]
  nll = adaptive_softmax.nll(hidden, segment.targets, reader.head(params))
  return nll, hidden, memory


def _loss_gradient(
  params: shapes.PyTree,
  memory: network.State,
  segment: segment_lib.Segment,
  reader: reader_lib.TokenReader,
) -> tuple[shapes.PyTree, tuple[shapes.Losses, shapes.Hidden, network.State]]:
  """Gradient of the mean loss over scored tokens, and the results of `_read`.

  Nothing is learned that has not been scored: the warm-up of a lane is text
  that another lane scores later. The gradient is zero if no token is scored.
  Dropout is off, so the loss that is differentiated is the one that is scored.
  """
  weights = segment.loss_weights()

  def loss(
    params: shapes.PyTree,
  ) -> tuple[jax.Array, tuple[shapes.Losses, shapes.Hidden, network.State]]:
    read = _read(params, memory, segment, reader)
    total = jnp.sum(weights * read[0])
    return total / jnp.maximum(jnp.sum(weights), 1), read

  return jax.grad(loss, has_aux=True)(params)


def _one_lane_each(tree: shapes.PyTree) -> shapes.PyTree:
  """Reshapes [S, B, ...] to [S, B, 1, ...]."""
  return jax.tree.map(lambda array: array[:, :, None], tree)


def _cache_settings(cache: schema.CacheConfig) -> list[tuple[float, float]]:
  """Flatness and share of each setting; without a cache, a share of 0."""
  settings = itertools.product(cache.flatness, cache.share)
  return [*settings] if cache.size else [(0.0, 0.0)]
