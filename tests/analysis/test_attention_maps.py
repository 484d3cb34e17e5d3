"""Attention by distance, of chosen heads to memory, and the figures of both."""

import json

import numpy as np
import pytest

from tests import kinds
from tests import tiny
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import attention_maps
from transformer_xl.analysis import attention_plots
from transformer_xl.config import load
from transformer_xl.report import reading

PICTURES = ("attention_distance", "attention_heads", "attention_terms")


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
  heads = attention_maps.widest(profile, [1, 3])  # Layer 2 does not attend.
  assert heads == [(0, 1, 1, 2), (1, 1, 3, 6), (0, 0, 1, 1)]


def of_paper(**updates):
  """A configuration with as many layers and heads as the paper draws."""
  sizes = {"model.num_layers": 16, "model.num_heads": 10}
  return load.from_config_dict(tiny.config_dict(**sizes, **updates))


def heads(config):
  return attention_maps._given_heads(config.model, config.analysis.heads)


def test_heads_are_counted_through_the_layers_as_the_paper_counts():
  found = heads(of_paper(**{"analysis.heads": (1, 10, 11, 78, 160)}))
  layers_and_heads = [(head.layer, head.in_layer + 1) for head in found]
  assert layers_and_heads == [(1, 1), (1, 10), (2, 1), (8, 8), (16, 10)]
  assert [head.number for head in found] == [1, 10, 11, 78, 160]


def test_a_model_of_the_papers_sizes_shows_the_papers_heads():
  paper = heads(of_paper())
  assert [head.number for head in paper] == [8, 78, 158]
  assert [head.layer for head in paper] == [1, 8, 16]
  assert heads(load.from_config_dict(tiny.config_dict())) == []
  hybrid = {"model.layers": (kinds.recurrent(), "attention")}
  assert heads(of_paper(**hybrid)) == []
  (head,) = heads(of_paper(**hybrid, **{"analysis.heads": (78,)}))
  assert head == (3, 7, 8, 78)  # The fourth of the layers that attend.


def test_the_top_of_memory_is_a_fifth_and_has_attention():
  weights = np.zeros((1, 2, 12))  # Ten keys in memory.
  weights[0, 0, :12] = np.arange(12)
  weights[0, 1, 4] = 1
  marked = attention_maps.top_of_memory(weights)
  assert [np.flatnonzero(row).tolist() for row in marked[0]] == [[8, 9], [4]]


def test_the_picture_marks_the_top_of_memory():
  """In the lowest quarter of the row of each target."""
  weights = np.random.default_rng(0).random((2, 3, 13))
  marked = attention_maps.top_of_memory(weights)
  words = [*"abcdefghijklm"]
  figure = attention_plots.memories(
    weights, marked, ["head 1", "head 9"], words
  )
  panels = [panel for panel in figure.axes if panel.get_title()]
  for panel, marks, name in zip(panels, marked, (1, 9), strict=True):
    assert panel.get_title().startswith(f"head {name};")
    attention, strips = panel.images
    assert attention.get_array().shape == (3, 10)
    drawn = ~np.ma.getmaskarray(strips.get_array())
    np.testing.assert_array_equal(drawn[3::4], marks)
    assert drawn.sum() == marks.sum() == 3 * 2
    assert strips.get_extent() == attention.get_extent()


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
  assert numbers["weights_of_heads"].shape == (3, 8, 16)
  assert numbers["terms_by_distance"].shape == (4, 2, 2, 9)
  for head, number in zip(result["heads"], numbers["heads"], strict=True):
    assert head["number"] == number
    layer, index = divmod(number - 1, 2)
    assert (head["layer"], head["head"]) == (layer + 1, index + 1)
    assert len(head["targets"]) == 5
  # Keys of the segment are within the distance of the memory, too.
  assert np.all(numbers["by_distance"].sum(-1) <= 1 + 1e-5)
  for name in PICTURES:
    picture = (folder / f"{name}.png").read_bytes()
    assert result["made_by"].encode() in picture


def test_any_head_is_shown_by_its_number(data_dir, tmp_path):
  layers = (kinds.recurrent(), "attention")
  updates = {"model.layers": layers, "analysis.heads": (4, 3)}
  config = runs.write(data_dir, tmp_path, **updates)
  result = attention_maps.run(config, str(tmp_path))
  assert result["attending_layers"] == [2]
  shown = [(head["layer"], head["head"]) for head in result["heads"]]
  assert shown == [(2, 2), (2, 1)]
  distances = [head["mean_distance"] for head in result["heads"]]
  assert distances == result["mean_distance"][0][::-1]


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
    (
      {"analysis.heads": (4, 5)},
      "must be from 1 to 4, in 2 layers of 2 heads: there is 5; set --config",
    ),
    (
      {
        "analysis.heads": (2,),
        "model.layers": (kinds.recurrent(), "attention"),
      },
      "layers that attend, which are 2: head 2 is of layer 1; set --config",
    ),
  ],
)
def test_a_mistake_is_one_line(data_dir, tmp_path, updates, text):
  config = runs.write(data_dir, tmp_path, **updates)
  for command in (attention_maps.check, attention_maps.run):
    with pytest.raises(errors.UserError, match=text) as caught:
      command(config, str(tmp_path))
    assert "\n" not in str(caught.value)
