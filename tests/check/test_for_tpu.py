"""The TPU compiler takes what the check runs, also exact float32."""

import importlib.util

import jax
import pytest

from transformer_xl import mesh as mesh_lib
from transformer_xl.check import attention_numbers
from transformer_xl.check import on_mesh
from transformer_xl.check import softmax_numbers
from transformer_xl.config import schema
from transformer_xl.planning import topology

pytestmark = [
  pytest.mark.rest,
  pytest.mark.slow,
  pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs libtpu: pip install '.[tpu]'",
  ),
]


class Compiled(Exception):  # noqa: N818
  """The program of a check, instead of what it computes."""

  def __init__(self, text):
    super().__init__("compiled")
    self.text = text


def compile_only(mesh, function, rows, others):
  """Compiles what `on_mesh.call` would run."""

  def abstract(at):
    return lambda array: jax.ShapeDtypeStruct(
      array.shape, array.dtype, sharding=at
    )

  whole = mesh_lib.replicated(mesh)
  lowered = jax.jit(function, out_shardings=whole).lower(
    jax.tree.map(abstract(mesh_lib.lanes(mesh)), rows),
    jax.tree.map(abstract(whole), others),
  )
  raise Compiled(lowered.compile().as_text())


@pytest.mark.parametrize("dtype", on_mesh.DTYPES)
def test_the_kernels_compile_for_a_slice(dtype, monkeypatch):
  topology.compile_only()
  devices = topology.slice_devices("v5e:2x2")
  four = schema.MeshConfig(data=4, fsdp=1, tensor=1)
  mesh = mesh_lib.make_mesh(four, devices=devices)
  monkeypatch.setattr(on_mesh, "call", compile_only)
  checks = (
    (
      attention_numbers.check_attention,
      ("pallas", attention_numbers.SMALL, "keys and biases", 0.3),
      True,
    ),
    (
      attention_numbers.check_ring,
      ("pallas", attention_numbers.RING, "keys and biases"),
      True,
    ),
    (softmax_numbers.check_softmax, (softmax_numbers.ROOM, True), False),
  )
  with jax.set_mesh(mesh), on_mesh.exact_products(dtype):
    for check, arguments, is_kernel in checks:
      with pytest.raises(Compiled) as compiled:
        check(mesh, dtype, *arguments)
      assert ("tpu_custom_call" in compiled.value.text) == is_kernel
