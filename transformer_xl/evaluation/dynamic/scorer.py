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

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax.sharding import Mesh

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.evaluation import scorer
from transformer_xl.evaluation import sums as sums_lib
from transformer_xl.evaluation.dynamic import neural_cache
from transformer_xl.evaluation.dynamic import update
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import kinds
from transformer_xl.model import network
from transformer_xl.model.kernels import device


class TextSegment(NamedTuple):
  """A segment and a mask of its real targets."""

  segment: segment_lib.Segment
  is_text: jt.Bool[shapes.Array, "B U"]  # False before and after the text.


class AdaptiveState(NamedTuple):
  """Carried from segment to segment; per lane, a stack of B states."""

  params: shapes.PyTree  # None without dynamic evaluation.
  memory: kinds.Memory
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
    self, config: schema.ExperimentConfig, mesh: Mesh, *, mem_len: int
  ):
    dynamic, lanes = config.eval.dynamic, config.eval.batch_size
    config = scorer.padded(config, mesh)
    is_per_lane = dynamic.kind != "none" and dynamic.lanes == "apart"
    shared: dict[str, Any] = {"is_per_lane": is_per_lane}
    start = functools.partial(_start, config=config, mem_len=mem_len, **shared)
    shared["model"] = _model(config, is_per_lane)
    params = kinds.abstract_params(config.model)
    state = jax.eval_shape(start, params)
    by_lane = jax.tree.map(lambda _: mesh_lib.lanes(mesh), state)
    if is_per_lane:
      shardings = by_lane._replace(params=mesh_lib.lane_copies(mesh, params))
    else:
      shardings = mesh_lib.parameters(mesh, state)
      shardings = shardings._replace(cache=by_lane.cache)
    self.start = jax.jit(start, out_shardings=shardings)
    self.steps = jax.jit(
      update.sgd_steps if dynamic.kind == "sgd" else update.rms_steps
    )
    self.mean_squares = jax.jit(
      functools.partial(_mean_squares, **shared, lanes=lanes),
      out_shardings=mesh_lib.parameters(mesh, params),
    )
    self.score = jax.jit(
      functools.partial(_score_chunk, **shared),
      donate_argnums=0,
      out_shardings=(shardings, mesh_lib.replicated(mesh)),
      compiler_options=mesh_lib.compiler_options(mesh),
    )


def _score_chunk(
  state, trained, steps, mixtures, texts, *, model, is_per_lane
) -> tuple[AdaptiveState, LossSums]:
  """Scores S consecutive segments, [S, B, T], and learns from each.

  `trained` are the parameters that steps pull back to; steps are None without
  dynamic evaluation. Mixtures are [C]. With `is_per_lane`, each lane has its
  own parameters.
  """

  def score(state, text):
    (params, memory, cache), segment = state, text.segment
    if steps is None:
      outputs = _read(trained, memory, segment, model)
    else:
      slopes, outputs = _loss_gradient(params, memory, segment, model)
      params = steps.update(params, slopes, trained)
    nll, hidden, memory = outputs
    losses = nll[None]
    if cache is not None:
      next_tokens = jnp.where(text.is_text, segment.targets, -1)
      pairs, cache = neural_cache.append(cache, hidden, next_tokens)
      similarities = neural_cache.similarity(hidden, pairs)
      known = nll, segment.targets, pairs, similarities
      mixed = functools.partial(neural_cache.losses, *known)
      losses = jax.lax.map(mixed, mixtures)  # [C, B, T]
    weights = segment.loss_weights()
    sums = jnp.sum(losses * weights[None], axis=2).T  # [B, C]
    state = AdaptiveState(params, memory, cache)
    return state, LossSums(sums, jnp.sum(weights, axis=1))

  if not is_per_lane:
    return jax.lax.scan(score, state, texts)
  state, sums = jax.lax.scan(jax.vmap(score), state, _one_lane_each(texts))
  return state, jax.tree.map(lambda array: array[:, :, 0], sums)


def _mean_squares(params, state, segments, *, model, is_per_lane, lanes):
  """Mean squares of the gradients that updates would use, on training text.

  Segments are [S, B, T], the parameters fixed. Gradients are those of each
  lane, or of the mean loss of all lanes. Beyond `lanes`, lanes are empty and
  have none.
  """

  def squares(memory, segment):
    slopes, (*_, memory) = _loss_gradient(params, memory, segment, model)
    return jax.tree.map(jnp.square, slopes), memory

  def body(carry, segment):
    total, memory = carry
    if is_per_lane:
      new, memory = jax.vmap(squares)(memory, segment)
      new = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / lanes, new)
    else:
      new, memory = squares(memory, segment)
    return (jax.tree.map(jnp.add, total, new), memory), None

  if is_per_lane:
    segments = _one_lane_each(segments)
  zeros = jax.tree.map(jnp.zeros_like, params)
  (total, _), _ = jax.lax.scan(body, (zeros, state.memory), segments)
  return jax.tree.map(lambda leaf: leaf / len(segments.inputs), total)


def _read(params, memory, segment, model):
  """Losses, last hidden states with targets, and next memory."""
  bound = model.bind({"params": params})
  hidden, memory = bound(segment.inputs, memory, segment.resets)
  hidden = hidden[:, -segment.targets.shape[1] :]
  nll = adaptive_softmax.nll(hidden, segment.targets, bound.head())
  return nll, hidden, memory


def _loss_gradient(params, memory, segment, model):
  """Gradient of the mean loss over the tokens that have weight, and `_read`.

  These are the ones that are scored, so nothing is learned that has not been
  scored: the warm-up of a lane is text that another lane scores later. The
  gradient is zero if there are none. Dropout is off, so the loss that is
  differentiated is the one that is scored.
  """
  weights = segment.loss_weights()

  def loss(params):
    nll, *rest = _read(params, memory, segment, model)
    total = jnp.sum(weights * nll)
    return total / jnp.maximum(jnp.sum(weights), 1), (nll, *rest)

  return jax.grad(loss, has_aux=True)(params)


def _one_lane_each(tree: shapes.PyTree) -> shapes.PyTree:
  """Reshapes [S, B, ...] to [S, B, 1, ...]."""
  return jax.tree.map(lambda array: array[:, :, None], tree)


def _model(config, is_per_lane) -> network.Network:
  if is_per_lane:
    config = load.replaced(config, {"model.cluster_capacities": ()})
    is_tpu = device.device_kind().startswith("TPU")
    kernel = ("pallas", "auto") if is_tpu else ("pallas",)
    if config.model.attention in kernel:  # It cannot batch over parameters.
      config = load.replaced(config, {"model.attention": "xla"})
  return sums_lib.make_model(config)


def _start(params, *, config, mem_len, is_per_lane) -> AdaptiveState:
  """The state before the first segment."""
  lanes, size, cache = config.eval.batch_size, config.eval.cache.size, None
  batch = {"batch_size": 1 if is_per_lane else lanes}
  if size:
    model_dim = config.model.model_dim
    cache = neural_cache.empty(size=size, model_dim=model_dim, **batch)
  memory = kinds.empty_memory(
    config.model,
    mem_len=mem_len,
    compressed_len=config.eval.compressed_len,
    **batch,
  )
  is_dynamic = config.eval.dynamic.kind != "none"
  state = AdaptiveState(params if is_dynamic else None, memory, cache)
  if not is_per_lane:
    # Copies: the state is donated to `score`, the parameters are not.
    return jax.tree.map(jnp.copy, state)
  return jax.tree.map(
    lambda leaf: jnp.broadcast_to(leaf[None], (lanes, *leaf.shape)), state
  )
