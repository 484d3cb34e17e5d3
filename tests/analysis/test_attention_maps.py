"""Attention by distance, the widest heads, and the figures of both."""

import json

import numpy as np
import pytest

from tests import kinds
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import attention_maps
from transformer_xl.report import reading

PICTURES = ("attention_distance", "attention_widest", "attention_terms")


def test_distance_is_from_the_query_to_the_key():
  """Two queries, three keys in memory; each attends to a single key."""
  weights = np.zeros((1, 1, 2, 5), np.float32)
  weights[0, 0, 0, 1] = 1  # Query at 3.
  weights[0, 0, 1, 4] = 1  # Query at 4.
  profile = attention_maps.by_distance(weights)
  np.testing.assert_allclose(profile[0, 0], [0.5, 0, 0.5, 0])


def test_the_widest_heads_have_the_largest_distances():
  profile = np.zeros((2, 2, 4))
  for place, distance in (((0, 0), 1), ((0, 1), 3), ((1, 0), 0), ((1, 1), 2)):
    profile[(*place, distance)] = 1
  assert attention_maps.widest(profile) == [(0, 1), (1, 1), (0, 0)]


SLOTS = kinds.model(kinds.compressing())


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("text", "model"), [("abcdefgh ijkl\n" * 4, {}), ("", SLOTS)]
)
def test_maps_are_written_and_drawn(data_dir, tmp_path, text, model):
  """Compressed slots are not tokens, so the maps show only their share."""
  updates = {"analysis.num_tokens": 60, "analysis.text": text, **model}
  config = runs.write(data_dir, tmp_path, **updates)
  result = attention_maps.run(config, str(tmp_path))
  folder = tmp_path / "results"
  assert json.loads((folder / "attention.json").read_text()) == result
  numbers = np.load(folder / "attention.npz")
  assert numbers["by_distance"].shape == (2, 2, 9)
  assert numbers["terms_of_widest"].shape == (4, 3, 8, 16)
  # Keys of the segment are within the distance of the memory, too.
  assert np.all(numbers["by_distance"].sum(-1) <= 1 + 1e-5)
  for name in PICTURES:
    picture = (folder / f"{name}.png").read_bytes()
    assert result["made_by"].encode() in picture


@pytest.mark.rest
def test_documents_are_those_of_evaluation(data_dir, tmp_path, monkeypatch):
  """The loss is that of the report's text, which equals an evaluation's."""
  monkeypatch.setattr(reading, "NUM_TOKENS", 80)
  updates = {"data.reset_at_documents": True, "analysis.num_tokens": 80}
  config = runs.write(data_dir, tmp_path, **updates)
  found = attention_maps.run(config, str(tmp_path))
  text = reading.read(config, str(tmp_path))
  measured = text["nll"][found["mem_len"] :]
  assert found["num_tokens"] == len(measured) == 72
  # Losses of the report have four digits.
  assert found["nll"] == pytest.approx(np.mean(measured), abs=1e-4)


@pytest.mark.parametrize(
  ("updates", "text"),
  [
    ({"eval.mem_len": (0,)}, "there is no memory to pay attention to"),
    ({"analysis.text": "abc"}, "has 3 tokens, but filling the memory"),
  ],
)
def test_a_mistake_is_one_line(data_dir, tmp_path, updates, text):
  config = runs.write(data_dir, tmp_path, **updates)
  with pytest.raises(errors.UserError, match=text):
    attention_maps.run(config, str(tmp_path))
