"""Vectors that a segment writes and the next one reads: their work."""

import pytest

from tests import tiny
from transformer_xl.model import network


def test_vectors_count_their_matrices_and_pairs():
  """Three vectors, written once in a segment of four tokens."""
  shared = {"segment_len": 4, "mem_len": 6}
  plain, recurrent = (
    network.forward_flops_per_token(tiny.model_config(layers=(name,)), **shared)
    for name in ("attention", "block_recurrent")
  )
  matrix = 8 * 8  # D and H Dh are 8.
  tokens = 4 * matrix  # Read: query, output; write: key, value.
  vectors = 8 * matrix * 3 / 4  # Read: two; their own: four; write: two.
  pairs = 2 * 8 * (3 + 3 + 3 * 3 / 4)  # Read, write, own; scores and values.
  assert recurrent - plain == pytest.approx(2 * 2 * (tokens + vectors + pairs))
