"""Attention over a ring in XLA: whole, and some of its slots at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from tests.model.kernels import rings
from transformer_xl.model import reader as reader_lib
from transformer_xl.model.kernels import xla_ring

TERMS = ("biased keys", "shared keys", "slopes", "added", "none")


@pytest.fixture
def in_parts(monkeypatch):
  """Queries and slots are taken 8 at a time."""
  monkeypatch.setattr(xla_ring, "_MOST_SCORES", 0)
  monkeypatch.setattr(xla_ring, "_SMALLEST_PART", 8)
  monkeypatch.setattr(xla_ring, "_LARGEST_PART", 8)


@pytest.mark.some(2)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("slot", [0, 16, 24])
def test_a_whole_ring_gives_the_definition(terms, slot):
  inputs = rings.arguments(16, 40, terms=terms, slot=slot)
  found = xla_ring.ring_attention(inputs)
  comparison.assert_close(found, rings.defined_values(inputs), roundings=30)


@pytest.mark.some(4)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("slot", [0, 16, 24])
def test_parts_of_a_ring_give_the_definition(terms, slot, in_parts):
  inputs = rings.arguments(16, 40, terms=terms, slot=slot)
  found = xla_ring.attend_in_turn(inputs)
  comparison.assert_close(found, rings.defined_values(inputs), roundings=30)


def test_slots_that_no_query_sees_are_not_read(in_parts):
  inputs = rings.arguments(16, 40, terms="none", slot=8)
  inputs = inputs._replace(reach=jnp.minimum(inputs.reach, 7))
  # Those that are seen are 1 to 23.
  value = inputs.value.at[:, :, 24:].set(np.nan)
  found = xla_ring.attend_in_turn(inputs._replace(value=value))
  comparison.assert_close(found, rings.defined_values(inputs), roundings=30)
  assert np.isnan(xla_ring.ring_attention(inputs._replace(value=value))).any()


def test_large_scores_of_a_later_part_stay_finite(in_parts):
  inputs = rings.arguments(16, 40, terms="none", slot=24)
  key = inputs.key * jnp.linspace(1.0, 300.0, 40)[None, None]
  inputs = inputs._replace(key=key)
  found = xla_ring.attend_in_turn(inputs)
  assert np.isfinite(found).all()
  whole = xla_ring.ring_attention(inputs)
  # Scores of some thousands are rounded in float32.
  comparison.assert_close(found, whole, roundings=3000)


@pytest.mark.parametrize("terms", ["biased keys", "added"])
@pytest.mark.parametrize(
  ("queries", "slots"),
  [
    (13, 41),
    pytest.param(13, 40, marks=pytest.mark.rest),
    pytest.param(16, 41, marks=pytest.mark.rest),
  ],
)
def test_a_last_part_overlaps_where_no_part_divides(
  queries, slots, terms, in_parts
):
  assert (xla_ring._part(13), xla_ring._part(41)) == (7, 7)
  inputs = rings.arguments(queries, slots, terms=terms, slot=20)
  found = xla_ring.attend_in_turn(inputs)
  comparison.assert_close(found, rings.defined_values(inputs), roundings=30)


def test_parts_of_any_length_are_short():
  # 1,021 is a prime number; 600 has equal parts.
  sizes = [xla_ring._part(length) for length in (1, 100, 512, 600, 1021, 2042)]
  assert sizes == [1, 100, 512, 300, 511, 511]


def test_parts_in_bfloat16_stay_within_its_rounding(in_parts):
  inputs = rings.arguments(16, 40, terms="biased keys", slot=24)
  narrow = jax.tree.map(
    lambda leaf: leaf.astype("bfloat16") if leaf.dtype == "float32" else leaf,
    inputs,
  )
  found = xla_ring.attend_in_turn(narrow)
  assert found.dtype == jnp.bfloat16
  comparison.assert_close(found, rings.defined_values(narrow), roundings=3)


def test_a_reader_is_the_same_in_parts(in_parts):
  config = tiny.model_config()
  params = tiny.params(config)
  tokens = jnp.asarray(np.arange(48).reshape(2, 24) % config.vocab_size)

  def read(clamp_len):
    """Farther than the text is long, it only makes another compiled layer."""
    reader = reader_lib.Reader(
      config,
      mem_len=16,
      segment_len=8,
      clamp_len=clamp_len,
      same_length=False,
    )
    frozen = reader.freeze(params)
    state = reader.start(frozen, batch_size=2)
    found = []
    for start in range(0, 24, 8):
      part = tokens[:, start : start + 8]
      log_probs, state = reader.step(frozen, state, part)
      found.append(log_probs)
    return jnp.concatenate(found, axis=1)

  in_some = read(1_000_001)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(xla_ring, "_MOST_SCORES", 1 << 30)
    patch.setattr(xla_ring, "_attend_by_blocks", None)
    whole = read(1_000_002)
  comparison.assert_close(in_some, whole, roundings=300)
