"""Attention with a retrieved memory (Wu et al. 2022, Memorizing Transformers).

A layer remembers the keys and values of the last M tokens as they were when
they were read, without a gradient. Near tokens, up to a distance of
`memorizing.window`, are attended to as in Transformer-XL. Of the tokens beyond,
each head of a query retrieves the `top_k` whose keys have the highest products
with it, and a gate of the head mixes both (sections 3.1 and 3.2;
docs/specification.md, section 27).

Which tokens are near depends on distances alone, so results do not depend on
how a text is cut into segments.

Shapes: B lanes, T queries, M memory length, K = M + T keys, H heads, Dh head
width, D model width.
"""

from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import shapes
from transformer_xl.config import fields
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import parameters
from transformer_xl.model import scores
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.kernels import xla_attention
from transformer_xl.model.mixers import attention
from transformer_xl.model.mixers import mixer


class Memory(NamedTuple):
  """Keys and values of the last M tokens, newest last."""

  keys: jt.Float[shapes.Array, "B M H Dh"]
  values: jt.Float[shapes.Array, "B M H Dh"]

  @property
  def num_positions(self) -> int:
    """The length of the memory, M; only near ones have encodings."""
    return self.keys.shape[-3]


@registry.mixers.register("memorizing")
class Memorizing(mixer.Mixer):
  """Attention to near tokens, and to those that each query retrieves."""

  class Fields(fields.Group):
    """What `memorizing` layers retrieve (docs/memory.md)."""

    window: int = fields.field(128, "at least 1", transfer="same_shapes")
    """Largest distance that is attended to as usual; what is farther is
    retrieved. It may differ in evaluation."""
    top_k: int = fields.field(32, "at least 1", transfer="same_shapes")
    """Number of tokens that each head of a query retrieves; it may differ in
    evaluation."""

  attends = True
  takes_limit = True
  attends_zeros = False
  has_gradient_to_memory = False

  @staticmethod
  def trial(num_tokens: int) -> tuple[int, Mapping[str, object]]:
    """Most of a text of a dozen tokens is retrieved, or is not."""
    return num_tokens, {"window": 2, "top_k": 4}

  @staticmethod
  def empty_state(
    config: schema.ModelConfig,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> Memory:
    """Zeros, which no query sees."""
    del step_len
    shape = (batch_size, mem_len, config.num_heads, config.head_dim)
    zeros = jnp.zeros(shape, config.dtype)
    return Memory(zeros, zeros)

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: Memory,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Attends to near tokens, retrieves others, and mixes both by the gate."""
    config = self.config
    memorizing = config.own(Memorizing.Fields)
    encoding = encodings.of(config)
    mem_len = state.keys.shape[1]
    segment_len = hidden.shape[1]
    dropout_lanes = shared.dropout_lanes
    dropout = dropout_lib.of_attention(self, dropout_lanes)

    biases = shared.biases or encoding.layer_biases(self)
    project = parameters.Projections(self, dropout_lanes=dropout_lanes)
    rows = norm(hidden)
    query = project("query", rows)
    key = project("key", rows)
    value = project("value", rows)
    query = parameters.normalised_heads(self, "query", query)
    key = parameters.normalised_heads(self, "key", key)
    keys = jnp.concatenate([state.keys, key], axis=1)
    values = jnp.concatenate([state.values, value], axis=1)

    reach = self.reach(shared, jnp.minimum(shared.length, mem_len), mem_len)
    near_reach = jnp.minimum(reach, memorizing.window)

    # Near tokens, as any other layer with attention sees them.
    near_mem_len = min(mem_len, memorizing.window)
    near_len = near_mem_len + segment_len
    first = mem_len - near_mem_len
    distances = shared.distances
    if distances is not None:  # The smallest distances are last.
      distances = distances[distances.shape[0] - near_len :]
    terms = encoding.distance_terms(self, project, distances, near_len, biases)
    positions = jnp.arange(near_len, dtype=jnp.int32)[None, :, None, None]
    factors = scores.ScoreFactors(
      encoding.placed(config, query, positions[:, near_mem_len:]),
      encoding.placed(config, keys[:, first:], positions),
      near_reach,
      terms,
    )
    mixed = dispatch.relative_attention(
      factors,
      values[:, first:],
      dropout=dropout,
      implementation=config.attention,
    )

    gate_bias = self.param(
      "gate_bias", nn.initializers.zeros, (config.num_heads,)
    )
    if mem_len + segment_len - 1 > memorizing.window:
      far, found = retrieve(
        query,
        jax.lax.stop_gradient(keys),
        jax.lax.stop_gradient(values),
        near_reach=near_reach,
        reach=reach,
        top_k=memorizing.top_k,
      )
      gate = nn.sigmoid(gate_bias)[None, None, :, None]
      gate = jnp.where(found[:, :, None, None], gate, 0).astype(mixed.dtype)
      mixed = gate * far + (1 - gate) * mixed
    output = parameters.project_output(self, mixed, dropout_lanes=dropout_lanes)

    remembered = [shared.newest(held, mem_len) for held in (keys, values)]
    return output, mixer.Kept(
      Memory(*remembered),
      inspected=factors if self.settings.inspects else None,
    )

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """Operations of near attention, of scores beyond, and of k values."""
    memorizing = config.own(Memorizing.Fields)
    keys = reading.visible_keys(config)
    near = np.minimum(keys, memorizing.window + 1)  # And the token itself.
    far = keys - near
    retrieved = np.minimum(far, memorizing.top_k)
    width = config.num_heads * config.head_dim
    of_far = 2 * width * (far + retrieved).mean()
    return attention.attention_flops(config, num_keys=near.mean()) + of_far


def retrieve(
  query: shapes.Queries,
  keys: shapes.Keys,
  values: shapes.Keys,
  *,
  near_reach: shapes.Reach,
  reach: shapes.Reach,
  top_k: int,
) -> tuple[shapes.Queries, jt.Bool[shapes.Array, "B T"]]:
  """Attention of each query to its `top_k` best keys among the far ones.

  Far are the distances above `near_reach` and up to `reach`. Scores are scaled
  products of query and key, without positions.

  Returns:
    The weighted values, and which queries have any far key.
  """
  scores = jnp.einsum(
    "bthd,bkhd->bhtk", query, keys, preferred_element_type=jnp.float32
  )
  scores = scores * query.shape[-1] ** -0.5
  num_keys = keys.shape[1]
  is_far = xla_attention.visible_mask(reach, num_keys)
  is_far = is_far & ~xla_attention.visible_mask(near_reach, num_keys)
  lowest = jnp.finfo(jnp.float32).min
  scores = jnp.where(is_far[:, None], scores, lowest)

  best, indices = jax.lax.top_k(scores, min(top_k, num_keys))
  weights = jnp.where(best > lowest, jax.nn.softmax(best, axis=-1), 0)
  lanes, num_queries, num_heads, head_dim = query.shape
  by_head = jnp.moveaxis(values, 2, 1)  # [B, H, K, Dh]
  flat = indices.reshape(lanes, num_heads, -1, 1)
  chosen = jnp.take_along_axis(by_head, flat, axis=2)
  chosen = chosen.reshape(lanes, num_heads, num_queries, -1, head_dim)
  far = jnp.einsum(
    "bhtk,bhtkd->bthd",
    weights.astype(values.dtype),
    chosen,
    preferred_element_type=jnp.float32,
  )
  return far.astype(values.dtype), is_far.any(axis=-1)
