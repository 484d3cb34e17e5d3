import itertools

import pytest

from tests.parity import configurations

DRAWN = [
  configurations.draw(index) for index in range(configurations.NUM_DRAWN)
]


def values(field, models):
  return {getattr(drawn.model, field) for drawn in models}


@pytest.mark.parametrize(
  ("indices", "least"),
  [
    (range(configurations.NUM_DRAWN), 30),
    (configurations.CHARACTERISTIC, 1),
  ],
)
def test_the_drawn_models_cover_every_option(indices, least):
  models = [DRAWN[index] for index in indices]
  assert len(models) >= least
  for field in ("untie_biases", "tie_weights", "pre_norm"):
    assert values(field, models) == {True, False}
  assert values("tie_projections", models) == {"none", "all", "all_but_first"}
  assert values("div_val", models) == {1, 2, 4}
  assert {len(cutoffs) for cutoffs in values("cutoffs", models)} == {0, 1, 2}
  assert {drawn.clamp_len > 0 for drawn in models} == {True, False}
  assert {drawn.same_length for drawn in models} == {True, False}
  assert {drawn.batch_size for drawn in models} == {1, 2, 3, 4}


def test_every_division_meets_every_kind_of_clusters_and_widths():
  combinations = {
    (
      drawn.model.div_val,
      len(drawn.model.cutoffs) > 0,
      drawn.model.embed_dim == drawn.model.model_dim,
    )
    for drawn in DRAWN
  }
  wanted = itertools.product((1, 2, 4), (True, False), (True, False))
  assert combinations == set(wanted)


def test_segments_are_chained_and_of_unequal_length():
  for drawn in DRAWN:
    assert len(drawn.tokens) >= 3
    assert len(set(drawn.segment_lens)) > 1
  shorter = [d for d in DRAWN if d.mem_len < min(d.segment_lens)]
  longer = [d for d in DRAWN if d.mem_len > max(d.segment_lens)]
  assert shorter
  assert longer
