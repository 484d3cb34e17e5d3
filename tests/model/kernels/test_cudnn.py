"""What JAX's own attention is asked, and what it cannot serve.

Its numbers are compared in test_model.py, computed by XLA: no test has a GPU.
"""

import jax
import jax.numpy as jnp
import pytest

from tests import tiny
from transformer_xl import errors
from transformer_xl.model import attention
from transformer_xl.model import network
from transformer_xl.model.kernels import cudnn
from transformer_xl.model.kernels import device


def _inputs(dtype=jnp.bfloat16, head_dim=8, query_len=2):
  key = jnp.ones((2, 6, 3, head_dim), dtype)
  reach = jnp.full((2, query_len), 3, jnp.int32)
  return attention.Inputs(key[:, 6 - query_len :], key, key, reach)


@pytest.mark.parametrize(
  ("inputs", "expected"),
  [
    ({"dtype": jnp.float32}, "set --config.model.dtype=bfloat16"),
    ({"head_dim": 12}, "there are 12; change --config.model.head_dim"),
    ({"head_dim": 136}, "a multiple of 8 channels up to 128"),
    ({"query_len": 3}, "needs segments and memories of even lengths"),
  ],
)
def test_what_it_cannot_serve_is_refused(monkeypatch, inputs, expected):
  monkeypatch.setattr(device, "device_kind", lambda: "NVIDIA H200")
  with pytest.raises(errors.UserError) as error:
    cudnn.relative_attention(_inputs(**inputs), None)
  assert "model.attention=cudnn" in str(error.value)
  assert expected in str(error.value)


def test_parameters_are_drawn_whatever_it_serves(monkeypatch):
  """One token has the odd length that it refuses."""
  monkeypatch.setattr(device, "device_kind", lambda: "NVIDIA H200")
  cudnn_config, other = (
    tiny.model_config(attention=attention, encoding="rope")
    for attention in ("cudnn", "reference")
  )
  shapes = network.abstract_params(cudnn_config)
  assert shapes == network.abstract_params(other)


@pytest.mark.parametrize(
  ("kind", "expected"), [("NVIDIA H200", "cudnn"), ("cpu", "xla")]
)
def test_a_gpu_is_asked_for_cudnn(monkeypatch, kind, expected):
  asked = []

  def attend(query, key, value, *, mask, implementation):
    asked.append((implementation, mask))
    return query

  monkeypatch.setattr(device, "device_kind", lambda: kind)
  monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
  cudnn.relative_attention(_inputs(), None)
  ((implementation, mask),) = asked
  assert implementation == expected
  # Row i may see its own key, which is 4 + i, and the three before it.
  assert mask[0, 0].tolist() == [
    [False, True, True, True, True, False],
    [False, False, True, True, True, True],
  ]
