"""The terms of the scores by distance, held to the equations, and in words."""

import numpy as np
import pytest

from tests import comparison
from tests import kinds
from tests import oracle
from tests import tiny
from tests.analysis import runs
from transformer_xl.analysis import attention_maps
from transformer_xl.analysis import attention_plots
from transformer_xl.analysis import plotting
from transformer_xl.analysis import score_terms
from transformer_xl.conformance.equations import attention as equations
from transformer_xl.data import token_file

ROUNDINGS = 30  # See `comparison`.
MEM_LEN, SEGMENT_LEN, NUM_TOKENS = 8, 8, 60
ENCODINGS = kinds.encodings(counts_from_segment=False)
CASES = [
  *({"model.encoding": name} for name in ENCODINGS),
  # The first layer forgets sooner, so few queries see far with it.
  {"model.layers": ("attention:3", "attention")},
]


@pytest.mark.some(3)
@pytest.mark.parametrize("fields", CASES, ids=str)
def test_terms_are_those_of_the_equations(
  data_dir, tmp_path, monkeypatch, fields
):
  """Averages of (a), (b), (c) and (d) in float64, a query and key at a time."""
  updates = {"analysis.num_tokens": NUM_TOKENS, **fields}
  config = runs.write(data_dir, tmp_path, **updates)
  savefig = runs.save_no_picture
  monkeypatch.setattr(plotting.figure_lib.Figure, "savefig", savefig)
  attention_maps.run(config, str(tmp_path))
  numbers = np.load(tmp_path / "results" / "attention.npz")

  file = token_file.open_split(config.data.dataset_dir, config.eval.split)
  tokens = np.asarray(file.tokens[: NUM_TOKENS + 1], np.int32)
  seen = spy_on_attention(monkeypatch)
  params = tiny.params(config.model)
  lanes = oracle.start(config.model, batch_size=1, mem_len=MEM_LEN)
  shape = (4, config.model.num_layers, config.model.num_heads, MEM_LEN + 1)
  totals = np.zeros(shape)
  counts = np.zeros((shape[1], 1, shape[3]))
  for start in range(0, NUM_TOKENS + 1 - SEGMENT_LEN, SEGMENT_LEN):
    seen.clear()
    segment = tokens[None, start : start + SEGMENT_LEN]
    _, lanes = oracle.segment(
      params, config.model, segment, lanes, mem_len=MEM_LEN
    )
    if start < MEM_LEN:
      continue
    for layer, inputs in enumerate(seen):
      add_terms(totals[:, layer], counts[layer], inputs)
  expected = np.where(counts, totals / np.maximum(counts, 1), np.nan)
  comparison.assert_close(
    numbers["terms_by_distance"], expected, roundings=ROUNDINGS
  )


def spy_on_attention(monkeypatch):
  """The inputs of attention, a layer at a time, when the oracle reads."""
  seen = []
  attend = equations.attention
  monkeypatch.setattr(
    equations, "attention", lambda inputs: seen.append(inputs) or attend(inputs)
  )
  return seen


def add_terms(totals, counts, inputs):
  """Adds the terms of one layer at each distance, [4, H, R], and counts [1, R].

  The rows of `position_key` are of the distances K-1 to 0.
  """
  query, key = inputs["query"][0], inputs["key"][0]
  u, v = inputs["content_bias"], inputs["position_bias"]
  root = np.sqrt(query.shape[-1])
  for t in range(len(query)):
    place = len(key) - len(query) + t
    for distance in range(MEM_LEN + 1):
      if distance > min(place, inputs["reach"][0, t]):
        continue
      k = key[place - distance]
      r = inputs["position_key"][len(key) - 1 - distance]
      for term, product in enumerate(
        (query[t] * k, query[t] * r, u * k, v * r)
      ):
        totals[term, :, distance] += product.sum(axis=-1) / root
      if "slopes" in inputs:
        totals[3, :, distance] -= inputs["slopes"] * distance
      counts[0, distance] += 1


