"""The equations that all else is held against: by hand, and their slopes.

That the numbers are those of the published model, `tests/parity` says.
"""

import numpy as np
import pytest

from tests import comparison
from transformer_xl.check import attention_numbers
from transformer_xl.conformance.equations import attention
from transformer_xl.conformance.equations import softmax

SIZES = attention_numbers.Sizes(5, 7, 2, 4)


def assert_slopes(function, arrays, found):
  """Central differences of a function in every number of its arrays."""
  assert arrays.keys() == found.keys()
  step = 1e-5
  slopes = {name: np.zeros(array.shape) for name, array in arrays.items()}
  for name, array in arrays.items():
    for index in np.ndindex(array.shape):
      value = array[index]
      array[index] = value + step
      above = function()
      array[index] = value - step
      below = function()
      array[index] = value
      slopes[name][index] = (above - below) / (2 * step)
  # A wrong term changes them by more than 1e-3.
  assert comparison.difference(found, slopes) < 1e-7


def test_a_score_has_the_terms_of_the_paper():
  """Two queries and a remembered key, of one head that is four wide."""
  one = np.array([0.5, 0.0, 0.0, 0.0])
  inputs = {
    "query": np.stack([2 * one, 3 * one])[None, :, None],
    "key": np.stack([one, 4 * one, 2 * one])[None, :, None],
    "value": np.array([[1.0] * 4, [10.0] * 4, [100.0] * 4])[None, :, None],
    "reach": np.array([[2, 1]]),
    # The rows are of the distances 2, 1 and 0.
    "position_key": np.stack([9 * one, 5 * one, 1 * one])[:, None],
    "content_bias": 1 * one[None],
    "position_bias": 2 * one[None],
    "slopes": np.array([0.25]),
  }
  # (q + u) k + (q + v) r, each product a quarter, over the root of four; less
  # the slope.
  first = [(3 * 1 + 4 * 5) / 8 - 0.25, (3 * 4 + 4 * 1) / 8]
  second = [(4 * 4 + 5 * 5) / 8 - 0.25, (4 * 2 + 5 * 1) / 8]
  expected = [
    np.exp(first) @ [1, 10] / np.exp(first).sum(),
    np.exp(second) @ [10, 100] / np.exp(second).sum(),
  ]
  values = attention.attention(inputs)["values"]
  np.testing.assert_allclose(values[0, :, 0, 0], expected, rtol=1e-12)
  # Dropout keeps one key of the first query, and none of the second.
  kept = np.array([[[[True, False, True], [True, False, False]]]])
  dropped = attention.attention(inputs, kept=kept, rate=0.5)["values"]
  weight = np.exp(first)[0] / np.exp(first).sum()
  np.testing.assert_allclose(dropped[0, :, 0, 0], [2 * weight, 0], rtol=1e-12)


@pytest.mark.parametrize("kind", attention_numbers.TERMS)
def test_attention_gradients_are_the_slopes_of_its_values(kind):
  drawn = attention_numbers.draw_attention(2, SIZES, kind, "float32")
  inputs = {name: np.float64(array) for name, array in drawn.items()}
  arrays = {
    name: inputs[name] for name in inputs if name not in ("reach", "slopes")
  }
  draw = np.random.default_rng(1)
  output_gradient = draw.standard_normal(inputs["query"].shape)
  seeds = draw.integers(-(2**31), 2**31, size=(2, 2), dtype=np.int32)
  kept = attention.kept_weights(seeds, 5, 12, rate=0.4)
  found = attention.attention(inputs, output_gradient, kept=kept, rate=0.4)

  def total():
    values = attention.attention(inputs, kept=kept, rate=0.4)["values"]
    return (values * output_gradient).sum()

  del found["values"]
  assert_slopes(total, arrays, found)


def draw_softmax(draw):
  """Weights of three clusters, 3, 2 and 4 words of 5, 3 and 2 numbers."""
  return softmax.Weights(
    kernels=[draw.standard_normal(shape) for shape in ((3, 5), (2, 3), (4, 2))],
    projections=[draw.standard_normal((width, 5)) for width in (5, 3, 2)],
    bias=draw.standard_normal(9),
    cluster_kernel=draw.standard_normal((2, 5)),
    cluster_bias=draw.standard_normal(2),
  )


def test_softmax_gradients_are_the_slopes_of_its_losses():
  """Central differences of the losses in every number."""
  draw = np.random.default_rng(0)
  hidden = draw.standard_normal((6, 5))
  targets = np.array([0, 2, 3, 4, 8, 3])
  weights = draw_softmax(draw)
  loss_gradient = draw.standard_normal(6)

  def loss():
    found = softmax.losses(hidden, targets, weights, loss_gradient)
    return found["losses"] @ loss_gradient

  arrays = {
    "hidden": hidden,
    "bias": weights.bias,
    "cluster_kernel": weights.cluster_kernel,
    "cluster_bias": weights.cluster_bias,
    **{f"kernel_{i}": kernel for i, kernel in enumerate(weights.kernels)},
    **{f"projection_{i}": rows for i, rows in enumerate(weights.projections)},
  }
  found = softmax.losses(hidden, targets, weights, loss_gradient)
  del found["losses"]
  assert_slopes(loss, arrays, found)


def test_softmax_losses_are_probabilities_of_one_vocabulary():
  draw = np.random.default_rng(1)
  weights = draw_softmax(draw)
  hidden = np.tile(draw.standard_normal(5), (9, 1))
  found = softmax.losses(hidden, np.arange(9), weights, np.ones(9))
  assert np.exp(-found["losses"]).sum() == pytest.approx(1, rel=1e-12)
  every = softmax.log_probs(hidden, weights)
  np.testing.assert_allclose(found["losses"], -np.diag(every), rtol=1e-12)
