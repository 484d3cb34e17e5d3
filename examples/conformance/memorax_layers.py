"""Layers of memorax: `python examples/conformance/memorax_layers.py`."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from memorax import networks
from memorax.networks import positional_embeddings as positions

from transformer_xl import conformance

INIT = {"kernel_init": nn.initializers.normal(0.5), "bias_init": nn.zeros}
TYPES = {"dtype": jnp.float32, "param_dtype": jnp.float32}
SIZES = {"features": 8, "num_heads": 2, "context_length": 160}
LAYERS = {
  "RNN(LSTMCell)": networks.RNN(nn.LSTMCell(8)),
  "Memoroid(LRUCell)": networks.Memoroid(networks.LRUCell(8, 8)),
  "Memoroid(MambaCell)": networks.Memoroid(networks.MambaCell(8, 2, 4)),
  "SelfAttention": networks.SelfAttention(**SIZES, **TYPES, **INIT),
  "SelfAttention with RoPE": networks.SelfAttention(
    **SIZES, **TYPES, **INIT, positional_embedding=positions.RoPE()
  ),
}


class Layer(conformance.Facts):
  width, gradient = 8, "flows"

  def __init__(self, layer):
    self.layer, self.step = layer, jax.jit(self.read)

  def init(self, seed):
    zeros = jnp.zeros((1, 1, 8))
    return self.layer.init(jax.random.key(seed), zeros, zeros[..., 0])

  def fresh(self, batch_size):
    carry = self.layer.initialize_carry(jax.random.key(0), (batch_size, 8))
    return carry, jnp.ones(
      (batch_size, 1), bool
    )  # The next token is the first.

  def read(self, params, inputs, memory, resets):
    starts = jnp.asarray(resets).at[:, :1].set(resets[:, :1] | memory[1])
    carry, outputs = self.layer.apply(params, inputs, starts, memory[0])
    return outputs, (carry, jnp.zeros_like(memory[1]))


if __name__ == "__main__":
  for name, layer in LAYERS.items():
    conformance.show(Layer(layer), "memorax", name)
