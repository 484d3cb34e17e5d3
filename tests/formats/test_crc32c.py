import numpy as np
import pytest

from transformer_xl.formats import tensor_bundle

# Vectors of RFC 3720, appendix B.4, and of the algorithm's catalogue.
VECTORS = {
  b"": 0x00000000,
  b"123456789": 0xE3069283,
  bytes(32): 0x8A9136AA,
  b"\xff" * 32: 0x62A8AB43,
  bytes(range(32)): 0x46DD794E,
}


def checksum(data):
  """The checksum without LevelDB's mask: rotated back, the offset taken off."""
  rotated = (tensor_bundle.masked_crc32c(data) - 0xA282EAD8) & 0xFFFFFFFF
  return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


@pytest.mark.parametrize("data", VECTORS)
def test_checksum_is_that_of_the_standard(data):
  assert checksum(data) == VECTORS[data]


@pytest.mark.parametrize("size", [1, 4096, 20_001])
def test_long_buffers_have_the_checksum_of_their_bits(size):
  data = np.random.RandomState(size).bytes(size)
  register = 0xFFFFFFFF
  for value in data:  # The definition, bit by bit.
    register ^= value
    for _ in range(8):
      register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
  assert checksum(data) == register ^ 0xFFFFFFFF
  assert checksum(np.frombuffer(data, np.uint8)) == register ^ 0xFFFFFFFF
