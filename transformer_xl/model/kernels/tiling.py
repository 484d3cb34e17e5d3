"""How fused attention cuts its arrays into blocks: static settings, no arrays.

Heads lie beside each other in the lanes (last axis) of [B, T, H * Dh], as the
projections make them. A block is 128 lanes wide: two heads of width 64, or one
of 128. Queries are cut into blocks; a tile has the scores of such a block and
of all keys that causality lets it see.

Query i and key j meet at row T - 1 - i + j of the position keys, so a tile of
Bq queries and Bk keys needs Bq + Bk - 1 consecutive rows: its window.
"""

from typing import NamedTuple

LANES = 128  # Numbers in a row of a vector register, and of the matrix unit.
ROWS = 16  # Rows of a packed bfloat16 register.
# VMEM that a kernel may use: a core has 64 MiB or more, less a reserve.
MOST_VMEM_BYTES = 48 << 20
_QUERY_BLOCK = 128
_LONG_QUERY_BLOCK = 256  # For long segments: every block is unrolled code.
_MAX_HEADS = 4  # In one block, for the same reason.


class Tile(NamedTuple):
  """A block of queries, and the keys and position keys that it needs.

  Attributes:
    start: the first query.
    num_keys: keys from the oldest on, a multiple of 128.
    window: rows of the position keys, of which there is a multiple of 128.
  """

  start: int
  num_keys: int
  window: slice

  @property
  def window_len(self) -> int:
    """Number of rows of position keys."""
    return self.window.stop - self.window.start


class Tiling(NamedTuple):
  """Sizes of blocks and arrays, and how the kernels run; all are static.

  Blocks that are longer than their arrays are padded.
  """

  mem_len: int  # M
  segment_len: int  # T
  head_dim: int  # Dh, unpadded: it scales the scores.
  head_width: int  # Lanes of a head.
  block_width: int  # Lanes of a block.
  heads_per_block: int
  query_len: int  # T, padded to whole blocks.
  query_block: int
  key_len: int  # M + T, padded to whole registers.
  has_positions: bool  # Whether there are position keys.
  dropout_rate: float = 0.0  # The share of attention weights that are dropped.
  interpret: bool = False  # Run as ordinary JAX, without a TPU.

  @property
  def position_len(self) -> int:
    """Rows of position keys in all windows together."""
    if not self.has_positions:
      return 0
    return max(tile.window.stop for tile in self.tiles())

  @property
  def num_positions(self) -> int:
    """Rows of position keys, with the padding before the farthest distance."""
    return min(self.mem_len + self.query_len, self.position_len)

  def tiles(self) -> list[Tile]:
    """A tile for each block of queries."""
    return [
      self._tile(start) for start in range(0, self.query_len, self.query_block)
    ]

  def _tile(self, start: int) -> Tile:
    seen = self.mem_len + start + self.query_block  # By the last query.
    num_keys = min(self.key_len, round_up(seen, LANES))
    first = self.query_len - start - self.query_block
    window_len = num_keys + round_up(self.query_block, LANES)
    return Tile(start, num_keys, slice(first, first + window_len))


def make_tiling(
  *,
  query_len: int,
  key_len: int,
  num_heads: int,
  head_dim: int,
  has_positions: bool,
) -> Tiling:
  """The tiling that was fastest (docs/measurements/tpu.md), without dropout."""
  width = _head_width(num_heads, head_dim)
  block_width = max(width, LANES)
  block = _LONG_QUERY_BLOCK if query_len > 1024 else _QUERY_BLOCK
  block = min(block, round_up(query_len, ROWS))
  return Tiling(
    mem_len=key_len - query_len,
    segment_len=query_len,
    head_dim=head_dim,
    head_width=width,
    block_width=block_width,
    heads_per_block=block_width // width,
    query_len=round_up(query_len, block),
    query_block=block,
    key_len=round_up(key_len, LANES),
    has_positions=has_positions,
  )


def num_scores(tiling: Tiling) -> tuple[int, int]:
  """Scores of a block of heads by key, and by row of the windows."""
  rows = tiling.query_block * tiling.heads_per_block
  by_key = rows * sum(tile.num_keys for tile in tiling.tiles())
  by_window = rows * sum(tile.window_len for tile in tiling.tiles())
  return by_key, by_window if tiling.has_positions else 0


def round_up(size: int, multiple: int) -> int:
  """The smallest multiple that is not below the number."""
  return -(-size // multiple) * multiple


def vmem_bytes(tiling: Tiling, itemsize: int) -> int:
  """Upper estimate of the VMEM that the backward pass uses.

  `itemsize` is the bytes of a number in the inputs.
  """
  width = tiling.block_width
  positions = tiling.position_len
  # Inputs and outputs are held twice, so that copies overlap with work.
  rows = 4 * tiling.query_len + 4 * tiling.key_len + positions
  blocks = 2 * width * (itemsize * rows + 4 * positions)
  sums = 2 * 4 * width * tiling.key_len
  scores = 8 * 4 * tiling.query_block * (tiling.key_len + LANES)
  return blocks + sums + scores


def vmem_limit_bytes(estimate: int) -> int | None:
  """The limit to compile with; None for the compiler's default, 16 MiB.

  The estimates are rough.
  """
  return estimate + (8 << 20) if estimate > 8 << 20 else None


def _head_width(num_heads: int, head_dim: int) -> int:
  """Lanes of a head, such that whole heads fill a block."""
  if head_dim > LANES:
    return round_up(head_dim, LANES)
  width = LANES // _MAX_HEADS
  while width < head_dim or num_heads % (LANES // width):
    width *= 2
  return width
