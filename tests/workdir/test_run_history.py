"""What is read of a run's log, cards and configuration."""

import json

import numpy as np
import pytest

from tests import corpus
from tests import kinds
from transformer_xl import errors
from transformer_xl.workdir import run_history
from transformer_xl.workdir import run_record

LOG = """\
{"step": 2, "loss": 3.0, "tokens_per_second": null}
{"step": 4, "loss": 2.5, "tokens_per_second": 10.0}
{"step": 4, "split": "valid", "nll": 2.75}
{"step": 5, "divergence": "it spiked", "detected_at": 8, "rewound_to": 4}
{"step": 6, "loss": NaN}
{"step": 8, "loss": 2.0, "tokens_per_second": 1e999}
[4]
{"step": true, "loss": 9.0}
{"step": 10, "lo"""


@pytest.fixture
def workdir(data_dir, tmp_path):
  for step in (0, 4, 4):
    run_record.record(corpus.config(data_dir), str(tmp_path), step=step)
  (tmp_path / "metrics.jsonl").write_text(LOG)
  return tmp_path


def card(mem_len, nll, **settings):
  settings = {"split": "test", "checkpoint_step": 8} | settings
  return {"mem_len": mem_len, "nll": nll, "seconds": nll, **settings}


def keep(workdir, *cards):
  (workdir / "results").mkdir(exist_ok=True)
  text = "".join(json.dumps(one) + "\n" for one in cards)
  (workdir / "results" / "cards.jsonl").write_text(text)


def test_curves_have_the_numbers_of_their_lines_alone(workdir):
  run = run_history.read(str(workdir))
  np.testing.assert_array_equal(run.training("loss").x, [2, 4, 8])
  np.testing.assert_array_equal(run.training("loss").y, [3.0, 2.5, 2.0])
  np.testing.assert_array_equal(run.training("tokens_per_second").x, [4])
  assert run.validation().x.tolist() == [4]
  assert run.validation().y.tolist() == [2.75]


def test_interruptions_are_the_steps_that_training_went_back_to(workdir):
  run = run_history.read(str(workdir))
  assert run.rewinds() == [4]
  assert run.resumes() == [4]


def test_of_a_long_log_what_shows_in_a_figure_stays(workdir, monkeypatch):
  """The ends, spikes and lost steps of each curve, and every rewind."""
  monkeypatch.setattr(run_history, "_LONG_LOG", 1000)
  monkeypatch.setattr(run_history, "_STRETCHES", 10)
  log = [{"step": i, "loss": 3.0, "gradient_norm": 1.0} for i in range(1, 2000)]
  log[700]["loss"] = 9.0
  log[701]["gradient_norm"] = 0.125
  log[702]["loss"] = None
  log[1500:1500] = [{"step": 1501, "split": "valid", "nll": 2.5}]
  log[900:900] = [{"step": 905, "divergence": "it spiked", "rewound_to": 900}]
  text = "".join(json.dumps(line) + "\n" for line in log)
  (workdir / "metrics.jsonl").write_text(text)
  run = run_history.read(str(workdir))
  assert len(run.lines) < 100
  curve = run.training("loss")
  assert (curve.x[0], curve.x[-1]) == (1, 1999)
  assert curve.y[curve.x == 701].tolist() == [9.0] == [curve.y.max()]
  assert run.training("gradient_norm").y.min() == 0.125
  assert run.validation().x.tolist() == [1501]
  assert run.lost_steps() == [703]
  assert run.rewinds() == [900]
  assert [line["step"] for line in run.lines] == sorted(
    line["step"] for line in run.lines
  )


def test_the_newest_card_of_a_memory_length_counts(workdir):
  keep(workdir, card(8, 3.0), card(0, 2.5), card(8, 2.0))
  curves = run_history.read(str(workdir)).loss_by_memory()
  assert [*curves] == ["test, step 8"]
  assert curves["test, step 8"].x.tolist() == [0, 8]
  assert curves["test, step 8"].y.tolist() == [2.5, 2.0]


def test_cards_with_other_settings_are_another_curve(workdir):
  keep(workdir, card(8, 3.0, clamp_len=0), card(8, 2.0, clamp_len=4))
  curves = run_history.read(str(workdir)).loss_by_memory()
  assert [*curves] == ["test, step 8, clamp_len 0", "test, step 8, clamp_len 4"]


def test_a_curve_names_what_adapted_to_the_text(workdir):
  caches = [{"size": 5, "share": 0.1}, {"size": 5, "share": 0.2}]
  keep(workdir, card(8, 3.0), *(card(8, 2.0, cache=one) for one in caches))
  curves = run_history.read(str(workdir)).loss_by_memory()
  assert [*curves] == [
    *("test, step 8", "test, step 8, cache 5 0.1", "test, step 8, cache 5 0.2")
  ]


def test_a_curve_of_memories_begins_without_one(workdir):
  """Cards of memory 0 state no window and no slots."""
  nothing = {"same_length": False, "mixer_fields": {}}
  settings = {
    "same_length": True,
    "mixer_fields": {kinds.compressing(): {"slots": 4}},
  }
  keep(workdir, card(0, 3.0, **nothing), card(8, 2.0, **settings))
  curves = run_history.read(str(workdir)).loss_by_memory()
  assert [*curves] == ["test, step 8"]
  assert curves["test, step 8"].x.tolist() == [0, 8]


def test_a_card_that_only_the_result_has_is_found(workdir):
  keep(workdir, card(8, 3.0))
  result = {"cards": [card(8, 3.0), card(16, 2.0)]}
  (workdir / "results" / "eval_test.json").write_text(json.dumps(result))
  cards = run_history.read(str(workdir)).cards
  assert [one["mem_len"] for one in cards] == [8, 16]


def test_differences_are_the_fields_that_are_not_the_same(data_dir, tmp_path):
  for name, rate in (("a", 0.1), ("b", 0.2)):
    config = corpus.config(data_dir, **{"train.learning_rate": rate})
    run_record.record(config, str(tmp_path / name))
  runs = run_history.read_all([str(tmp_path / name) for name in "ab"])
  assert [run.name for run in runs] == ["a", "b"]
  found = run_history.differences(runs)
  assert found == {"config.train.learning_rate": [0.1, 0.2]}


def test_runs_of_one_name_are_told_apart_by_their_paths(data_dir, tmp_path):
  folders = [str(tmp_path / name / "run") for name in "ab"]
  for folder in folders:
    run_record.record(corpus.config(data_dir), folder)
  assert [run.name for run in run_history.read_all(folders)] == folders


def test_a_folder_that_is_no_run_is_one_line(tmp_path):
  with pytest.raises(errors.UserError, match=r"has no config\.json"):
    run_history.read(str(tmp_path))
