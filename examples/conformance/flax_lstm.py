"""Flax's LSTM: `python examples/conformance/flax_lstm.py`."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_xl import conformance


class Lstm(conformance.Facts):
  width = 6
  resets_at = "segments"  # The caller sets the state of a lane to zero.
  gradient = "flows"
  layer = nn.RNN(nn.OptimizedLSTMCell(6), return_carry=True)

  def init(self, seed):
    params = self.layer.init(jax.random.key(seed), jnp.zeros((1, 1, 6)))
    return jax.tree.map(lambda leaf: leaf + 0.3, params)

  def fresh(self, batch_size):
    return self.layer.cell.initialize_carry(jax.random.key(0), (batch_size, 6))

  @functools.partial(jax.jit, static_argnums=0)
  def step(self, params, inputs, memory, resets, lengths=None):
    memory = jax.tree.map(lambda leaf: leaf * ~resets[:, :1], memory)
    memory, outputs = self.layer.apply(
      params, inputs, initial_carry=memory, seq_lengths=lengths
    )
    return outputs, memory

  def padded(self, params, inputs, memory, count):
    resets = jnp.zeros(inputs.shape[:2], bool)
    lengths = jnp.full(len(inputs), count)
    return self.step(params, inputs, memory, resets, lengths)


if __name__ == "__main__":
  conformance.show(Lstm(), "flax", "nn.RNN")
