"""Both norms and their gradients against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from transformer_xl import hardware
from transformer_xl.model import norm

WIDTH = 48
CONFIG = tiny.model_config(layer_norm_epsilon=1e-5)
RMS = tiny.model_config(layer_norm_epsilon=1e-5, norm="rms")


def _norm(params, hidden):
  """The norm that has these parameters."""
  config = CONFIG if "bias" in params else RMS
  return norm.Norm(config).apply({"params": params}, hidden)


def _arguments(dtype):
  generator = np.random.default_rng(0)
  # Rows of unlike size, some far from a mean of 0.
  hidden = (
    generator.standard_normal((2, 5, WIDTH))
    * np.logspace(-2, 2, 5)[None, :, None]
    + np.array([0, 3])[:, None, None]
  )
  params = {
    "scale": generator.standard_normal(WIDTH) + 1,
    "bias": generator.standard_normal(WIDTH),
  }
  weights = generator.standard_normal(hidden.shape)
  # The oracle starts from what the type can hold.
  hidden = np.asarray(jnp.asarray(hidden, dtype), np.float64)
  return params, hidden, weights


def _expected(params, hidden):
  """The definitions, in NumPy and float64."""
  if "bias" not in params:
    square = np.square(hidden).mean(-1, keepdims=True)
    return hidden / np.sqrt(square + RMS.layer_norm_epsilon) * params["scale"]
  centred = hidden - hidden.mean(-1, keepdims=True)
  variance = np.square(centred).mean(-1, keepdims=True)
  normal = centred / np.sqrt(variance + CONFIG.layer_norm_epsilon)
  return normal * params["scale"] + params["bias"]


def _quotients(function, array, step=1e-6):
  """The gradient of a function of one array by central differences."""
  result = np.zeros(array.shape)
  for index in np.ndindex(array.shape):
    ends = []
    for sign in (1, -1):
      moved = array.copy()
      moved[index] += sign * step
      ends.append(function(moved))
    result[index] = (ends[0] - ends[1]) / (2 * step)
  return result


# Of a type's own rounding, a few times; gradients add WIDTH of them.
@pytest.mark.parametrize(
  ("dtype", "rounding"), [("float32", 2e-6), ("bfloat16", 1.2e-2)]
)
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("device", ["cpu", "NVIDIA H200"])
def test_values_and_gradients_are_those_of_float64(
  monkeypatch, device, kind, dtype, rounding
):
  monkeypatch.setattr(hardware, "device_kind", lambda: device)
  params, hidden, weights = _arguments(dtype)
  if kind == "rms":
    del params["bias"]
  cast = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)

  @jax.jit
  def loss(params, hidden):
    values = _norm(params, hidden)
    return jnp.sum(values.astype(jnp.float32) * weights), values

  gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
  arguments = cast, jnp.asarray(hidden, dtype)
  # A GPU has another way to sum.
  program = str(jax.make_jaxpr(gradient)(*arguments))
  assert ("optimization_barrier" in program) == (device != "cpu")
  gradients, values = gradient(*arguments)
  assert values.dtype == gradients[1].dtype == dtype

  def total(params, hidden):
    return float(np.sum(_expected(params, hidden) * weights))

  pairs = [
    (values, _expected(params, hidden)),
    (gradients[1], _quotients(lambda array: total(params, array), hidden)),
  ]
  for name in params:
    quotients = _quotients(
      lambda array, name=name: total({**params, name: array}, hidden),
      params[name],
    )
    pairs.append((gradients[0][name], quotients))
  for got, want in pairs:
    got = np.asarray(got, np.float64)
    # Row by row, since rows differ in size by four orders of magnitude.
    size = np.abs(want).max(-1, keepdims=True)
    np.testing.assert_allclose(got / size, want / size, atol=4 * rounding)


def test_the_backward_pass_keeps_the_input_and_two_numbers_a_row():
  params, hidden, _ = _arguments("bfloat16")
  narrow = jnp.asarray(hidden, jnp.bfloat16)
  _, backward = jax.vjp(_norm, params, narrow)
  kept = sorted(
    (leaf.size, leaf.dtype.name) for leaf in jax.tree.leaves(backward)
  )
  rows = hidden.size // WIDTH
  assert kept == [
    (rows, "float32"),
    (rows, "float32"),
    (WIDTH, "float32"),
    (hidden.size, "bfloat16"),
  ]


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_row_without_a_direction_has_no_gradient(value):
  rows = jnp.full((1, 1, WIDTH), value)
  params = {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}
  weights = jnp.arange(WIDTH, dtype=jnp.float32)[None, None]
  gradient = jax.grad(lambda rows: jnp.sum(_norm(params, rows) * weights))(rows)
  np.testing.assert_array_equal(gradient, 0)
