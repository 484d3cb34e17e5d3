"""The choice of an implementation, alone and on a mesh."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.model.kernels import cases
from transformer_xl import mesh as mesh_lib
from transformer_xl.model import attention
from transformer_xl.model.kernels import device
from transformer_xl.model.kernels import dispatch

EVERY = ("reference", "head_major", "chunked", "pallas")


def _choose(inputs, implementation="auto"):
  return dispatch.choose(implementation, inputs)


def _shapes(lanes, queries, remembered, heads, width, *, has_positions=True):
  keys = queries + remembered

  def zeros(*shape):
    return jnp.broadcast_to(jnp.bfloat16(0), shape)

  key = zeros(lanes, keys, heads, width)
  return attention.Inputs(
    query=zeros(lanes, queries, heads, width),
    key=key,
    value=key,
    reach=jnp.zeros((lanes, queries), jnp.int32),
    position_key=zeros(keys, heads, width) if has_positions else None,
  )


def test_auto_knows_cpu_and_tpu(monkeypatch):
  large = _shapes(8, 384, 384, 16, 64)
  assert _choose(large) == "head_major"
  monkeypatch.setattr(device, "device_kind", lambda: "NVIDIA H200")
  assert _choose(large) == "reference"


def test_auto_on_tpu_is_fused_where_that_can_serve(monkeypatch):
  monkeypatch.setattr(device, "device_kind", lambda: "TPU v5 lite")
  large = _shapes(1, 384, 384, 16, 64)
  assert _choose(large) == "pallas"
  assert _choose(_shapes(1, 128, 3800, 1, 128)) == "pallas"
  assert _choose(_shapes(1, 1, 3800, 1, 128)) == "chunked"  # One token.
  assert _choose(_shapes(1, 128, 90_000, 1, 128)) == "chunked"  # Too large.
  most = (1, 128, 10_000, 1, 128)  # Without room for keys of distances.
  assert _choose(_shapes(*most)) == "chunked"
  assert _choose(_shapes(*most, has_positions=False)) == "pallas"


def test_auto_on_a_mesh_asks_for_the_heads_of_one_device(monkeypatch):
  """Four heads of width 32 make twice the scores of two."""
  monkeypatch.setattr(device, "device_kind", lambda: "TPU v5 lite")
  large = _shapes(1, 384, 3616, 16, 32)
  for tensor, expected in ((1, "chunked"), (4, "chunked"), (8, "pallas")):
    mesh = jax.sharding.AbstractMesh((2, 1, tensor), mesh_lib.AXES)
    with jax.sharding.use_abstract_mesh(mesh):
      assert _choose(large) == expected
  assert _choose(_shapes(1, 384, 3616, 2, 32)) == "pallas"
  assert _choose(large) == "chunked"


def test_old_tpus_cannot_run_the_kernel(monkeypatch):
  monkeypatch.setattr(device, "device_kind", lambda: "TPU v4")
  assert _choose(_shapes(1, 384, 384, 16, 64)) == "chunked"


@pytest.mark.parametrize("name", EVERY)
def test_a_named_choice_is_taken(name):
  assert _choose(_shapes(1, 1, 3, 1, 4), name) == name


@pytest.mark.parametrize(
  ("encoding", "rate"),
  [
    *(("relative", rate) for rate in (None, 0.4)),
    *((encoding, 0.4) for encoding in ("shaw", "alibi", "none")),
  ],
)
def test_all_implementations_agree(encoding, rate):
  arrays = cases.arguments(2, 3, 12, 2, 4, encoding=encoding)
  dropout = rate and cases.dropout(arrays, rate)
  expected, *others = [
    cases.value_and_gradients(
      functools.partial(cases.dispatched, name, dropout), arrays
    )
    for name in EVERY
  ]
  for other in others:
    cases.assert_close(other, expected)
  assert np.abs(expected[0]).max() > 0.1


def test_a_mesh_of_devices_gives_the_same_numbers():
  """Eight forced devices take their own process."""
  subprocess.run(
    [sys.executable, "-m", "tests.model.kernels.sharded"],
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    check=True,
  )