FALL = -np.log1p(np.arange(100.0))  # From 0 to about -4.6.
RIPPLE = np.cos(np.arange(100.0))


def terms(**curves):
  """Terms [4, 1, 2, R]; two heads differ by what their average lacks."""
  found = np.zeros((4, 1, 2, len(FALL)))
  for letter, curve in curves.items():
    place = score_terms.LETTERS.index(letter)
    found[place] = np.stack([curve + 3 * RIPPLE, curve - 3 * RIPPLE])
  return found


def test_where_b_dominates_the_sentence_is_the_papers():
  found = score_terms.findings(
    terms(a=0.05 * RIPPLE, b=FALL, c=FALL * 0, d=FALL / 4)
  )
  assert found["falls"]
  assert found["b"]["share"] == pytest.approx(0.8, abs=0.01)
  assert sum(found[name]["share"] for name in "abcd") == pytest.approx(1)
  assert found["d"]["range"] == pytest.approx(np.log(100) / 4)
  assert found["b"]["correlation"] == pytest.approx(1, abs=0.01)
  # exp(-log(1 + d)) is 1 / (1 + d).
  harmonic = np.sum(1 / np.arange(1, 101))
  expected = (100 - harmonic) / harmonic
  assert found["b"]["mean_distance"] == pytest.approx(expected)
  assert found["sentence"] == (
    "By distance, (b) dominates the fall of the score (80% of it); (a) is "
    "essentially uniform (its spread is 3% of the score's); (d) is flatter "
    "than (b) and leans to longer distances (43 against 18 tokens)."
  )


def test_where_d_dominates_the_sentence_says_so():
  found = score_terms.findings(terms(a=FALL / 2, b=FALL / 4, d=FALL))
  assert found["sentence"] == (
    "By distance, (d) and not (b) dominates the fall of the score ((d) 57% of "
    "it, (b) 14%); (a) is not essentially uniform (its spread is 29% of the "
    "score's); (d) is not flatter than (b) and leans to no longer distances "
    "(18 against 43 tokens)."
  )


@pytest.mark.parametrize(
  ("curves", "says"),
  [
    ({"a": FALL, "b": FALL, "d": FALL}, "(of it, (a) 33%, (b) 33%, (d) 33%)"),
    ({"a": RIPPLE, "b": -FALL, "d": FALL / 2}, "the score does not fall;"),
    ({"a": FALL}, "(a) and not (b) dominates the fall of the score ((a) 100% "),
    ({"a": FALL}, "; the encoding has no (b) and no (d)."),
    ({"a": RIPPLE, "b": FALL}, "; the encoding has no (d)."),
    # Rising, d is steeper, and looks far.
    (
      {"a": RIPPLE, "b": FALL, "d": -1.5 * FALL},
      "(d) is not flatter than (b) but leans to longer",
    ),
  ],
)
def test_other_findings_are_told_apart(curves, says):
  assert says in score_terms.findings(terms(**curves))["sentence"]


def test_only_distances_that_all_heads_see_count():
  found = terms(a=RIPPLE, b=FALL)
  found[:, :, 1, 40:] = np.nan
  assert score_terms.findings(found)["num_distances"] == 40
  found[:, :, 1, 1:] = np.nan
  assert score_terms.findings(found) == {
    "sentence": "The score does not depend on the distance.",
    "num_distances": 1,
    "falls": False,
  }


def test_the_picture_has_the_terms_that_the_encoding_has():
  figure = attention_plots.terms(terms(a=RIPPLE, b=FALL))
  titles = [panel.get_title() for panel in figure.axes]
  assert titles == ["(a) query and key", "(b) query and distance"]
  *heads, mean = figure.axes[1].lines
  assert len(heads) == 2
  np.testing.assert_allclose(mean.get_ydata(), FALL - FALL.mean())
