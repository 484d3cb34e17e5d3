"""Attention in blocks of queries against the plain one."""

import functools

import jax
import pytest

from tests.kernels import cases
from transformer_xl import attention
from transformer_xl.kernels import chunked


def _halve(probabilities):
  return 0.5 * probabilities


@pytest.mark.parametrize("dropout", [None, _halve])
@pytest.mark.parametrize("sizes", [(2, 9, 0, 2, 4), (1, 8, 5, 3, 5)])
def test_values_and_gradients_are_those_of_plain_attention(
  sizes, dropout, monkeypatch
):
  monkeypatch.setattr(chunked, "BLOCK", 4)
  arrays = cases.arguments(*sizes)
  plain = functools.partial(
    attention.relative_attention, dropout=dropout or (lambda weights: weights)
  )
  blocks = functools.partial(chunked.relative_attention, dropout=dropout)
  cases.assert_close(
    cases.value_and_gradients(blocks, arrays),
    cases.value_and_gradients(plain, arrays),
  )


def test_no_probabilities_are_kept_for_the_backward_pass(monkeypatch):
  monkeypatch.setattr(chunked, "BLOCK", 4)
  # Scores have far more numbers than any argument.
  arrays = cases.arguments(1, 8, 8, 9, 1)
  reach = arrays.pop("reach")

  def residuals(dropout):
    attend = functools.partial(
      chunked.relative_attention, reach=reach, dropout=dropout
    )
    shapes = jax.eval_shape(
      lambda arrays: jax.vjp(lambda arrays: attend(**arrays), arrays)[1], arrays
    )
    return max(leaf.size for leaf in jax.tree.leaves(shapes))

  assert residuals(None) <= max(leaf.size for leaf in arrays.values())
  assert residuals(_halve) >= 9 * 4 * 16
