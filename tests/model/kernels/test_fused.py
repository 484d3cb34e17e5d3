"""What the hardware asks of the fused kernel, which no test runs on a TPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_xl.model.kernels import tiles
from transformer_xl.model.kernels import tiling


@pytest.mark.parametrize(("rows", "shift"), [(16, 0), (16, 241), (8, 249)])
def test_interpreted_rolls_are_those_of_the_hardware(rows, shift):
  values = jnp.arange(rows * 256, dtype=jnp.float32).reshape(rows, 256)
  roll = jax.jit(tiles.roll_rows, static_argnames=("shift", "interpret"))
  np.testing.assert_array_equal(
    roll(values, shift=shift, interpret=True),
    roll(values, shift=shift, interpret=False),
  )


@pytest.mark.parametrize("queries", [1, 16, 100, 128, 200, 1100])
@pytest.mark.parametrize("remembered", [0, 7, 384, 3800])
def test_tiles_are_aligned_and_cover_what_can_be_seen(queries, remembered):
  keys = queries + remembered
  cut = tiling.make_tiling(
    query_len=queries,
    key_len=keys,
    num_heads=4,
    head_dim=64,
    has_positions=True,
  )
  starts = [tile.start for tile in cut.tiles()]
  assert starts == list(range(0, cut.query_len, cut.query_block))
  assert cut.query_len >= queries
  for tile in cut.tiles():
    for size in tile.num_keys, tile.window.start, tile.window_len:
      assert size % 128 == 0
    assert tile.window.stop <= cut.position_len
    last = min(remembered + tile.start + cut.query_block, keys)
    assert last <= tile.num_keys <= cut.key_len
