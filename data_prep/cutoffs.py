"""Cutoffs for an adaptive softmax, suggested from the tokens' frequencies."""

import functools
import itertools
import math
import pathlib

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

# Below this many symbols one full softmax is as fast.
_SMALLEST_VOCABULARY = 20_000
# Symbols beyond the first cutoff have narrower embeddings, which costs quality,
# so most tokens should be before it. The published cutoffs are of this kind.
_HEAD_COVERAGE = 0.9
_MOST_CUTOFFS = 3
# Cutoffs are multiples of the width of an accelerator's matrix unit.
_MULTIPLE = 128
_NUM_CANDIDATES = 40
_BLOCK = 1 << 20


def suggest(counts: NDArray[np.int64]) -> list[int]:
  """Returns cutoffs that need few multiplications per token.

  The first is the smallest that covers nine tokens in ten; the others are the
  best, if each tail cluster is a quarter as wide as the one before it, as in
  the published models with div_val=4, and is computed for its own tokens only.
  A small or even vocabulary has none. `counts` [V] are in order of frequency.
  """
  size = len(counts)
  covered = np.concatenate([[0], np.cumsum(counts)]) / max(counts.sum(), 1)
  head = int(np.searchsorted(covered, _HEAD_COVERAGE))
  head = math.ceil(head / _MULTIPLE) * _MULTIPLE
  if size < _SMALLEST_VOCABULARY or head > size // 2:
    return []
  grid = np.geomspace(head, size - 1, _NUM_CANDIDATES)
  candidates = sorted({int(n) // _MULTIPLE * _MULTIPLE for n in grid} - {head})
  choices = (
    (head, *tails)
    for num_tails in range(_MOST_CUTOFFS)
    for tails in itertools.combinations(candidates, num_tails)
  )
  return list(min(choices, key=functools.partial(_cost, covered)))


def count(path: pathlib.Path, *, size: int) -> NDArray[np.int64]:
  """Returns how often each id below `size` occurs in a token file [size].

  One part at a time is in memory; a memory map would count as resident.
  """
  counts = np.zeros(size, np.int64)
  with open(path, "rb") as file:
    npy.read_magic(file)
    _, _, dtype = npy.read_array_header_1_0(file)
    while len(block := np.fromfile(file, dtype, _BLOCK)):
      counts += np.bincount(block, minlength=size)
  return counts


def coverage(counts: NDArray[np.int64], cutoffs: list[int]) -> list[float]:
  """Returns the share of the tokens that is in each bin [len(cutoffs) + 1]."""
  shares = np.add.reduceat(counts, [0, *cutoffs]) / max(counts.sum(), 1)
  return shares.tolist()


def _cost(covered: NDArray[np.float64], cuts: tuple[int, ...]) -> float:
  """Returns the mean work per token, in multiplied rows of the head's width."""
  bounds = [*cuts, len(covered) - 1]
  cost = float(cuts[0] + len(cuts))
  for i, (start, stop) in enumerate(itertools.pairwise(bounds), start=1):
    share = covered[stop] - covered[start]
    cost += share * (stop - start) / math.pow(4, i)
  return cost
