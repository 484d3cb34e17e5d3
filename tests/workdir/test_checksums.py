"""What a fingerprint sees, and what it must not."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_xl.workdir import checksums

ARRAYS = {
  "float32": np.linspace(-3, 5, 30, dtype=np.float32).reshape(2, 3, 5),
  "bfloat16": np.linspace(-3, 5, 30).astype(jnp.bfloat16).reshape(5, 6),
  "int32": np.arange(-15, 15, dtype=np.int32),
  "uint8": np.arange(30, dtype=np.uint8),
  "scalar": np.float32(2.5),
}


def changes(one, other):
  saved = checksums.of({"a": jnp.asarray(one)})
  return checksums.differ({"a": jnp.asarray(other)}, saved)


@pytest.mark.parametrize("name", ARRAYS)
def test_every_flipped_bit_shows(name):
  array = np.array(ARRAYS[name])
  bits = array.reshape(-1).view(np.uint8)
  assert changes(array, array.copy()) == []
  for byte in range(0, bits.size, 7):
    for bit in range(8):
      before = array.copy()
      bits[byte] ^= 1 << bit
      assert changes(before, array) == ["a"]
      bits[byte] ^= 1 << bit


def test_exchanged_elements_show():
  array = np.array(ARRAYS["float32"])
  for axis in range(3):
    assert changes(array, np.flip(array, axis)) == ["a"]


def test_another_type_is_not_compared():
  array = ARRAYS["float32"]
  assert changes(array, array.astype(jnp.bfloat16)) == []


def test_it_is_the_sum_that_it_says():
  array = ARRAYS["float32"]
  bits = array.reshape(-1).view(np.uint32).astype(object)
  expected = sum(int(b) * (2 * i + 1) for i, b in enumerate(bits)) % (1 << 32)
  named = checksums.of({"params": {"b": jnp.asarray(array)}})
  assert named == {"params/b": f"float32 {expected:08x}"}


def test_truth_values_and_empty_arrays_have_one():
  assert changes(np.array([True, False]), np.array([True, True])) == ["a"]
  assert changes(np.zeros((0, 3)), np.zeros((0, 3))) == []


def test_json_is_its_content():
  value = {"b": [1, 0.1], "a": {"c": None}}
  other = {"a": {"c": None}, "b": [1, 0.1]}
  assert checksums.of_json(value) == checksums.of_json(other)
  assert checksums.of_json(value) != checksums.of_json({**value, "b": []})
