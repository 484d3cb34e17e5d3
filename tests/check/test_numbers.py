"""The parts are right on this machine, and a fault in any of them is found."""

import functools

import jax
import jax.numpy as jnp
import pytest

from transformer_xl import mesh as mesh_lib
from transformer_xl.check import attention_numbers
from transformer_xl.check import numbers
from transformer_xl.check import on_mesh
from transformer_xl.check import product_numbers
from transformer_xl.check import softmax_numbers
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.kernels import dense
from transformer_xl.model.kernels import tiles
from transformer_xl.model.kernels import xla_attention
from transformer_xl.model.kernels import xla_ring

SIZES = attention_numbers.SMALL


@pytest.fixture
def mesh():
  jax.clear_caches()  # Faults are in the code, which no cache depends on.
  one = schema.MeshConfig(data=1, fsdp=1, tensor=1)
  mesh = mesh_lib.make_mesh(one, devices=jax.devices()[:1])
  with jax.set_mesh(mesh):
    yield mesh
  jax.clear_caches()


@pytest.mark.rest
@pytest.mark.slow
def test_all_parts_are_right_in_the_short_form(mesh, monkeypatch):
  # As on a single GPU; test_check has the short form in one thread.
  monkeypatch.setattr(numbers, "_num_threads", lambda: 2)
  findings = numbers.run([mesh], short=True)
  assert [str(found) for found in findings if not found.passed] == []
  parts = {found.part for found in findings}
  assert parts == {"products", "dropout masks", "attention", "ring", "softmax"}


def attention_findings(mesh, *, dtype="float32", forms=None):
  return [
    attention_numbers.check_attention(
      mesh, dtype, form, SIZES, "keys and biases", attention_numbers.RATE
    )
    for form in forms or attention_numbers.forms()
  ]


@pytest.mark.parametrize(
  "dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.rest)]
)
def test_attention_is_right_in_all_forms(mesh, dtype):
  with on_mesh.exact_products(dtype):
    findings = attention_findings(mesh, dtype=dtype)
  assert [found.passed for found in findings] == [True, True]
  assert all(found.error > 0 for found in findings)


def test_a_wrong_mask_in_xla_is_found(mesh, monkeypatch):
  visible_mask = xla_attention.visible_mask

  def one_key_further(reach, num_keys):
    return visible_mask(reach + 1, num_keys)

  monkeypatch.setattr(xla_attention, "visible_mask", one_key_further)
  (xla,) = attention_findings(mesh, forms=["xla"])
  assert not xla.passed


def test_a_wrong_mask_in_the_kernel_is_found(mesh, monkeypatch):
  visible = tiles.visible

  def one_key_further(reach, tile, tiling):
    return visible(reach + 1, tile, tiling)

  monkeypatch.setattr(tiles, "visible", one_key_further)
  xla, pallas = attention_findings(mesh)
  assert xla.passed
  assert not pallas.passed


@pytest.mark.parametrize("dtype", on_mesh.DTYPES)
def test_sums_in_bfloat16_are_found(mesh, monkeypatch, dtype):
  """Also where the factors are bfloat16, and the results are meant to be."""
  assert product_numbers.check_products(mesh, dtype, 256).passed

  def add_up_in_bfloat16(function):
    def call(*arguments):
      found = function(*arguments)
      return found.astype(jnp.bfloat16).astype(found.dtype)

    return call

  jax.clear_caches()
  monkeypatch.setattr(dense, "_matmul", add_up_in_bfloat16(dense._matmul))
  assert not product_numbers.check_products(mesh, dtype, 256).passed


def test_another_hash_of_dropout_is_found(mesh, monkeypatch):
  assert attention_numbers.check_dropout_masks(mesh, "float32").passed
  jax.clear_caches()
  monkeypatch.setattr(dropout_lib, "_STRIDE", 0x1E3779B9)
  assert not attention_numbers.check_dropout_masks(mesh, "float32").passed


def test_dropout_that_is_not_scaled_up_is_found(mesh, monkeypatch):
  def drop(values, dropout, *, first_query):
    mask = dropout_lib.keep_mask(
      dropout.seeds.T[:, :, None, None],
      jnp.arange(values.shape[2], dtype=jnp.int32)[None, None, :, None],
      jnp.arange(values.shape[3], dtype=jnp.int32)[None, None, None],
      rate=dropout.rate,
    )
    return jnp.where(mask, values, 0)

  monkeypatch.setattr(dropout_lib, "drop_weights", drop)
  (xla,) = attention_findings(mesh, forms=["xla"])
  assert not xla.passed


def test_a_ring_that_is_one_slot_off_is_found(mesh, monkeypatch):
  check = functools.partial(
    attention_numbers.check_ring,
    mesh,
    "float32",
    "xla",
    attention_numbers.RING,
    "keys and biases",
  )
  assert check().passed
  attend = xla_ring.ring_attention

  def one_slot_off(inputs):
    return attend(inputs._replace(slot=inputs.slot + 1))

  jax.clear_caches()
  monkeypatch.setattr(xla_ring, "ring_attention", one_slot_off)
  assert not check().passed


@pytest.mark.rest
def test_targets_that_a_full_cluster_drops_are_found(mesh, monkeypatch):
  """The fallback for more targets than there is room for never runs."""
  check = functools.partial(
    softmax_numbers.check_softmax, mesh, "float32", softmax_numbers.ROOM
  )
  assert check(has_many=True).passed

  def take_first(predicate, first, second, *arguments):
    del predicate, second
    return first(*arguments)

  jax.clear_caches()
  monkeypatch.setattr(jax.lax, "cond", take_first)
  assert not check(has_many=True).passed
  assert check(has_many=False).passed
