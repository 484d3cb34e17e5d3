"""Layers of sequence-layers: steps, and its form for whole sequences."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import sequence_layers.jax as sl

from transformer_xl import conformance

HEADS = {"num_heads": 2, "units_per_head": 4, "max_past_horizon": 16}
CONFIGS = (sl.LSTM.Config(8), sl.DotProductSelfAttention.Config(**HEADS))


class Layer(conformance.Facts):
  width, resets_at, gradient = 8, "segments", "flows"

  def __init__(self, config):
    self.layer, self.step = config.make(), jax.jit(self.read)

  def init(self, seed):
    none = sl.Sequence.from_values(jnp.zeros((1, 1, 8)))
    params = self.layer.init(jax.random.key(seed), none, training=False)
    return jax.tree.map(lambda leaf: 2 * leaf, nn.unbox(params))

  def fresh(self, batch_size):
    start = self.layer.bind(self.init(0)).get_initial_state
    return start(batch_size, sl.ChannelSpec((8,), jnp.float32), training=False)

  def read(self, params, inputs, memory, resets, is_text=True):
    def put(old, new):
      lanes = resets[:, 0].reshape(-1, *[1] * (old.ndim - 1))
      return jnp.where(lanes, new, old)

    memory = jax.tree.map(put, memory, self.fresh(len(inputs)))
    segment = sl.Sequence(inputs, jnp.full(inputs.shape[:2], is_text))
    layer = self.layer.bind(params)
    outputs, memory = layer.step(segment, memory, training=False)
    return outputs.values, memory

  def padded(self, params, inputs, memory, count):
    is_text = np.arange(inputs.shape[1])[None] < count
    resets = np.zeros(inputs.shape[:2], bool)
    return self.step(params, inputs, memory, resets, is_text)

  def reference(self, params, inputs, resets):
    whole = sl.Sequence.from_values(jnp.asarray(inputs))
    return self.layer.apply(params, whole, training=False).values


if __name__ == "__main__":
  for config in CONFIGS:
    name = type(config).__qualname__.partition(".")[0]
    conformance.show(Layer(config), "sequence-layers", name)
