"""`extend.relative_attention` against the attention of PyTorch.

PyTorch adds a mask of numbers to the scores of queries and keys. Here it holds
the scores of distances, and hides what is out of reach.
"""

import math

import jax
import numpy as np
import pytest

from tests.model.kernels import cases
from transformer_xl import extend

torch = pytest.importorskip(
  "torch",
  reason="needs PyTorch: pip install -e '.[parity]'",
  exc_type=ImportError,
)

NAMES = ("query", "key", "value", "position_key", "content_bias")
NAMES += ("position_bias",)
SIZES = (2, 17, 12, 3, 8)  # Lanes, queries, remembered, heads, head width.


def _by_head(array):
  return array.transpose(1, 2)  # [B, T, H, Dh] to [B, H, T, Dh].


def _position_scores(arrays, reach):
  """What is added to the scores [B, H, T, K]; hidden keys have -infinity."""
  num_queries, num_keys = arrays["query"].shape[1], arrays["key"].shape[1]
  query = torch.arange(num_keys - num_queries, num_keys)[:, None]
  distance = query - torch.arange(num_keys)[None]
  row = (num_keys - 1 - distance).clamp(0, num_keys - 1)
  by_distance = torch.einsum(
    "bthd,tkhd->bhtk",
    arrays["query"] + arrays["position_bias"],
    arrays["position_key"][row],
  )
  visible = (distance >= 0) & (distance <= reach[:, None, :, None])
  scaled = by_distance / math.sqrt(arrays["query"].shape[-1])
  return scaled.masked_fill(~visible, -math.inf)


def _with_a_mask(arrays, reach):
  return torch.nn.functional.scaled_dot_product_attention(
    _by_head(arrays["query"] + arrays["content_bias"]),
    _by_head(arrays["key"]),
    _by_head(arrays["value"]),
    attn_mask=_position_scores(arrays, reach),
  )


def _flexible(arrays, reach):
  from torch.nn.attention import flex_attention

  added = _position_scores(arrays, reach)
  return flex_attention.flex_attention(
    _by_head(arrays["query"] + arrays["content_bias"]),
    _by_head(arrays["key"]),
    _by_head(arrays["value"]),
    score_mod=lambda score, b, h, i, j: score + added[b, h, i, j],
  )


def _theirs(function, drawn, *, gradients):
  """Values, and gradients by the name of the argument if asked for."""
  arrays = {
    name: torch.tensor(np.asarray(drawn[name]), requires_grad=gradients)
    for name in NAMES
  }
  reach = torch.tensor(np.asarray(drawn["reach"]))
  values = _by_head(function(arrays, reach))
  if not gradients:
    return values.numpy(), {}
  values.backward(torch.tensor(np.asarray(cases.output_weights(drawn))))
  found = {name: array.grad.numpy() for name, array in arrays.items()}
  return values.detach().numpy(), found


def _ours(form, drawn):
  def attend(arrays):
    return extend.relative_attention(
      *(arrays[name] for name in NAMES), drawn["reach"], implementation=form
    )

  arrays = {name: drawn[name] for name in NAMES}
  values, pull = jax.vjp(attend, arrays)
  (gradients,) = pull(cases.output_weights(drawn))
  return values, gradients


@pytest.mark.parametrize("form", cases.FORMS)
def test_values_and_gradients_are_those_of_pytorch_with_a_mask(form):
  drawn = cases.arguments(*SIZES)
  actual = _ours(form, drawn)
  expected = _theirs(_with_a_mask, drawn, gradients=True)
  cases.assert_close(actual, expected)


@pytest.mark.filterwarnings("ignore")  # It would rather be compiled.
def test_values_are_those_of_flex_attention():
  drawn = cases.arguments(*SIZES)
  values, _ = _ours("xla", drawn)
  expected, _ = _theirs(_flexible, drawn, gradients=False)
  cases.assert_close(values, expected)
