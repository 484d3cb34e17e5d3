"""The attention that models of other libraries call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.model.kernels import cases
from transformer_xl import errors
from transformer_xl import extend

SIZES = (2, 17, 12, 2, 8)  # Lanes, queries, remembered, heads, head width.


def _attend(form, dropout, *, content_bias, position_bias, **arrays):
  return extend.relative_attention(
    u=content_bias,
    v=position_bias,
    dropout=dropout,
    implementation=form,
    **arrays,
  )


def _values_and_gradients(form, arrays, dropout):
  """Those of `extend.relative_attention`; reach has no gradient."""
  differentiable = {name: arrays[name] for name in arrays if name != "reach"}
  attend = functools.partial(_attend, form, dropout, reach=arrays["reach"])
  values, pull = jax.vjp(lambda arrays: attend(**arrays), differentiable)
  (gradients,) = pull(cases.output_weights(arrays))
  return values, gradients


@pytest.mark.parametrize(
  ("form", "rate"), zip(cases.FORMS, (0.4, 0.0), strict=True)
)
def test_values_and_gradients_are_those_of_the_equations(form, rate):
  arrays = cases.arguments(*SIZES)
  dropout = cases.dropout(arrays, rate) if rate else None
  compute = functools.partial(_values_and_gradients, form, dropout=dropout)
  actual = jax.jit(compute)(arrays)
  expected = cases.defined_value_and_gradients(arrays, dropout)
  cases.assert_close(actual, expected)


def test_a_query_without_reach_sees_itself_alone():
  arrays = cases.arguments(*SIZES)
  arrays["reach"] = jnp.full_like(arrays["reach"], -1)
  values = jax.jit(functools.partial(_attend, "xla", None))(**arrays)
  cases.assert_close(values, arrays["value"][:, SIZES[2] :])


@pytest.mark.parametrize(
  ("form", "most"),
  [
    ("pallas", np.iinfo(np.int64)),
    ("xla", 2**32),
    *(
      ("xla", np.iinfo(kind))
      for kind in (np.int8, np.int64, np.uint32, np.uint64)
    ),
  ],
)
def test_an_unlimited_reach_sees_everything_in_any_type(form, most):
  arrays = cases.arguments(*SIZES)
  shape = arrays["reach"].shape
  num_keys = arrays["key"].shape[1]
  arrays["reach"] = jnp.full(shape, num_keys - 1)
  expected = _attend(form, None, **arrays)
  number = most if isinstance(most, int) else most.max
  kind = np.int64 if isinstance(most, int) else most.dtype
  arrays["reach"] = np.full(shape, number, kind)
  found = _attend(form, None, **arrays)
  np.testing.assert_array_equal(found, expected)


def test_a_mesh_with_explicit_axes_is_refused():
  """By one device as by many: the type is that of the axes."""
  arrays = cases.arguments(*SIZES)
  mesh = jax.make_mesh((1,), ("data",))
  assert mesh.axis_types == (jax.sharding.AxisType.Explicit,)
  with jax.set_mesh(mesh), pytest.raises(errors.UserError, match="Auto"):
    _attend("xla", None, **arrays)


def test_a_mode_of_64_bits_is_refused():
  arrays = cases.arguments(*SIZES)
  with jax.enable_x64(True), pytest.raises(errors.UserError, match="64-bit"):
    _attend("xla", None, **arrays)


def test_bfloat16_stays_bfloat16():
  arrays = cases.arguments(*SIZES, dtype=jnp.bfloat16)
  values = _attend("auto", None, **arrays)
  assert values.dtype == jnp.bfloat16
  expected, _ = cases.defined_value_and_gradients(arrays)
  cases.assert_close(values, expected, tolerance=0.03)


WRONG = {
  "a vector for queries": (
    {"query": jnp.zeros(3)},
    "query has the shape [3]",
  ),
  "more queries than keys": (
    {"key": jnp.zeros((2, 16, 2, 8))},
    "17 queries and 16 keys",
  ),
  "positions of fewer distances": (
    {"position_key": jnp.zeros((28, 2, 8))},
    "position_key has the shape [28, 2, 8]; beside a query of [2, 17, 2, 8] "
    "and a key of [2, 29, 2, 8] it must be [29, 2, 8]",
  ),
  "another type of values": (
    {"value": jnp.zeros((2, 29, 2, 8), jnp.bfloat16)},
    "value is bfloat16; it must be float32, as query is",
  ),
  "half precision": (
    {"query": jnp.zeros((2, 17, 2, 8), jnp.float16)},
    "query is float16",
  ),
  "a reach of fractions": (
    {"reach": jnp.zeros((2, 17))},
    "reach is float32",
  ),
  "a list for values": ({"value": [[1.0]]}, "value is a list; it must be an"),
  "no queries": (
    {"query": jnp.zeros((2, 0, 2, 8))},
    "query has the shape [2, 0, 2, 8]; no size may be 0",
  ),
  "a rate alone": ({"dropout": 0.1}, "must be extend.AttentionDropout(rate, "),
  "a rate of JAX": (
    {
      "dropout": extend.AttentionDropout(
        jnp.float32(0.1), jnp.zeros((2, 2), jnp.int32)
      ),
    },
    "it must be a number in [0, 1), and no array",
  ),
  "seeds in a list": (
    {"dropout": extend.AttentionDropout(0.1, [[1, 2], [3, 4]])},
    "the seeds of dropout are a list",
  ),
  "a rate of one": (
    {
      "dropout": extend.AttentionDropout(1.0, jnp.zeros((2, 2), jnp.int32)),
    },
    "it must be a number in [0, 1), and no array",
  ),
  "one seed for all lanes": (
    {"dropout": extend.AttentionDropout(0.1, jnp.zeros(2, jnp.int32))},
    "int32[2]; they must be int32[2, 2]",
  ),
  "an implementation that is not there": (
    {"implementation": "cuda"},
    "'cuda'; it must be one of auto, xla, pallas",
  ),
}


@pytest.mark.parametrize(("changed", "text"), WRONG.values(), ids=WRONG)
def test_arguments_that_do_not_fit_end_in_one_line(changed, text):
  arrays = cases.arguments(*SIZES)
  given = {
    **{name: arrays[name] for name in ("query", "key", "value", "reach")},
    "position_key": arrays["position_key"],
    "u": arrays["content_bias"],
    "v": arrays["position_bias"],
  }
  with pytest.raises(errors.UserError) as caught:
    extend.relative_attention(**given | changed)
  assert text in str(caught.value)
  assert "\n" not in str(caught.value)
