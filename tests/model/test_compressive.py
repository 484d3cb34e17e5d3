"""Slots: the loss that trains their convolution alone, and their work."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from transformer_xl import errors
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer

LANES, SEGMENTS = 2, 3
OWN = ("kernel", "bias")


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.grad, argnums=1)
def gradient(model, params, state, tokens):
  """Returns the gradient of the mixers' own losses, summed over all tokens.

  `tokens` are consecutive segments with their targets, [S, B, T + 1].
  """
  total = 0.0
  for segment in tokens:
    _, losses, state = model.apply(
      {"params": params},
      segment[:, :-1],
      segment[:, 1:],
      state,
      jnp.zeros(segment[:, 1:].shape, bool),
      dropout_lanes=None,
      method="training_losses",
    )
    total += jnp.sum(losses.mixers)
  return total


@pytest.mark.rest
@pytest.mark.parametrize(
  ("segment_len", "mem_len", "trains_memory"),
  [
    pytest.param(8, 2, False, marks=pytest.mark.rest, id="all of it leaves"),
    pytest.param(4, 6, True, id="gradient segments"),
  ],
)
def test_only_the_convolution_learns(segment_len, mem_len, trains_memory):
  config = tiny.model_config(
    **{
      "layers": ("compressive", "attention"),
      "compressive.rate": 2,
      "compressive.slots": 3,
      "pre_norm": True,
    }
  )
  settings = mixer.Settings(returns_losses=True, trains_memory=trains_memory)
  state = network.empty_state(
    config, batch_size=LANES, mem_len=mem_len, step_len=segment_len
  )
  tokens = np.random.default_rng(0).integers(
    config.vocab_size, size=(SEGMENTS, LANES, segment_len + 1), dtype=np.int32
  )
  found = gradient(
    network.Network(config, settings),
    tiny.params(config),
    state,
    jnp.asarray(tokens),
  )
  own = found["layers"]["0"]["compressive"].pop("compression")
  assert all(jnp.any(own[name] != 0) for name in OWN)
  assert not any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(found))


BATCH, SEGMENT, MEMORY, SLOTS = 3, 4, 5, 3


def make_segment(vocab_size, index):
  """Tokens and resets; a document starts in lane 1, then in lane 2."""
  generator = np.random.default_rng(index)
  tokens = generator.integers(
    vocab_size, size=(BATCH, SEGMENT + 1), dtype=np.int32
  )
  resets = np.zeros((BATCH, SEGMENT), bool)
  resets[1, 1] = index == 2
  resets[2, 3] = index == 3
  return jnp.asarray(tokens), jnp.asarray(resets)


def read(model, params, state, tokens, resets):
  """Reads a segment."""
  return model.apply(
    {"params": params},
    tokens[:, :-1],
    tokens[:, 1:],
    state,
    resets,
    dropout_lanes=None,
    method="training_losses",
  )


class Read(NamedTuple):
  """The mixers' losses of a segment, and the state after it."""

  losses: jax.Array
  state: network.State


def read_segments(config, params):
  """What each of four segments gives."""
  model = network.Network(config, mixer.Settings(returns_losses=True))
  state = network.empty_state(
    config, batch_size=BATCH, mem_len=MEMORY, step_len=SEGMENT
  )
  step = jax.jit(functools.partial(read, model))
  results = []
  for index in range(4):
    segment = make_segment(config.vocab_size, index)
    _, losses, state = step(params, state, *segment)
    results.append(Read(losses.mixers, state))
  return results


def of_fourth_segment(pre_norm, rate):
  """Parameters, the losses of a segment, their gradient, inputs of layers."""
  config = tiny.model_config(
    **{
      "layers": ("compressive",),
      "compressive.function": "conv",
      "compressive.rate": rate,
      "compressive.slots": SLOTS,
      "pre_norm": pre_norm,
    }
  )
  model = network.Network(config, mixer.Settings(returns_losses=True))
  params = tiny.params(config)
  segments = read_segments(config, params)
  before = segments[-2]
  after = segments[-1]
  last = make_segment(config.vocab_size, 3)

  @jax.jit
  @jax.grad
  def gradient(params):
    return jnp.sum(read(model, params, before.state, *last)[1].mixers)

  inputs = [
    np.float64(each.state.layers[0].hiddens) for each in (before, after)
  ]
  return params, after.losses, gradient(params), inputs


