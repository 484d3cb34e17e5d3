"""The NumPy references of the check are the definitions of the other tests."""

import numpy as np
import pytest

from tests import comparison
from tests.model.kernels import cases
from transformer_xl.check import attention_numbers
from transformer_xl.check import attention_reference
from transformer_xl.check import softmax_reference

SIZES = attention_numbers.Sizes(5, 7, 2, 4)


@pytest.mark.parametrize("kind", attention_numbers.TERMS)
def test_attention_and_its_gradients_are_those_of_autodiff(kind):
  """In float64 on both sides, with dropout."""
  arrays = attention_numbers.draw_attention(2, SIZES, kind, "float32")
  dropout = cases.dropout(arrays, 0.4)
  defined = cases.defined_value_and_gradients(arrays, dropout)
  kept = attention_reference.kept_weights(
    np.asarray(dropout.seeds), 5, 12, rate=0.4
  )
  found = attention_reference.attention(
    {name: array.astype(np.float64) for name, array in arrays.items()},
    np.asarray(cases.output_weights(arrays), np.float64),
    kept=kept,
    rate=0.4,
  )
  expected = {"values": defined[0], **defined[1]}
  assert found.keys() == expected.keys()
  # Float64 on both sides; a wrong term changes them by more than 1e-3.
  assert comparison.difference(found, expected) < 1e-12


def test_softmax_gradients_are_the_slopes_of_its_losses():
  """Central differences of the losses in every number."""
  draw = np.random.default_rng(0)
  hidden = draw.standard_normal((6, 5))
  targets = np.array([0, 2, 3, 4, 8, 3])
  weights = softmax_reference.Weights(
    kernels=[draw.standard_normal(shape) for shape in ((3, 5), (2, 3), (4, 2))],
    projections=[draw.standard_normal((width, 5)) for width in (5, 3, 2)],
    bias=draw.standard_normal(9),
    cluster_kernel=draw.standard_normal((2, 5)),
    cluster_bias=draw.standard_normal(2),
  )
  loss_gradient = draw.standard_normal(6)

  def loss():
    found = softmax_reference.losses(hidden, targets, weights, loss_gradient)
    return found["losses"] @ loss_gradient

  arrays = {
    "hidden": hidden,
    "bias": weights.bias,
    "cluster_kernel": weights.cluster_kernel,
    "cluster_bias": weights.cluster_bias,
    **{f"kernel_{i}": kernel for i, kernel in enumerate(weights.kernels)},
    **{f"projection_{i}": rows for i, rows in enumerate(weights.projections)},
  }
  found = softmax_reference.losses(hidden, targets, weights, loss_gradient)
  assert arrays.keys() == found.keys() - {"losses"}
  step = 1e-6
  for name, array in arrays.items():
    for index in np.ndindex(array.shape):
      value = array[index]
      array[index] = value + step
      above = loss()
      array[index] = value - step
      below = loss()
      array[index] = value
      slope = (above - below) / (2 * step)
      assert found[name][index] == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_softmax_losses_are_probabilities_of_one_vocabulary():
  draw = np.random.default_rng(1)
  weights = softmax_reference.Weights(
    kernels=[draw.standard_normal(shape) for shape in ((3, 5), (2, 3), (4, 2))],
    projections=[draw.standard_normal((width, 5)) for width in (5, 3, 2)],
    bias=draw.standard_normal(9),
    cluster_kernel=draw.standard_normal((2, 5)),
    cluster_bias=draw.standard_normal(2),
  )
  hidden = np.tile(draw.standard_normal(5), (9, 1))
  found = softmax_reference.losses(hidden, np.arange(9), weights, np.ones(9))
  assert np.exp(-found["losses"]).sum() == pytest.approx(1, rel=1e-12)
