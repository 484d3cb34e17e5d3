"""The ablation: its rows, what is refused, and segments of equal memory."""

import json

import pytest

from tests import corpus
from tests import kinds
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import ablation
from transformer_xl.analysis import costs
from transformer_xl.analysis import equal_memory
from transformer_xl.analysis import variants

ROTATING = f"recurrent-{kinds.encoding(rotates=True)}-all"


def an_ablation(data_dir, workdir, *rows, **updates):
  updates |= {"analysis.rows": rows, "analysis.split": "test"}
  return ablation.run(
    corpus.config(data_dir, **runs.COMPARED | updates), str(workdir)
  )


@pytest.mark.rest
def test_rows_of_the_ablation_are_trained_and_tabulated(data_dir, tmp_path):
  """Real training, and a window that the test split is too short for."""
  result = an_ablation(
    *(data_dir, tmp_path),
    *("recurrent-relative-all", "segment-absolute-recent_half"),
  )
  recurrent, segment = result["rows"]
  assert (recurrent["mem_len"], segment["mem_len"]) == (8, 0)
  assert recurrent["init"]["attention_len"] == 16
  assert segment["init"]["attention_len"] == 8
  assert recurrent["tokens"] == segment["tokens"]
  assert recurrent["planned_bytes"] > segment["planned_bytes"] > 0
  lengths = [[one["attention_len"] for one in r["sweep"]] for r in (recurrent,)]
  assert lengths == [[4, 16, 150]]
  assert [one["attention_len"] for one in segment["sweep"]] == [4, 8]
  for each in result["rows"]:
    assert each["init"]["num_tokens"] == corpus.TOKENS["test"] - 1
    assert each["best"]["nll"] == min(one["nll"] for one in each["sweep"])
  folder = tmp_path / "results"
  saved = json.loads((folder / "ablation.json").read_text())
  assert saved == json.loads(json.dumps(result))
  assert (folder / "ablation.md").read_text().count("\n") == 4
  picture = (folder / "ablation.png").read_bytes()
  assert result["made_by"].encode() in picture


@pytest.mark.parametrize(
  ("rows", "updates", "text"),
  [
    (["recurrent"], {}, "which is not a row; rows are"),
    (["recurrent-other-all"], {}, "which is not a row; rows are"),
    (
      [f"recurrent-{kinds.learned()}-all"],
      {"train.mem_len": 0},
      "has no recurrence with",
    ),
    (
      [f"segment-{kinds.learned(counts_from_segment=True)}-all"],
      {"model.num_positions": 7},
      "has learned 7 positions",
    ),
    (
      ["recurrent-relative-all"],
      {"model.layers": (kinds.compressing(),)},
      "--mode=ablation states how far a model attends",
    ),
    (
      ["recurrent-relative-all"],
      {"model.layers": ("attention:3",)},
      "--mode=ablation states how far a model attends",
    ),
  ],
)
def test_an_ablation_that_cannot_be_is_one_line_before_the_first_update(
  data_dir, tmp_path, trained, rows, updates, text
):
  with pytest.raises(errors.UserError, match=text):
    an_ablation(data_dir, tmp_path, ROTATING, *rows, **updates)
  assert not trained


def test_an_ablation_without_rows_is_refused(data_dir):
  config = corpus.config(data_dir, **runs.COMPARED, **{"analysis.rows": ()})
  with pytest.raises(errors.UserError, match="needs rows to compare; set --co"):
    ablation.rows_of(config)


def test_the_median_of_seeds_stands_with_their_interval(
  data_dir, tmp_path, trained
):
  trained.loss = lambda config: {0: 3.0, 3: 2.8, 4: 2.0}[config.seed]
  seeds = {"analysis.seeds": (0, 3, 4), "train.clamp_len": 9}
  (first,) = an_ablation(
    data_dir, tmp_path, ROTATING, **seeds, **{"model.head_dim": 4}
  )["rows"]
  assert first["init"]["nll"] == pytest.approx(2.8)
  assert (first["low"], first["high"]) == (2.0, 3.0)
  text = (tmp_path / "results" / "ablation.md").read_text()
  # The exponentials of 2.8, 2.0 and 3.0.
  assert "16.44 (16) | 7.39 to 20.09 | 1 | 16.44 | 4 |" in text


def test_text_that_is_read_again_is_attended_in_training(data_dir):
  again = runs.NO_MEMORY | {"train.context_len": 5}
  config = corpus.config(data_dir, **runs.COMPARED | again)
  assert ablation.trained_length(config.train) == 5 + 8


@pytest.mark.parametrize("limit", [8, 9, 23, 100, 10**9])
def test_segments_grow_to_the_budget_and_schedules_with_them(
  data_dir, monkeypatch, limit
):
  """No longer than a lane, also if memory never depends on the length."""
  counts = {
    "train.num_steps": 1000,
    "train.warmup_steps": 100,
    "train.asgd_start_step": 500,
  }
  plain = corpus.config(data_dir, **runs.COMPARED | runs.NO_MEMORY | counts)
  for decay_steps in (1000, 800):
    config = variants.configure(plain, {"train.decay_steps": decay_steps})
    monkeypatch.setattr(
      costs, "planned_bytes", lambda recipe, *_: recipe.train.segment_len
    )
    changes = equal_memory.changes(config, budget=limit)
    grown = variants.configure(config, changes).train
    longest = min(limit, (corpus.TOKENS["train"] - 1) // 4)
    # Within three per cent, to limit compilations.
    assert 0.96 * longest <= grown.segment_len <= longest
    for name in ("num_steps", "decay_steps", "warmup_steps", "asgd_start_step"):
      before = getattr(config.train, name) * config.train.segment_len
      after = getattr(grown, name) * grown.segment_len
      call = grown.segments_per_call * grown.segment_len
      assert abs(after - before) < call
