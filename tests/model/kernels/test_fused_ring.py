"""The kernel over a ring gives what XLA computes, interpreted."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import kinds
from tests import tiny
from tests.model.kernels import rings
from transformer_xl.model import reader as reader_lib
from transformer_xl.model import ring
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.kernels import fused_ring
from transformer_xl.model.kernels import xla_ring


@pytest.mark.some(6)
@pytest.mark.parametrize(
  "terms", ["biased keys", "shared keys", "slopes", "none"]
)
@pytest.mark.parametrize(
  ("segment_len", "slot"),
  [(32, 0), (32, 96), (32, 224), (256, 256)],
  ids=["at_the_start", "inside", "at_the_end", "two_blocks_of_queries"],
)
def test_the_kernel_attends_as_xla_does(segment_len, slot, terms):
  slots = max(256, 2 * segment_len)
  inputs = rings.arguments(segment_len, slots, terms=terms, slot=slot)
  assert fused_ring.serves(inputs.query, inputs.key)
  found = fused_ring.ring_attention(inputs, interpret=True)
  # Sums of up to 512 values in another order.
  comparison.assert_close(found, xla_ring.ring_attention(inputs), roundings=30)
  # Other places of the keys, or others of them visible, change the result.
  moved = inputs._replace(slot=jnp.int32(slot - segment_len + 16))
  if slot >= segment_len:
    assert np.abs(found - xla_ring.ring_attention(moved)).max() > 0.1
  nearer = inputs._replace(reach=inputs.reach // 2)
  assert np.abs(found - xla_ring.ring_attention(nearer)).max() > 0.1


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("encoding", "same_length"),
  [
    ("relative", True),
    (kinds.sloping(), False),
    (kinds.learned(), True),
    (kinds.encoding(rotates=True), False),
  ],
)
def test_a_reader_with_the_kernel_is_one_without(
  encoding, same_length, monkeypatch
):
  config = tiny.model_config(
    encoding=encoding,
    model_dim=32,
    head_dim=16,
    num_heads=2,
    num_positions=8,
  )
  params = tiny.params(config)
  assert ring.num_slots(mem_len=90, step_len=32) == 128
  calls = []
  attend = fused_ring.ring_attention

  def counted(inputs, **options):
    calls.append(inputs.query.shape)
    return attend(inputs, **options)

  monkeypatch.setattr(fused_ring, "ring_attention", counted)
  log_probs = {}
  for implementation in ("xla", "pallas"):
    reader = reader_lib.Reader(
      dataclasses.replace(config, attention=implementation),
      mem_len=90,
      segment_len=32,
      clamp_len=0,
      same_length=same_length,
    )
    log_probs[implementation] = read(reader, params)
    assert len(calls) == (implementation == "pallas")  # Layers are alike.
  # Sums in another order. For a few tokens the layers magnify their rounding
  # some 70 times.
  comparison.assert_close(log_probs["pallas"], log_probs["xla"], roundings=300)


def read(reader, params):
  """Log-probabilities of six segments, more than the ring holds."""
  frozen = jax.jit(reader.freeze)(params)
  state = reader.start(frozen, batch_size=rings.LANES)
  step = jax.jit(reader.step)
  draw = np.random.default_rng(1)
  found = []
  for index in range(6):
    shape = rings.LANES, reader.segment_len
    tokens = draw.integers(reader.config.vocab_size, size=shape)
    resets = np.zeros(shape, bool)
    resets[1, 5] = index == 4
    values, state = step(
      frozen, state, jnp.asarray(tokens, jnp.int32), jnp.asarray(resets)
    )
    found.append(values)
  return np.concatenate(found, axis=1)


@pytest.mark.parametrize(
  ("segment_len", "width", "slots"),
  [(1, 16, 128), (32, 16, 120), (32, 24, 128), (192, 16, 512)],
  ids=["one_token", "slots", "width", "part_of_a_block"],
)
def test_sizes_that_do_not_fill_tiles_are_left_to_xla(
  segment_len, width, slots
):
  query = jnp.zeros((1, 1, segment_len, width))
  key = jnp.zeros((1, width, slots))
  assert not fused_ring.serves(query, key)


def test_a_ring_that_does_not_fit_is_left_to_xla():
  query = jnp.zeros((1, 1, 128, 64))
  fits = [
    fused_ring.serves(query, jax.ShapeDtypeStruct((1, 64, slots), jnp.bfloat16))
    for slots in (1_792, 128_000)
  ]
  assert fits == [True, False]


def test_only_a_tpu_takes_the_kernel_by_itself(monkeypatch):
  inputs = rings.arguments(32, 256, terms="none", slot=32)

  def attend(implementation):
    return dispatch.ring_attention(inputs, implementation)

  jaxprs = {
    name: str(jax.make_jaxpr(functools.partial(attend, name))())
    for name in ("auto", "pallas", "xla")
  }
  monkeypatch.setattr(dispatch.hardware, "device_kind", lambda: "TPU v5 lite")
  jaxprs["auto_on_tpu"] = str(
    jax.make_jaxpr(functools.partial(attend, "auto"))()
  )
  taken = {name for name, text in jaxprs.items() if "pallas_call" in text}
  assert taken == {"pallas", "auto_on_tpu"}
