"""The backward pass of an LSTM is that of its steps one after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from transformer_xl.model.mixers import lstm

LENGTH, LANES, WIDTH = 11, 3, 5


def arguments(dtype=np.float32):
  """Random gates, matrices and vectors; some tokens start a document."""
  generator = np.random.default_rng(0)
  draw = generator.standard_normal
  resets = np.zeros((LENGTH, LANES), bool)
  resets[[0, 4, 5, 10], [0, 0, 1, 2]] = True
  return (
    draw((LENGTH, LANES, 4 * WIDTH)).astype(dtype),
    draw((WIDTH, 4 * WIDTH)).astype(dtype),
    lstm.CellState(*draw((2, LANES, WIDTH)).astype(dtype)),
    resets,
  )


def step_by_step(gates, kernel, start, resets):
  """The equations of docs/specification.md, section 25."""
  cell, output = start
  cells = []
  outputs = []
  for own_gates, reset in zip(gates, resets, strict=True):
    output = jnp.where(reset[:, None], 0, output)
    cell = jnp.where(reset[:, None], 0, cell)
    i, f, g, o = jnp.split(own_gates + output @ kernel, 4, axis=1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    output = jax.nn.sigmoid(o) * jnp.tanh(cell)
    cells.append(cell)
    outputs.append(output)
  return lstm.CellState(jnp.stack(cells), jnp.stack(outputs))


def loss_of(read, weights):
  """A number that every cell and every output has a part in."""

  def loss(gates, kernel, start, resets):
    read_rows = read(gates, kernel, start, resets)
    return sum(jnp.vdot(*pair) for pair in zip(read_rows, weights, strict=True))

  return loss


@functools.cache
def gradients(read, dtype):
  """Those of gates and kernel in this type, and of the vectors at the start."""
  gates, kernel, start, resets = arguments()
  weights = gates[:, :, : 2 * WIDTH].reshape(2, LENGTH, LANES, WIDTH)
  rows = (gates.astype(dtype), kernel.astype(dtype), start)
  loss = loss_of(read, weights)
  return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*rows, resets)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_gradient_is_that_of_the_steps(dtype):
  actual = gradients(lstm.read_tokens, dtype)
  expected = gradients(step_by_step, jnp.float32)
  assert actual[0].dtype == actual[1].dtype == dtype
  # Sums over a dozen tokens, whose factors are rounded, too.
  comparison.assert_close(actual[:2], expected[:2], roundings=15)
  rounding = jnp.finfo(dtype).eps / comparison.FLOAT32
  comparison.assert_close(actual[2], expected[2], roundings=15 * rounding)


def test_a_segment_is_read_step_by_step():
  comparison.assert_close(
    jax.jit(lstm.read_tokens)(*arguments()),
    step_by_step(*arguments()),
    roundings=15,
  )
