"""The choice of an implementation, alone and on a mesh."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from tests.conformance import adapters
from tests.conformance import test_oracle
from tests.model.kernels import cases
from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import registry
from transformer_xl.model import scores
from transformer_xl.model.kernels import dispatch


def _choose(inputs, implementation="auto"):
  return dispatch.choose(implementation, inputs)


def _shapes(lanes, queries, remembered, heads, width, *, has_positions=True):
  keys = queries + remembered

  def zeros(*shape):
    return jnp.broadcast_to(jnp.bfloat16(0), shape)

  key = zeros(lanes, keys, heads, width)
  position_key = zeros(keys, heads, width) if has_positions else None
  return scores.ScoreFactors(
    query=zeros(lanes, queries, heads, width),
    key=key,
    reach=jnp.zeros((lanes, queries), jnp.int32),
    distance=scores.DistanceTerms(position_key),
  )


def test_auto_is_xla_without_a_tpu(monkeypatch):
  large = _shapes(8, 384, 384, 16, 64)
  assert _choose(large) == "xla"
  monkeypatch.setattr(hardware, "device_kind", lambda: "NVIDIA H200")
  assert _choose(large) == "xla"


def test_auto_on_tpu_is_fused_where_that_can_serve(monkeypatch):
  monkeypatch.setattr(hardware, "device_kind", lambda: "TPU v5 lite")
  large = _shapes(1, 384, 384, 16, 64)
  assert _choose(large) == "pallas"
  assert _choose(_shapes(1, 128, 3800, 1, 128)) == "pallas"
  assert _choose(_shapes(1, 1, 3800, 1, 128)) == "xla"  # One token.
  assert _choose(_shapes(1, 128, 90_000, 1, 128)) == "xla"  # Too large.
  most = (1, 128, 6_500, 1, 128)  # Without room for keys of distances.
  assert _choose(_shapes(*most)) == "xla"
  assert _choose(_shapes(*most, has_positions=False)) == "pallas"


def test_auto_on_a_mesh_asks_for_the_heads_of_one_device(monkeypatch):
  """Four heads of width 32 make twice the scores of two."""
  monkeypatch.setattr(hardware, "device_kind", lambda: "TPU v5 lite")
  large = _shapes(1, 384, 3616, 16, 32)
  types = (jax.sharding.AxisType.Auto,) * len(mesh_lib.AXES)
  for tensor, expected in ((1, "xla"), (4, "xla"), (8, "pallas")):
    mesh = jax.sharding.AbstractMesh(
      (2, 1, tensor), mesh_lib.AXES, axis_types=types
    )
    with jax.sharding.use_abstract_mesh(mesh):
      assert _choose(large) == expected
  assert _choose(_shapes(1, 384, 3616, 2, 32)) == "pallas"
  assert _choose(large) == "xla"


def test_old_tpus_cannot_run_the_kernel(monkeypatch):
  monkeypatch.setattr(hardware, "device_kind", lambda: "TPU v4")
  assert _choose(_shapes(1, 384, 384, 16, 64)) == "xla"


@pytest.mark.parametrize("name", cases.FORMS)
def test_a_named_choice_is_taken(name):
  assert _choose(_shapes(1, 1, 3, 1, 4), name) == name


@pytest.mark.some(1)
@pytest.mark.parametrize("encoding", [*registry.encodings])
def test_the_model_with_the_kernel_equals_the_oracle(encoding):
  """With resets, and memory that is partly out of sight."""
  adapter = adapters.Package(
    mem_len=3,
    same_length=True,
    encoding=encoding,
    num_heads=3,
    attention="pallas",
  )
  worst = test_oracle.worst_difference(adapter, [4] * 4)
  assert worst < test_oracle.ROUNDING


@pytest.mark.rest
def test_a_mesh_of_devices_gives_the_same_numbers():
  """Eight forced devices take their own process."""
  subprocess.run(
    [sys.executable, "-m", "tests.model.kernels.sharded"],
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    check=True,
  )
