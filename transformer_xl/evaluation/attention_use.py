"""How a model uses its attention: the terms of scores, the share of memory.

Shapes: as in `shapes`; all layers of a model are in front, N.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluator as evaluator_lib
from transformer_xl.evaluation import protocol
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import network
from transformer_xl.model import pattern
from transformer_xl.model import scores as scores_lib
from transformer_xl.model.kernels import xla_attention
from transformer_xl.processes import exchange


class Terms(NamedTuple):
  """The four scaled terms of a score (paper, section 3.3).

  Terms that the encoding does not have are 0.
  """

  content: jt.Float[shapes.Array, "N B H T K"]  # (a) query and key.
  distance: jt.Float[shapes.Array, "N B H T K"]  # (b) query and distance.
  content_bias: jt.Float[shapes.Array, "N B H T K"]  # (c) u and key.
  # (d) v and distance, or what the encoding adds for a distance.
  distance_bias: jt.Float[shapes.Array, "N B H T K"]


class InspectedSegment(NamedTuple):
  """A segment that was read, with the attention of its queries.

  Of all layers only those that attend are in front, N; see `attending`.
  """

  memory: network.State  # For the next segment.
  nll: shapes.Losses
  terms: Terms
  weights: jt.Float[shapes.Array, "N B H T K"]  # Of each key for each query.
  visible: jt.Bool[shapes.Array, "N B 1 T K"]  # What a query may attend to.


def attending(config: schema.ModelConfig) -> list[int]:
  """The numbers of the layers that attend, from 1."""
  return [
    number
    for number, layer in enumerate(pattern.all_layers(config), start=1)
    if layer.mixer.attends
  ]


def segments(
  file: token_file.TokenFile, resets: str, segment_len: int
) -> Iterator[segment_lib.Segment[np.ndarray]]:
  """Segments [1, T] of a text, from its start, as one lane of evaluation.

  The last one is padded. The rule of resets is that of `streams.reset_rule`.
  """
  stream = streams.EvalStream(
    file,
    num_lanes=1,
    segment_len=segment_len,
    warmup_len=0,
    resets=resets,
  )
  for step in range(stream.num_steps):
    read = stream.read(step, 1, slice(0, 1))
    yield jax.tree.map(lambda array: array[0], read)


def read_segment(
  params: shapes.PyTree,
  memory: network.State,
  segment: segment_lib.Segment[jax.Array],
  *,
  model: network.Network,
) -> InspectedSegment:
  """Reads a segment, [B, T], and shows its attention.

  The model inspects. Layers without attention are left out.
  """
  bound = model.bind({"params": params})
  hidden, after, inspected = bound.inspect(
    segment.inputs, memory, segment.resets
  )
  nll = adaptive_softmax.nll(hidden, segment.targets, bound.head())

  # The layers of each place of the pattern; keys that a layer does not have
  # are in front of those that it has.
  found = []
  for place in inspected:
    if place is None:
      continue
    terms = jax.lax.map(_layer_terms, place)
    total = terms.content + terms.distance
    total += terms.content_bias + terms.distance_bias
    weights = jax.vmap(_weights)(total, place.reach)
    num_keys = weights.shape[-1]
    visible = jax.vmap(xla_attention.visible_mask, (0, None))(
      place.reach, num_keys
    )
    found.append((terms, weights, visible[:, :, None]))
  longest = max(weights.shape[-1] for _, weights, _ in found)

  def in_order(*places: jax.Array) -> jax.Array:
    padded = []
    for array in places:
      missing = longest - array.shape[-1]
      padded.append(jnp.pad(array, [*[(0, 0)] * 4, (missing, 0)]))
    stacked = jnp.stack(padded, axis=1)  # [turns, places, B, H, T, K]
    return stacked.reshape(-1, *stacked.shape[2:])

  terms, weights, visible = jax.tree.map(in_order, *found)
  return InspectedSegment(after, nll, terms, weights, visible)


def _layer_terms(factors: scores_lib.ScoreFactors) -> Terms:
  """The terms of one layer, [B, H, T, K]."""
  query, key, _, distance = jax.tree.map(jnp.float32, factors)
  content = jnp.einsum("bthd,bkhd->bhtk", query, key)
  terms = Terms(content, *[jnp.zeros_like(content)] * 3)
  keys = distance.keys
  biases = distance.biases
  if keys is not None:
    keys = jnp.pad(keys, ((1, 0), (0, 0), (0, 0)))  # See `rel_shift`.
    scores = jnp.einsum("bthd,khd->bhtk", query, keys)
    terms = terms._replace(distance=xla_attention.rel_shift(scores))
  if biases is not None:
    assert keys is not None
    u_key = jnp.einsum("hd,bkhd->bhk", biases[0], key)[:, :, None]
    v_distance = jnp.einsum("hd,khd->hk", biases[1], keys)[None, :, None]
    v_distance = jnp.broadcast_to(v_distance, (*content.shape[:3], len(keys)))
    terms = terms._replace(
      content_bias=jnp.broadcast_to(u_key, content.shape),
      distance_bias=xla_attention.rel_shift(v_distance),
    )
  scale = query.shape[-1] ** -0.5
  terms = jax.tree.map(lambda term: term * scale, terms)
  added = xla_attention.added_scores(distance, *content.shape[2:])
  if added is None:
    return terms
  return terms._replace(distance_bias=terms.distance_bias + added[None])


def _weights(
  scores: jt.Float[shapes.Array, "B H T K"], reach: shapes.Reach
) -> jt.Float[shapes.Array, "B H T K"]:
  by_head = jnp.swapaxes(scores, 0, 1)
  return jnp.swapaxes(
    xla_attention.visible_softmax(by_head, reach, by_head.dtype), 0, 1
  )


def memory_mass(
  weights: jt.Float[shapes.Array, "N B H T K"],
) -> jt.Float[shapes.Array, "N"]:
  """The share of each layer's attention weights on memory, the first keys.

  All layers that attend are in front, N.
  """
  mem_len = weights.shape[-1] - weights.shape[-2]
  return jnp.mean(jnp.sum(weights[..., :mem_len], axis=-1), axis=(1, 2, 3))


class Report:
  """The numbers that `train.log_memory_use` adds to the log of an evaluation.

  Reads as many segments of the split as fill the memory, in all lanes of
  evaluation, and measures attention in the one after them.
  """

  def __init__(
    self, scoring: schema.Scoring, mesh: jax.sharding.Mesh, *, mem_len: int
  ):
    model = scoring.model
    evaluation = scoring.eval
    self._numbers = attending(model)
    self._without = evaluator_lib.Evaluator(scoring, mesh, mem_len=0)
    self._sharding = mesh_lib.segments(mesh)
    segment_len = min(evaluation.segment_len, mem_len)
    evaluation = dataclasses.replace(
      evaluation, segment_len=segment_len, warmup_len=0
    )
    reading = dataclasses.replace(scoring, eval=evaluation)
    self._stream = protocol.open_stream(reading, mem_len)
    filling = -(-mem_len // segment_len)
    self._num_steps = min(filling + 1, self._stream.num_steps)
    lanes = evaluation.batch_size
    inspecting = protocol.make_network(model, evaluation, inspects=True)
    self._start = functools.partial(
      network.empty_state,
      model,
      batch_size=mesh_lib.padded_lanes(mesh, lanes),
      mem_len=mem_len,
      step_len=evaluation.read_len,
    )

    def read(
      params: shapes.PyTree,
      memory: network.State,
      segment: segment_lib.Segment[jax.Array],
    ) -> tuple[network.State, jt.Float[shapes.Array, "N"]]:
      found = read_segment(params, memory, segment, model=inspecting)
      return found.memory, memory_mass(found.weights[:, :lanes])

    self._read = jax.jit(read, compiler_options=mesh_lib.compiler_options(mesh))

  def __call__(
    self, params: shapes.PyTree, *, should_stop: Callable[[], bool]
  ) -> dict[str, float] | None:
    """Returns each layer's share of attention, and the loss without memory.

    Layers without attention have no share. None if `should_stop` holds before
    the split is scored.
    """
    score = self._without.score_until(params, should_stop=should_stop)
    if score is None:
      return None
    memory = self._start()
    for step in range(self._num_steps):
      read = streams.device_segments(self._stream, step, 1, self._sharding)
      segment = jax.tree.map(lambda array: array[0], read)
      memory, shares = self._read(params, memory, segment)
    shares = exchange.fetch(shares)
    layers = {
      f"memory_share_layer_{number}": float(share)
      for number, share in zip(self._numbers, shares, strict=True)
    }
    return {"nll_without_memory": score.nll / score.num_tokens, **layers}
