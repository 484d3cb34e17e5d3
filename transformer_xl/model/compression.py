"""Compression of the states that leave memory (Rae et al. 2020, section 3).

The function, the loss that trains a convolution and what is visible:
docs/specification.md, section 7.

Shapes: N layers, B lanes, T states, c states in a slot, S = T / c slots,
D model width, H heads, Dh head width.
"""

from typing import Any
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import layer_norm
from transformer_xl.model import parameters


class Weights(NamedTuple):
  """Of the convolution of one layer; in the model N is in front."""

  kernel: jt.Float[shapes.Array, "c D D"]
  bias: jt.Float[shapes.Array, "D"]


def weights(module: Any) -> Weights | None:
  """The parameters of all layers, named in the model; None if there are none.

  They are outside the layers, because the loss that reaches them reaches
  nothing else.
  """
  config: schema.ModelConfig = module.config
  if config.compression != "conv":
    return None
  width, count = config.model_dim, config.num_layers
  shape = (count, config.compression_rate, width, width)
  bias = module.param(
    "compression_bias", nn.initializers.zeros, (count, width), jnp.float32
  )
  kernel = parameters.kernel(module, "compression_kernel", shape)
  return Weights(kernel, bias.astype(config.dtype))


def compress(
  states: jt.Float[shapes.Array, "B T D"],
  weights: Weights | None,
  *,
  config: schema.ModelConfig,
) -> jt.Float[shapes.Array, "B S D"]:
  """One slot of each c neighbouring states of a layer, oldest first."""
  lanes, _, width = states.shape
  blocks = states.reshape(lanes, -1, config.compression_rate, width)
  if config.compression == "mean":
    return jnp.mean(blocks, axis=2)
  if config.compression == "max":
    return jnp.max(blocks, axis=2)
  assert weights is not None
  slots = jnp.einsum("bscd,cde->bse", blocks, weights.kernel)
  return slots + weights.bias[None, None]


def reconstruction(
  layers: shapes.PyTree,
  hiddens: jt.Float[shapes.Array, "N B T D"],
  leaving: jt.Float[shapes.Array, "N B T D"],
  compressed: jt.Float[shapes.Array, "N B S D"],
  num_slots: jt.Int[shapes.Array, "B"],
  *,
  config: schema.ModelConfig,
) -> shapes.Losses:
  """What attention loses by compression, for each token of a segment.

  The squared difference between attention to the states that leave and to
  their slots, by content alone, as a mean over heads and channels and a sum
  over layers. Gradients reach `compressed` only.

  Args:
    layers: parameters of the layers, with N in front.
    hiddens: inputs of the layers, which the queries are made of.
    leaving: the states that leave.
    compressed: their slots.
    num_slots: how many slots of a lane count, the newest; 0 gives a loss of 0.
    config: of the model.
  """
  heads = (config.num_heads, config.head_dim)
  age = jnp.arange(compressed.shape[2])[::-1]
  counts = age[None] < num_slots[:, None]  # [B, S]

  def of_layer(arrays):
    params, hidden, states, slots = arrays
    params, hidden, states = jax.lax.stop_gradient((params, hidden, states))

    def project(name, rows):
      if config.pre_norm:
        norm = layer_norm.LayerNorm(config, parent=None)
        rows = norm.apply({"params": params["attention_norm"]}, rows)
      kernel = params["attention"][name].astype(rows.dtype)
      return (rows @ kernel).reshape(*rows.shape[:2], *heads)

    query = project("query", hidden)

    def attend(rows, visible):
      keys, values = project("key", rows), project("value", rows)
      mask = visible[:, None, None]
      return jax.nn.dot_product_attention(query, keys, values, mask=mask)

    whole = attend(states, jnp.repeat(counts, config.compression_rate, axis=1))
    difference = (whole - attend(slots, counts)).astype(jnp.float32)
    return jnp.mean(jnp.square(difference), axis=(2, 3))

  # A layer at a time, computed again for the gradient: scores are large.
  arrays = (layers, hiddens, leaving, compressed)
  losses = jax.lax.map(jax.checkpoint(of_layer), arrays)
  return jnp.where(counts.any(axis=1)[:, None], jnp.sum(losses, axis=0), 0.0)
