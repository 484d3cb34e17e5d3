"""The package's model equals the brute-force oracle, segment after segment."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import oracle
from tests.conformance import adapters

# Float32 against float64, relative to the largest log-probability or state. A
# wrong distance or window changes them a hundred times as much; see
# `test_mutants`.
ROUNDING = 30 * comparison.FLOAT32


class Case(NamedTuple):
  """Lengths, and which window rule if any."""

  segment_len: int
  mem_len: int
  clamp_len: int
  window: str | None
  model: dict
  layer_lens: tuple[int, ...] = ()  # If they differ from `mem_len`.


MASKED, ZEROS, FEW = {}, {"memory_start": "zeros"}, ((1, 9), (1, 1), (1, 0))
CASES = (
  # Memory longer than, as long as and shorter than the segment, and none.
  Case(3, 7, 0, None, MASKED),
  Case(5, 2, 0, None, MASKED),
  Case(4, 0, 0, None, MASKED),
  # Both window rules, and a clamp within, at and beyond the context.
  Case(3, 7, 2, "mem_len", MASKED | {"pre_norm": True}),
  Case(3, 7, 9, "mem_len_plus_one", ZEROS | {"untie_biases": True}),
  Case(5, 2, 6, "mem_len_plus_one", MASKED),
  Case(4, 0, 0, "mem_len_plus_one", MASKED),
  Case(1, 1, 0, "mem_len", MASKED),
  # Embeddings and softmax; `test_adaptive_softmax` has all combinations.
  Case(2, 3, 0, None, {"cutoffs": (5, 11), "div_val": 2, "embed_dim": 12}),
  Case(
    2,
    3,
    2,
    "mem_len",
    ZEROS | {"cutoffs": (4,), "div_val": 4, "pre_norm": True},
  ),
  # The other encodings, with a table shorter and longer than the context.
  Case(3, 7, 0, None, {"encoding": "shaw", "num_positions": 4}),
  Case(3, 7, 2, None, {"encoding": "relative_tied"}),
  Case(4, 0, 0, None, {"encoding": "absolute"}),
  Case(3, 7, 0, None, {"encoding": "absolute_per_layer", "pre_norm": True}),
  Case(4, 2, 0, "mem_len", ZEROS | {"encoding": "rope", "pre_norm": True}),
  Case(3, 7, 0, None, {"encoding": "rope", "position_scale": 0.3}),
  Case(3, 7, 0, None, {"encoding": "alibi", "num_heads": 3}),
  Case(3, 7, 0, None, {"encoding": "none"}),
  # Layers that remember less, repeated, with a limit that is not reached.
  Case(
    3,
    7,
    4,
    None,
    {"num_layers": 6, "memory_lens": ((2, 2), (1, 0))},
    (2, 2, 7, 2, 2, 7),
  ),
  Case(
    4,
    6,
    0,
    "mem_len",
    ZEROS | {"encoding": "rope", "num_layers": 3, "memory_lens": FEW},
    (6, 1, 6),
  ),
)
# The same values in other company.
REST = (
  Case(4, 4, 0, None, ZEROS),
  Case(1, 4, 0, None, ZEROS),
  Case(5, 2, 1, "mem_len", ZEROS),
  Case(4, 0, 3, "mem_len", MASKED),
  Case(4, 2, 0, "mem_len", ZEROS | {"encoding": "shaw"}),
  Case(4, 2, 0, "mem_len", ZEROS | {"encoding": "relative_tied"}),
  Case(3, 7, 0, "mem_len", ZEROS | {"encoding": "absolute"}),
  Case(4, 0, 0, None, {"encoding": "absolute_per_layer", "num_positions": 4}),
  Case(3, 7, 0, None, {"encoding": "rope"}),
  Case(4, 2, 0, "mem_len", ZEROS | {"encoding": "alibi", "pre_norm": True}),
  Case(4, 2, 0, "mem_len", ZEROS | {"encoding": "none"}),
  Case(
    2,
    5,
    0,
    "mem_len_plus_one",
    {"encoding": "shaw", "num_layers": 3, "memory_lens": FEW, "pre_norm": True},
    (5, 1, 5),
  ),
)


def _name(case):
  lengths = f"{case.segment_len}-{case.mem_len}-{case.clamp_len}"
  return "-".join([lengths, str(case.window), *case.model])


@pytest.mark.parametrize(
  "case",
  [*CASES, *(pytest.param(case, marks=pytest.mark.rest) for case in REST)],
  ids=_name,
)
def test_three_segments_equal_the_oracle(case, strict_dtypes, counting):
  adapter = adapters.Package(
    mem_len=case.mem_len,
    same_length=case.window is not None,
    clamp_len=case.clamp_len,
    same_length_window=case.window or "mem_len",
    **case.model,
  )
  counting("oracle", adapter)
  worst = worst_difference(
    adapter, segment_len=case.segment_len, mem_len=case.layer_lens
  )
  assert worst < ROUNDING


def worst_difference(adapter, *, segment_len: int, mem_len=()) -> float:
  """Worst over log-probabilities and memory; the third segment has a reset.

  Differences are relative to the largest number of an array.
  """
  mem_len = mem_len or adapter.mem_len
  params, memory, lanes = adapter.init(0), adapter.fresh(2), None
  generator, worst = np.random.default_rng(2), 0.0
  for index in range(4):
    shape = (2, segment_len)
    tokens = generator.integers(adapter.vocab_size, size=shape, dtype=np.int32)
    resets = np.zeros(shape, bool)
    if index == 2:  # Where zeros are attended, only whole lanes can be reset.
      resets[1, segment_len // 2 if adapter.masks_empty else 0] = True
    actual, memory = adapter.step(
      params, jnp.asarray(tokens), memory, jnp.asarray(resets)
    )
    expected, lanes = _expect(adapter, params, tokens, lanes, resets, mem_len)
    worst = max(worst, comparison.difference(actual, expected))
    worst = max(worst, _difference_of_memory(memory, lanes))
  return worst


def _expect(adapter, params, tokens, lanes, resets, mem_len):
  if lanes is None:
    lanes = oracle.start(adapter.config, batch_size=2, mem_len=mem_len)
  return oracle.segment(
    params,
    adapter.config,
    tokens,
    lanes,
    mem_len=mem_len,
    clamp_len=adapter.clamp_len,
    same_length=adapter.same_length,
    resets=resets,
  )


def _difference_of_memory(memory, lanes) -> float:
  """Only what a lane may still see counts."""
  differences = [0.0]
  layers = [layer for group in memory.groups for layer in group.hiddens]
  for row, lane in enumerate(lanes):
    assert memory.length[row] == max(map(len, lane))
    for layer, states in zip(layers, lane, strict=True):  # [m, D]
      if states.size:
        visible = layer[row, -len(states) :]
        differences.append(comparison.difference(visible, states))
  return max(differences)
