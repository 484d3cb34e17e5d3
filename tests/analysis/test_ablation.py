"""Rows of the ablation: names, training, evaluation, and no repetition."""

import json
import pathlib

import numpy as np
import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl.analysis import ablation
from transformer_xl.analysis import equal_memory
from transformer_xl.analysis import rows
from transformer_xl.config import load
from transformer_xl.training import loop

RUN = {
  "analysis.rows": ("recurrent-relative-all", "segment-absolute-recent_half"),
  "analysis.attention_lens": (4,),
  "train.num_steps": 4,
  "checkpoint.every_steps": 2,
}


def test_rows_are_trained_once_and_tabulated(data_dir, tmp_path, monkeypatch):
  config = corpus.config(data_dir, **RUN)
  trained = []
  original = loop.train

  def counted(config, workdir):
    trained.append(pathlib.Path(workdir).name)
    # The second row is interrupted on the first attempt.
    return len(trained) != 2 and original(config, workdir)

  monkeypatch.setattr(loop, "train", counted)
  first = ablation.run(config, str(tmp_path))
  assert [row["name"] for row in first["rows"]] == ["recurrent-relative-all"]
  second = ablation.run(config, str(tmp_path))
  assert trained == [config.analysis.rows[0], *[config.analysis.rows[1]] * 2]
  assert second["rows"][0] == first["rows"][0]
  recurrent, vanilla = second["rows"]
  assert (recurrent["mem_len"], vanilla["mem_len"]) == (8, 0)
  assert recurrent["init"]["attention_len"] == 16
  assert vanilla["init"]["attention_len"] == 8
  assert recurrent["tokens"] == vanilla["tokens"]
  for row in second["rows"]:
    assert row["init"]["num_tokens"] == corpus.TOKENS["test"] - 1
    assert row["best"]["nll"] == min(one["nll"] for one in row["sweep"])
  folder = tmp_path / "results"
  saved = json.loads((folder / "ablation.json").read_text())
  assert saved == json.loads(json.dumps(second))
  assert (folder / "ablation.md").read_text().count("\n") == 4
  picture = (folder / "ablation.png").read_bytes()
  assert second["made_by"].encode() in picture


def test_a_row_of_several_seeds_is_their_mean(data_dir, tmp_path, monkeypatch):
  losses = {0: [2.0, 3.0], 3: [2.2, 2.6]}

  def result(row, config, folder):
    assert folder == str(tmp_path / f"seed_{config.seed}" / row.name)
    sweep = [
      {"attention_len": 8 * (1 + i), "nll": nll, "perplexity": np.exp(nll)}
      for i, nll in enumerate(losses[config.seed])
    ]
    fields = ("num_parameters", "segment_len", "planned_bytes")
    return {
      **dict.fromkeys(fields, 1),
      **{"name": row.name, "recurrence": True},
      **{"encoding": row.encoding, "loss_on": row.loss_on},
      **{"init": sweep[1], "best": sweep[0], "sweep": sweep},
    }

  monkeypatch.setattr(ablation, "_result", result)
  config = corpus.config(data_dir, **RUN, **{"analysis.seeds": (0, 3)})
  first, _ = ablation.run(config, str(tmp_path))["rows"]
  assert first["init"]["nll"] == pytest.approx(2.8)
  assert first["best"]["perplexity"] == pytest.approx(np.exp(2.1))
  assert first["spread"] == pytest.approx(0.4)
  text = (tmp_path / "results" / "ablation.md").read_text()
  # Half of exp(3.0) - exp(2.6), within what the mean loss changes.
  assert "16.44 ± 3.31 (16) | 8.17 | 8 |" in text


def test_a_row_trained_with_other_settings_is_refused(data_dir, tmp_path):
  config = corpus.config(data_dir, **RUN)
  row = ablation.parse(config.analysis.rows[0])
  settings = rows.settings(ablation.row_config(config, row), {})
  settings["train"]["learning_rate"] = 7.0
  path = tmp_path / row.name / "results" / "row.json"
  path.parent.mkdir(parents=True)
  path.write_text(json.dumps({"asked": settings}))
  with pytest.raises(errors.UserError, match=r"learning_rate=7.0 and 0.01 is"):
    ablation.run(config, str(tmp_path))


def test_a_row_is_that_of_its_seed_data_and_evaluation(
  data_dir, tmp_path, monkeypatch
):
  described = []
  monkeypatch.setattr(rows.loop, "train", lambda *_: True)

  def row(**updates):
    config = load.replaced(corpus.config(data_dir, **RUN), updates)
    return rows.result(
      config,
      str(tmp_path / "row"),
      asked={},
      describe=lambda: described.append(updates) or {"nll": len(described)},
    )["nll"]

  assert [row(), row(), row(**{"data.dir": "elsewhere"})] == [1, 1, 1]
  assert row(**{"eval.clamp_len": 3}) == 2
  assert row(**{"eval.clamp_len": 4}) == 3
  for updates, text in (
    ({"seed": 5}, "trained with seed=0 and 5 is"),
    ({"data.name": "other"}, "data.name="),
  ):
    with pytest.raises(errors.UserError, match=text):
      row(**updates)


@pytest.mark.parametrize(
  "name", ["recurrent", "recurrent-other-all", "segment-shaw-half"]
)
def test_an_unknown_row_is_one_line(name):
  with pytest.raises(errors.UserError, match="which is not a row; rows are"):
    ablation.parse(name)


def test_recurrence_takes_more_device_memory(data_dir):
  config = corpus.config(data_dir, **{"model.vocab_size": 23})
  plain = ablation.row_config(config, ablation.parse("segment-relative-all"))
  assert (
    equal_memory.bytes_of_step(config) > equal_memory.bytes_of_step(plain) > 0
  )


@pytest.mark.parametrize("fits", [8, 9, 23, 100])
def test_segments_grow_to_the_budget_of_the_recurrent_row(
  data_dir, monkeypatch, fits
):
  plain = corpus.config(data_dir, **{"train.num_steps": 1000})
  monkeypatch.setattr(
    equal_memory, "bytes_of_step", lambda config: 7 * config.train.segment_len
  )
  grown = equal_memory.with_longest_segment(plain, budget=7 * fits)
  # Within three per cent, to limit compilations.
  assert 0.96 * fits <= grown.train.segment_len <= fits
  tokens = [
    one.train.num_steps * one.train.segment_len for one in (plain, grown)
  ]
  call = grown.train.segments_per_call * grown.train.segment_len
  assert np.ptp(tokens) < call
