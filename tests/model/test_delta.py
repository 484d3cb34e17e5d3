"""The chunks of the gated delta rule equal its recurrence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from transformer_xl.model import network
from transformer_xl.model.mixers import delta

LANES, LENGTH, HEADS, KEY, VALUE = 2, 13, 2, 3, 5
# Sums over a dozen tokens, in another order.
ROUNDINGS = 60


def arguments(*, decays=True):
  """Random rows, gates and matrices; some tokens start a document."""
  generator = np.random.default_rng(0)
  draw = generator.standard_normal
  key = draw((LANES, LENGTH, HEADS, KEY))
  # Keys that repeat, where a token replaces what an earlier one wrote.
  key[:, 4:9] = key[:, 3:4]
  gates = (LANES, LENGTH, HEADS)
  resets = np.zeros((LANES, LENGTH), bool)
  resets[0, [0, 5, 6, 11]] = True
  return {
    "query": draw((LANES, LENGTH, HEADS, KEY)),
    "key": key / np.linalg.norm(key, axis=-1, keepdims=True),
    "value": draw((LANES, LENGTH, HEADS, VALUE)),
    "log_decay": -generator.exponential(size=gates) * decays,
    "write": generator.random(gates) if decays else np.ones(gates),
    "resets": resets,
    "matrices": draw((LANES, HEADS, KEY, VALUE)),
  }


def token_by_token(array, rows):
  """The recurrence as it is written, with any `array` of numpy or jax.numpy."""
  outputs = array.zeros((LANES, 0, HEADS, VALUE))
  matrices = rows["matrices"]
  for t in range(LENGTH):
    query, key, value = (rows[x][:, t] for x in ("query", "key", "value"))
    reset = rows["resets"][:, t, None, None, None]
    alpha = array.exp(rows["log_decay"][:, t])[..., None, None]
    beta = rows["write"][:, t][..., None, None]
    matrices = array.where(reset, 0.0, matrices)
    erase = array.eye(KEY) - beta * key[..., :, None] * key[..., None, :]
    new = beta * key[..., :, None] * value[..., None, :]
    matrices = alpha * (erase @ matrices) + new
    output = (query[..., None, :] @ matrices)[:, None, :, 0]
    outputs = array.concatenate([outputs, output], axis=1)
  return outputs, matrices


@functools.partial(jax.jit, static_argnames="chunk_len")
def in_chunks(rows, chunk_len):
  tokens = delta.TokenInputs(
    **{name: rows[name] for name in delta.TokenInputs._fields}
  )
  return delta.read_chunks(tokens, rows["matrices"], chunk_len=chunk_len)


def to_jax(rows):
  return {
    name: jnp.asarray(x, bool if name == "resets" else jnp.float32)
    for name, x in rows.items()
  }


@pytest.mark.parametrize(
  ("chunk_len", "decays"), [(1, True), (4, True), (13, True), (4, False)]
)
def test_chunks_of_any_length_equal_single_tokens(chunk_len, decays):
  rows = arguments(decays=decays)
  actual = in_chunks(to_jax(rows), chunk_len)
  expected = token_by_token(np, rows)
  comparison.assert_close(actual, expected, roundings=ROUNDINGS)


def test_the_gradient_is_that_of_the_recurrence():
  rows = to_jax(arguments())
  resets = rows.pop("resets")
  weights = jnp.asarray(
    np.random.default_rng(1).standard_normal((LANES, LENGTH, HEADS, VALUE)),
    jnp.float32,
  )

  def loss(rows, read):
    outputs, matrices = read(rows | {"resets": resets})
    return jnp.sum(outputs * weights) + jnp.sum(jnp.square(matrices))

  def of_chunks(rows):
    return in_chunks(rows, 4)

  def of_tokens(rows):
    with jax.numpy_rank_promotion("allow"):
      return token_by_token(jnp, rows)

  actual = jax.jit(jax.grad(functools.partial(loss, read=of_chunks)))(rows)
  expected = jax.jit(jax.grad(functools.partial(loss, read=of_tokens)))(rows)
  comparison.assert_close(actual, expected, roundings=ROUNDINGS)


def test_the_delta_rule_starts_from_published_ranges():
  """Steps and rates of Mamba-2; a convolution as PyTorch draws one."""
  config = tiny.model_config(layers=("delta",), num_heads=64)
  draw = jax.jit(functools.partial(network.init_params, config))
  layer = jax.tree.map(
    np.float64, draw(jax.random.key(0))["layers"]["0"]["delta"]
  )
  step = np.log1p(np.exp(layer["step_bias"]))
  rate = np.exp(layer["rate_bias"])
  # A uniform draw in +-1 / sqrt(4), from four taps.
  taps = layer["convolution"]
  for values, (low, high) in (
    (np.log(step), np.log([1e-3, 1e-1])),
    (rate, (1, 16)),
    (taps, (-0.5, 0.5)),
  ):
    assert low - 1e-5 < values.min() < low + 0.1 * (high - low)
    assert high - 0.1 * (high - low) < values.max() < high + 1e-5
    # 128 values or more: four standard errors.
    assert abs(values.mean() - (low + high) / 2) < 0.1 * (high - low)