def equations(params, before, after, kernel, bias, *, pre_norm, rate):
  """The losses in float64, [B, T], of lanes whose newest slots are visible.

  `before` and `after` are the inputs of the layers [N, B, M, D] that memory
  holds before and after the segment. See docs/specification.md, section 7.
  """
  layers = params["layers"]["0"]

  def normal(layer, row):
    if not pre_norm:
      return row
    scale = layers["mixer_norm"]["scale"][layer]
    offset = layers["mixer_norm"]["bias"][layer]
    return (row - row.mean()) / np.sqrt(row.var() + 1e-5) * scale + offset

  def heads(layer, name, rows):
    rows = np.stack([normal(layer, row) for row in rows])
    return (rows @ layers["compressive"][name][layer]).reshape(len(rows), 2, 4)

  def attend(layer, query, rows):
    key = heads(layer, "key", rows)
    value = heads(layer, "value", rows)
    result = np.zeros(query.shape)
    for i, head in itertools.product(range(len(query)), range(2)):
      scores = key[:, head] @ query[i, head] / 2  # The root of Dh = 4.
      weights = np.exp(scores - scores.max())
      result[i, head] = weights / weights.sum() @ value[:, head]
    return result

  losses = np.zeros((BATCH, SEGMENT))
  # 16 tokens were read: lane 0 sees M = 5 and, of the 4 that have just left, as
  # many as the slots hold; lane 1 sees the 7 tokens of its document, of which 2
  # have left; and lane 2 a new document.
  for lane, count in ((0, min(SEGMENT, SLOTS * rate)), (1, 2)):
    for layer in range(2):
      hidden = after[layer, lane, -SEGMENT:]
      old = before[layer, lane, SEGMENT - count : SEGMENT]
      groups = old.reshape(-1, rate * old.shape[-1])
      new = groups @ kernel[layer] + bias[layer]
      query = heads(layer, "query", hidden)
      difference = attend(layer, query, old) - attend(layer, query, new)
      losses[lane] += (difference**2).mean(axis=(1, 2))
  return losses


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("pre_norm", "rate"),
  [
    pytest.param(False, 2, marks=pytest.mark.rest),
    (True, 2),
    (True, 1),  # One more leaves than there are slots.
  ],
)
def test_the_loss_and_its_gradient_are_the_equations(pre_norm, rate):
  params, losses, gradient, inputs = of_fourth_segment(pre_norm, rate)
  params = jax.tree.map(np.float64, params)
  own = [
    params["layers"]["0"]["compressive"]["compression"][name] for name in OWN
  ]
  slopes = [
    np.float64(gradient["layers"]["0"]["compressive"]["compression"][name])
    for name in OWN
  ]
  compute = functools.partial(
    equations, params, *inputs, pre_norm=pre_norm, rate=rate
  )
  assert np.all(compute(*own)[:2] > 1e-4)
  # Float32 against float64.
  comparison.assert_close(losses, compute(*own), roundings=30)

  generator = np.random.default_rng(0)
  step = 1e-5
  for _ in range(4):
    ways = [generator.standard_normal(array.shape) for array in own]
    ahead = compute(*(a + step * w for a, w in zip(own, ways, strict=True)))
    behind = compute(*(a - step * w for a, w in zip(own, ways, strict=True)))
    slope = (ahead.sum() - behind.sum()) / (2 * step)
    products = [np.ravel(s * w) for s, w in zip(slopes, ways, strict=True)]
    products = np.concatenate(products)
    # Products of both signs cancel, their rounding does not.
    tolerance = 1e-5 * np.abs(products).sum()
    assert products.sum() == pytest.approx(slope, abs=tolerance)


def test_all_places_of_a_pattern_add_their_losses():
  """Two places of one kind have the losses of two layers in one scan."""
  slots = {"compressive.rate": 2, "compressive.slots": SLOTS}
  plain, pattern = (
    tiny.model_config(layers=("compressive",) * count, **slots)
    for count in (1, 2)
  )
  params = tiny.params(plain)
  expected = read_segments(plain, params)[-1].losses
  found = read_segments(pattern, tiny.in_places(params, 2))[-1].losses
  assert float(jnp.max(expected)) > 1e-2
  # Compiled in another loop.
  comparison.assert_close(found, expected, roundings=30)


def test_inputs_that_wait_count_for_no_slot():
  """After 8 tokens, 3 of the document have left a memory of 5.

  Two of them wait for a third, so the newest slot holds one token and zeros,
  and has no loss. After 12 tokens none waits, and two slots are whole.
  """
  slots = {"compressive.rate": 3, "compressive.slots": SLOTS}
  config = tiny.model_config(layers=("compressive",), **slots)
  # No document starts in lane 0.
  losses = [
    np.asarray(each.losses[0])
    for each in read_segments(config, tiny.params(config))
  ]
  assert not np.any(losses[0])
  assert not np.any(losses[1])
  assert np.all(losses[2] > 0)


@pytest.mark.parametrize("updates", [{"num_kv_heads": 1}, {"qk_norm": True}])
def test_heads_that_are_not_plain_are_refused(updates):
  with pytest.raises(errors.UserError, match="attention with plain heads of"):
    tiny.model_config(layers=("compressive",), **updates)
