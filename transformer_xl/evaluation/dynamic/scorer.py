"""Compiled functions of dynamic evaluation and of the neural cache.

Each segment is scored first. Then the parameters (in dynamic evaluation) learn
from the tokens that were scored, and the cache takes all of its text. Hidden
states that are already in memory or cache keep the values that earlier
parameters gave them (Krause et al. 2019).

    adaptive = scorer.AdaptiveScorer(config, mesh, mem_len=150)
    steps = adaptive.steps(rule, params)  # For "rms": (rule, mean_squares).
    state = adaptive.start(params)
    state, sums = adaptive.score(state, params, steps, mixtures, texts)

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


class AdaptiveState(NamedTuple):
  """Carried from segment to segment; per lane, a stack of B states."""

  params: shapes.PyTree  # None without dynamic evaluation.
  memory: memory_lib.Memory
  cache: neural_cache.Cache | None


class LossSums(NamedTuple):
  """Sums over the scored tokens of each segment and lane, in float32."""

  nll: jt.Float[shapes.Array, "S B C"]  # Under each mixture.
  num_tokens: jt.Float[shapes.Array, "S B"]


class AdaptiveScorer:
  """Compiled functions that score segments of a split on a mesh.

  Hyperparameters are arguments, so a sweep over them compiles once. Parameters
  that all lanes share are sharded as in training; copies per lane are sharded
  with the lanes.
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
    is_dynamic = evaluation.dynamic.kind != "none"
    is_per_lane = is_dynamic and evaluation.dynamic.lanes == "apart"
    model = _model(config, is_per_lane=is_per_lane, temperature=temperature)
    start = functools.partial(
      _start,
      config=config,
      mem_len=mem_len,
      is_dynamic=is_dynamic,
      is_per_lane=is_per_lane,
    )
    params = transformer_xl.abstract_params(config.model)
    shardings = _shardings(
      mesh, jax.eval_shape(start, params), params, is_per_lane
    )
    by_parameter = mesh_lib.parameters(mesh, params)
    self.start = jax.jit(start, out_shardings=shardings)
    self.steps = jax.jit(
      update.sgd_steps if evaluation.dynamic.kind == "sgd" else update.rms_steps
    )
    self.mean_squares = jax.jit(
      functools.partial(_mean_squares, model=model, is_per_lane=is_per_lane),
      out_shardings=by_parameter,
    )
    self.score = jax.jit(
      functools.partial(score_chunk, model=model, is_per_lane=is_per_lane),
      donate_argnums=0,
      out_shardings=(shardings, mesh_lib.replicated(mesh)),
      compiler_options=mesh_lib.compiler_options(mesh),
    )


def score_segment(
  state: AdaptiveState,
  text: gradient.TextSegment,
  *,
  trained: shapes.PyTree,
  steps: update.Steps | None,
  mixtures: neural_cache.Mixture,
  model: transformer_xl.TransformerXL,
) -> tuple[AdaptiveState, LossSums]:
  """Scores one segment of lanes that share their parameters.

  Args:
    state: after the previous segment.
    text: the segment.
    trained: trained parameters, towards which those of the state are pulled.
    steps: rates and pulls; None without dynamic evaluation.
    mixtures: flatness and share, [C] each.
    model: the network.

  Returns:
    The state for the next segment; sums [B, C] and counts [B] of this one.
  """
  segment, params = text.segment, None
  if steps is None:
    outputs = gradient.read(trained, state.memory, segment, model=model)
  else:
    gradients, outputs = gradient.loss_gradient(
      state.params, state.memory, segment, model=model
    )
    params = update.update(
      state.params, gradients, trained=trained, steps=steps
    )
  nll, cache = outputs.nll[None], None
  if state.cache is not None:
    next_tokens = jnp.where(text.is_text, segment.targets, -1)
    pairs, cache = neural_cache.append(state.cache, outputs.hidden, next_tokens)
    mixed = functools.partial(
      neural_cache.losses,
      outputs.nll,
      segment.targets,
      pairs,
      neural_cache.similarity(outputs.hidden, pairs),
    )
    nll = jax.lax.map(mixed, mixtures)  # [C, B, T]
  weights = segment.loss_weights()
  sums = LossSums(
    jnp.sum(nll * weights[None], axis=2).T, jnp.sum(weights, axis=1)
  )
  return AdaptiveState(params, outputs.memory, cache), sums


def score_chunk(
  state: AdaptiveState,
  trained: shapes.PyTree,
  steps: update.Steps | None,
  mixtures: neural_cache.Mixture,
  texts: gradient.TextSegment,
  *,
  model: transformer_xl.TransformerXL,
  is_per_lane: bool,
) -> tuple[AdaptiveState, LossSums]:
  """Scores S consecutive segments, [S, B, T], and learns from each."""
  score = functools.partial(
    score_segment,
    trained=trained,
    steps=steps,
    mixtures=mixtures,
    model=model,
  )
  if not is_per_lane:
    return jax.lax.scan(score, state, texts)
  state, sums = jax.lax.scan(jax.vmap(score), state, _one_lane_each(texts))
  return state, jax.tree.map(lambda array: array[:, :, 0], sums)


def _mean_squares(params, state, segments, *, model, is_per_lane):
  """Mean squares of the gradients that updates would use, on training text."""
  if is_per_lane:
    segments = _one_lane_each(segments)
  return gradient.mean_squares(
    params, state.memory, segments, model=model, is_per_lane=is_per_lane
  )


def _one_lane_each(tree: shapes.PyTree) -> shapes.PyTree:
  """Reshapes [S, B, ...] to [S, B, 1, ...]."""
  return jax.tree.map(lambda array: array[:, :, None], tree)


def _model(config, *, is_per_lane, temperature) -> transformer_xl.TransformerXL:
  """The model to score with, without dropout."""
  model = config.model
  if is_per_lane:  # The kernel cannot batch over parameters.
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
    temperature=temperature,
  )


def _start(
  params, *, config, mem_len, is_dynamic, is_per_lane
) -> AdaptiveState:
  """The state before the first segment."""
  lanes, cache = config.eval.batch_size, None
  sizes = {"batch_size": 1 if is_per_lane else lanes}
  if config.eval.cache.size:
    cache = neural_cache.empty(
      size=config.eval.cache.size, model_dim=config.model.model_dim, **sizes
    )
  memory = transformer_xl.empty_memory(config.model, mem_len=mem_len, **sizes)
  state = AdaptiveState(params if is_dynamic else None, memory, cache)
  if not is_per_lane:
    # Copies: the state is donated to `score`, the parameters are not.
    return jax.tree.map(jnp.copy, state)
  return jax.tree.map(
    lambda leaf: jnp.broadcast_to(leaf[None], (lanes, *leaf.shape)), state
  )


def _shardings(mesh, state, params, is_per_lane) -> AdaptiveState:
  lanes = mesh_lib.lanes(mesh)
  if is_per_lane:
    shardings = jax.tree.map(lambda _: lanes, state)
    return shardings._replace(params=mesh_lib.lane_copies(mesh, params))
  shardings = mesh_lib.parameters(mesh, state)
  return shardings._replace(cache=jax.tree.map(lambda _: lanes, state.cache))
