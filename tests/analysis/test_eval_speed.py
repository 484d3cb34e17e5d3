"""Evaluation speed: all timed methods give the same losses."""

import dataclasses
import json

import numpy as np
import pytest

from tests import corpus
from tests import tiny
from transformer_xl import errors
from transformer_xl.analysis import eval_speed
from transformer_xl.analysis import vanilla
from transformer_xl.config import load
from transformer_xl.evaluation import protocol


def test_ratios_are_written_and_drawn(data_dir, tmp_path, caplog):
  caplog.set_level("INFO")
  config = corpus.config(data_dir, **{"analysis.speed_lens": (12,)})
  result = eval_speed.run(config, str(tmp_path))
  folder = tmp_path / "results"
  saved = json.loads((folder / "eval_speed.json").read_text())
  assert saved == json.loads(json.dumps(result))
  assert result["made_by"].encode() in (folder / "eval_speed.png").read_bytes()
  assert [row["attention_len"] for row in result["lengths"]] == [12]
  for row in result["lengths"]:
    milliseconds = row["milliseconds_per_token"]
    assert row["times_faster_than_vanilla"]["hidden"] == pytest.approx(
      milliseconds["vanilla"] / milliseconds["hidden"]
    )
  for name in ("eval_speed.json", "eval_speed.png"):
    assert f"Wrote {folder / name}." in caplog.text


def test_a_length_of_the_paper_has_its_ratio():
  seconds = dict.fromkeys(eval_speed.LABELS, 2.0) | {"key_value": 0.5}
  row = eval_speed._row(800, seconds)
  assert row["times_faster_than_vanilla"]["key_value"] == 4
  assert row["paper_times_faster"] == 363
  assert eval_speed._row(801, seconds)["paper_times_faster"] is None


@pytest.mark.rest
def test_memories_are_carried_and_give_the_same_losses():
  """The second segment of each method sees the first."""
  config = load.from_config_dict(tiny.config_dict(**{"eval.segment_len": 3}))
  text = np.random.default_rng(0).integers(23, size=40)
  twin = dataclasses.replace(config.model, **vanilla.changes(config.model))
  hidden = protocol.make_network_reader(config.model, config.eval, 6)
  keys = protocol.make_reader(config.model, config.eval, 6)
  methods = eval_speed._methods(hidden, keys, twin, text, 3)
  losses = {
    name: [np.array(call(index)) for index in range(3)]
    for name, (call, _) in methods.items()
  }
  assert [count for _, count in methods.values()] == [1, 1, 3, 3]
  np.testing.assert_allclose(
    losses["hidden"],
    losses["key_value"],
    atol=1e-5,  # Float32.
  )
  # The window at 0 and the memory after 5 tokens have the same context.
  np.testing.assert_allclose(
    losses["recomputed"][0][0, 0], losses["hidden"][1][0, 2], atol=1e-5
  )


def test_layers_of_another_length_than_is_stated_are_one_line(
  data_dir, tmp_path
):
  config = corpus.config(data_dir, **{"model.layers": ("attention:4",)})
  with pytest.raises(errors.UserError, match="states how far a model attends"):
    eval_speed.run(config, str(tmp_path))
