"""Scores segments and lets them change what scores the next.

What is carried is memory, parameters if evaluation is dynamic, and the neural
cache if there is one. A segment is scored before anything learns from it.
Hidden states in memory and cache stay as the parameters of their time made
them (Krause et al. 2019).

    scorer = adaptive_scorer.AdaptiveScorer(config, mesh, mem_len=150)
    steps = scorer.steps(params, rule, mean_squares)
    state = scorer.start(params)
    state, losses = scorer.score(state, params, steps, mixtures, lessons)

Shapes: S segments, B lanes, T tokens, C mixtures.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.evaluation.dynamic import gradient
from transformer_xl.evaluation.dynamic import neural_cache
from transformer_xl.evaluation.dynamic import update
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import transformer_xl
from transformer_xl.model.kernels import device


class State(NamedTuple):
  """What one segment hands to the next; with lanes apart, B states of one."""

  params: shapes.PyTree  # None if they stay.
  memory: memory_lib.Memory
  cache: neural_cache.Cache | None


class Losses(NamedTuple):
  """Sums over the counted tokens of each segment and lane, in float32."""

  nll: jt.Float[shapes.Array, "S B C"]  # Under each mixture.
  num_tokens: jt.Float[shapes.Array, "S B"]


class AdaptiveScorer:
  """Compiled functions that score segments of a split on a mesh.

  Numbers are arguments, so a sweep over them compiles once. Parameters that
  all lanes share are split as in training; a lane's own are where the lane is.
  """

  def __init__(
    self,
    config: schema.ExperimentConfig,
    mesh: jax.sharding.Mesh,
    *,
    mem_len: int,
  ):
    evaluation = config.eval
    is_dynamic = evaluation.dynamic.kind != "none"
    is_apart = is_dynamic and evaluation.dynamic.lanes == "apart"
    model = _model(config, is_apart=is_apart)
    start = functools.partial(
      _start,
      config=config,
      mem_len=mem_len,
      is_dynamic=is_dynamic,
      is_apart=is_apart,
    )
    params = transformer_xl.abstract_params(config.model)
    places = _places(mesh, jax.eval_shape(start, params), params, is_apart)
    by_parameter = mesh_lib.parameters(mesh, params)
    self.start = jax.jit(start, out_shardings=places)
    self.steps = jax.jit(
      update.sgd_steps if evaluation.dynamic.kind == "sgd" else update.rms_steps
    )
    self.mean_squares = jax.jit(
      functools.partial(_mean_squares, model=model, is_apart=is_apart),
      out_shardings=by_parameter,
    )
    self.score = jax.jit(
      functools.partial(score_chunk, model=model, is_apart=is_apart),
      donate_argnums=0,
      out_shardings=(places, mesh_lib.replicated(mesh)),
      compiler_options=mesh_lib.compiler_options(mesh),
    )


def score_segment(
  state: State,
  lesson: gradient.Lesson,
  *,
  trained: shapes.PyTree,
  steps: update.Steps | None,
  mixtures: neural_cache.Mixture,
  model: transformer_xl.TransformerXL,
) -> tuple[State, Losses]:
  """Scores lanes with the parameters that they have in common.

  Args:
    state: after the segment before.
    lesson: of these lanes.
    trained: parameters, to which those of the state decay.
    steps: of the update; None for parameters that stay.
    mixtures: [C] each.
    model: whose parameters they are.

  Returns:
    The state for the next segment; losses [B, C] and counts [B] of this one.
  """
  segment, params = lesson.segment, None
  if steps is None:
    reading = gradient.read(trained, state.memory, segment, model=model)
  else:
    slopes, reading = gradient.gradient(
      state.params, state.memory, lesson, model=model
    )
    params = update.update(state.params, slopes, trained=trained, steps=steps)
  nll, cache = reading.nll[None], None
  if state.cache is not None:
    words = jnp.where(lesson.is_text, segment.targets, -1)
    pairs, cache = neural_cache.append(state.cache, reading.hidden, words)
    alike = neural_cache.similarity(reading.hidden, pairs)
    mixed = functools.partial(
      neural_cache.losses, reading.nll, segment.targets, pairs, alike
    )
    nll = jax.lax.map(mixed, mixtures)  # [C, B, T]
  weights = segment.loss_weights()
  sums = Losses(
    jnp.sum(nll * weights[None], axis=2).T, jnp.sum(weights, axis=1)
  )
  return State(params, reading.memory, cache), sums


def score_chunk(
  state: State,
  trained: shapes.PyTree,
  steps: update.Steps | None,
  mixtures: neural_cache.Mixture,
  lessons: gradient.Lesson,
  *,
  model: transformer_xl.TransformerXL,
  is_apart: bool,
) -> tuple[State, Losses]:
  """Scores S consecutive segments, [S, B, T], learning from each."""
  score = functools.partial(
    score_segment,
    trained=trained,
    steps=steps,
    mixtures=mixtures,
    model=model,
  )
  if not is_apart:
    return jax.lax.scan(score, state, lessons)
  state, losses = jax.lax.scan(jax.vmap(score), state, _one_lane_each(lessons))
  return state, jax.tree.map(lambda array: array[:, :, 0], losses)


def _mean_squares(params, state, segments, *, model, is_apart):
  """Of training gradients such as updates are made of."""
  is_text = jnp.ones(segments.inputs.shape, bool)
  lessons = gradient.Lesson(segments, is_text)
  if is_apart:
    lessons = _one_lane_each(lessons)
  return gradient.mean_squares(
    params, state.memory, lessons, model=model, is_apart=is_apart
  )


def _one_lane_each(tree: shapes.PyTree) -> shapes.PyTree:
  """[S, B, ...] as [S, B, 1, ...]."""
  return jax.tree.map(lambda array: array[:, :, None], tree)


def _model(config, *, is_apart) -> transformer_xl.TransformerXL:
  """The model to read with; it drops nothing."""
  model = config.model
  if is_apart:  # The kernel does not know lanes of different parameters.
    uses_kernel = model.attention == "pallas" or (
      model.attention == "auto" and device.device_kind().startswith("TPU")
    )
    model = dataclasses.replace(
      model,
      attention="chunked" if uses_kernel else model.attention,
      cluster_capacities=(),
    )
  return transformer_xl.TransformerXL(
    model,
    clamp_len=config.eval.clamp_len,
    same_length=config.eval.same_length,
  )


def _start(params, *, config, mem_len, is_dynamic, is_apart) -> State:
  """The state before the first segment."""
  lanes, cache = config.eval.batch_size, None
  sizes = {"batch_size": 1 if is_apart else lanes}
  if config.eval.cache.size:
    cache = neural_cache.empty(
      size=config.eval.cache.size, model_dim=config.model.model_dim, **sizes
    )
  memory = transformer_xl.empty_memory(config.model, mem_len=mem_len, **sizes)
  state = State(params if is_dynamic else None, memory, cache)
  if not is_apart:
    # Copies, since the state is given away and the parameters are not.
    return jax.tree.map(jnp.copy, state)
  return jax.tree.map(
    lambda leaf: jnp.broadcast_to(leaf[None], (lanes, *leaf.shape)), state
  )


def _places(mesh, state, params, is_apart) -> State:
  lanes = mesh_lib.lanes(mesh)
  if is_apart:
    places = jax.tree.map(lambda _: lanes, state)
    return places._replace(params=mesh_lib.lane_copies(mesh, params))
  places = mesh_lib.parameters(mesh, state)
  return places._replace(cache=jax.tree.map(lambda _: lanes, state.cache))
