"""What trains a convolution that compresses memory, and what does not."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from transformer_xl.model import kinds
from transformer_xl.model import transformer_xl

LANES, SEGMENT, MEMORY, SLOTS, RATE = 3, 4, 5, 3, 2
OWN = ("compression_kernel", "compression_bias")


def read(model, params, memory, index):
  """Reads segment `index`; in lane 1 a document starts in the last two."""
  generator = np.random.default_rng(index)
  shape = (LANES, SEGMENT + 1)
  tokens = generator.integers(
    model.config.vocab_size, size=shape, dtype=np.int32
  )
  resets = np.zeros((LANES, SEGMENT), bool)
  resets[1, 1] = index == 2
  resets[2, 3] = index == 3
  return model.apply(
    {"params": params},
    *map(jnp.asarray, (tokens[:, :-1], tokens[:, 1:])),
    memory,
    jnp.asarray(resets),
    dropout_lanes=None,
    method="nll_and_activity",
  )


@functools.cache
def learned(pre_norm):
  """Parameters, gradients of both losses, and the last segment's memories."""
  config = tiny.model_config(
    compression="conv", compression_rate=RATE, pre_norm=pre_norm
  )
  model = transformer_xl.TransformerXL(config, clamp_len=0, same_length=False)
  params = tiny.params(config)
  memory = kinds.empty_memory(
    config, batch_size=LANES, mem_len=MEMORY, compressed_len=SLOTS
  )
  step = jax.jit(functools.partial(read, model), static_argnums=2)
  for index in range(3):
    *_, memory = step(params, memory, index)

  @jax.jit
  def losses(params):
    nll, activity, after = read(model, params, memory, 3)
    return jnp.sum(nll), activity.reconstruction, after

  _, reconstruction, after = losses(params)
  gradients = [
    jax.grad(lambda params: losses(params)[0])(params),
    jax.grad(lambda params: jnp.sum(losses(params)[1]))(params),
  ]
  moved = jnp.sum(read(model, params, memory._replace(compressed=None), 3)[0])
  assert abs(moved - losses(params)[0]) > 0.1  # Slots do matter.
  return params, reconstruction, gradients, memory, after


def expected(params, before, after, kernel, bias, *, pre_norm):
  """The equations in float64: [B, T], of lanes whose newest slots count."""
  layers = params["layers"]

  def normal(layer, row):
    if not pre_norm:
      return row
    scale, offset = (
      layers["attention_norm"][name][layer] for name in ("scale", "bias")
    )
    return (row - row.mean()) / np.sqrt(row.var() + 1e-5) * scale + offset

  def heads(layer, name, rows):
    rows = np.stack([normal(layer, row) for row in rows])
    return (rows @ layers["attention"][name][layer]).reshape(len(rows), 2, 4)

  def attend(layer, query, rows):
    key, value = (heads(layer, name, rows) for name in ("key", "value"))
    result = np.zeros(query.shape)
    for i, head in itertools.product(range(len(query)), range(2)):
      scores = key[:, head] @ query[i, head] / 2  # The root of d = 4.
      weights = np.exp(scores - scores.max())
      result[i, head] = weights / weights.sum() @ value[:, head]
    return result

  losses = np.zeros((LANES, SEGMENT))
  # 16 tokens were read: lane 0 sees M = 5 and 4 that have just left, lane 1 the
  # 7 tokens of its document, of which 2 have left, and lane 2 a new document.
  for lane, count in ((0, SEGMENT), (1, 2)):
    for layer in range(2):
      hidden = after[layer, lane, -SEGMENT:]
      old = before[layer, lane, :SEGMENT][SEGMENT - count :]
      new = [
        sum(
          row @ matrix for row, matrix in zip(pair, kernel[layer], strict=True)
        )
        + bias[layer]
        for pair in old.reshape(-1, RATE, old.shape[-1])
      ]
      query = heads(layer, "query", hidden)
      difference = attend(layer, query, old) - attend(layer, query, new)
      losses[lane] += (difference**2).mean(axis=(1, 2))
  return losses


@pytest.mark.parametrize("pre_norm", [False, True])
def test_reconstruction_and_its_gradient_are_the_equations(pre_norm):
  params, reconstruction, (_, gradient), *memories = learned(pre_norm)
  params = jax.tree.map(np.float64, params)
  states = [np.float64(memory.hiddens) for memory in memories]
  own = [params[name] for name in OWN]
  compute = functools.partial(expected, params, *states, pre_norm=pre_norm)
  # Float32 against float64.
  comparison.assert_close(reconstruction, compute(*own), roundings=30)
  generator, tiny_step = np.random.default_rng(0), 1e-5
  for _ in range(4):
    ways = [generator.standard_normal(array.shape) for array in own]
    ahead, behind = (
      compute(
        *(a + sign * tiny_step * w for a, w in zip(own, ways, strict=True))
      ).sum()
      for sign in (1, -1)
    )
    products = np.concatenate(
      [
        np.ravel(np.float64(gradient[name]) * way)
        for name, way in zip(OWN, ways, strict=True)
      ]
    )
    # Products of both signs cancel, their rounding does not.
    tolerance = 1e-5 * np.abs(products).sum()
    slope = (ahead - behind) / (2 * tiny_step)
    assert products.sum() == pytest.approx(slope, abs=tolerance)


def test_a_checkpoint_without_compression_has_what_it_had():
  memory = kinds.empty_memory(tiny.model_config(), batch_size=1, mem_len=2)
  assert [*memory.arrays] == ["hiddens", "length"]
  assert len(memory.sizes) == 4


def test_each_loss_trains_its_own_parameters():
  _, _, (of_text, of_reconstruction), *_ = learned(False)
  for name in of_text:
    sizes = [
      max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient[name]))
      for gradient in (of_text, of_reconstruction)
    ]
    assert (sizes[0] == 0) == (name in OWN), name
    assert (sizes[1] == 0) == (name not in OWN), name
