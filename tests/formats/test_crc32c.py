import numpy as np
import pytest

from transformer_xl.formats import crc32c

# Vectors of RFC 3720, appendix B.4, and of the algorithm's catalogue.
VECTORS = {
  b"": 0x00000000,
  b"123456789": 0xE3069283,
  bytes(32): 0x8A9136AA,
  b"\xff" * 32: 0x62A8AB43,
  bytes(range(32)): 0x46DD794E,
}


@pytest.mark.parametrize("data", VECTORS)
def test_checksum_is_that_of_the_standard(data):
  assert crc32c.checksum(data) == VECTORS[data]


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@pytest.mark.parametrize("extra", [0, 1, 4099])
def test_folded_rows_have_the_checksum_of_their_bits(rows, extra):
  data = np.random.RandomState(rows).bytes(rows * 4 * crc32c.ROW + extra)
  register = 0xFFFFFFFF
  for value in data:  # The definition, bit by bit.
    register ^= value
    for _ in range(8):
      register = register >> 1 ^ (crc32c.POLYNOMIAL if register & 1 else 0)
  assert crc32c.checksum(data) == register ^ 0xFFFFFFFF


def test_one_changed_bit_changes_the_checksum():
  data = bytearray(100_000)
  before = crc32c.checksum(bytes(data))
  data[70_000] ^= 1
  assert crc32c.checksum(bytes(data)) != before
