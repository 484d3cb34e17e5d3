"""Attention in blocks of queries against the plain one."""

import functools

import jax
import pytest

from tests.model.kernels import cases
from transformer_xl.model import attention


def chunked(dropout, **arrays):
  return attention.chunked_attention(attention.Inputs(**arrays), dropout)


@pytest.mark.parametrize(
  ("sizes", "rate", "encoding"),
  [
    *(
      (sizes, rate, "relative")
      for sizes in ((2, 9, 0, 2, 4), (1, 8, 5, 3, 5))
      for rate in (None, 0.5)
    ),
    ((1, 8, 5, 3, 5), 0.5, "alibi"),
    *(
      pytest.param((1, 8, 5, 3, 5), 0.5, encoding, marks=pytest.mark.rest)
      for encoding in ("shaw", "none")
    ),
  ],
)
def test_values_and_gradients_are_those_of_plain_attention(
  sizes, rate, encoding, monkeypatch
):
  monkeypatch.setattr(attention, "BLOCK", 4)
  arrays = cases.arguments(*sizes, encoding=encoding)
  dropout = rate and cases.dropout(arrays, rate)
  plain = functools.partial(attention.relative_attention, dropout=dropout)
  blocks = functools.partial(chunked, dropout)
  cases.assert_close(
    cases.value_and_gradients(blocks, arrays),
    cases.value_and_gradients(plain, arrays),
  )


@pytest.mark.parametrize("rate", [None, 0.5])
def test_no_probabilities_are_kept_for_the_backward_pass(rate, monkeypatch):
  monkeypatch.setattr(attention, "BLOCK", 4)
  # Scores have far more numbers than any argument.
  arrays = cases.arguments(1, 8, 8, 9, 1)
  dropout = rate and cases.dropout(arrays, rate)
  reach = arrays.pop("reach")

  def residuals(function):
    attend = functools.partial(function, reach=reach, dropout=dropout)
    shapes = jax.eval_shape(
      lambda arrays: jax.vjp(lambda arrays: attend(**arrays), arrays)[1], arrays
    )
    return max(leaf.size for leaf in jax.tree.leaves(shapes))

  largest = max(leaf.size for leaf in arrays.values())
  assert residuals(chunked) <= largest
  assert residuals(attention.relative_attention) >= 9 * 8 * 16 > largest
