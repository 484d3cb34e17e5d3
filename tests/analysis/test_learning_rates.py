"""Learning rates of a comparison: searched by the first seed on validation."""

import json
import math

import pytest

from tests.analysis import runs
from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl.analysis import costs
from transformer_xl.analysis import trials


def test_the_best_learning_rate_is_that_of_the_validation_split(
  data_dir, tmp_path, trained
):
  """It is chosen for each variant; the test split is read with it alone."""
  best = {8: 0.2, 16: 0.1}

  def loss(config):
    distance = abs(config.train.learning_rate - best[config.train.mem_len])
    is_test = config.eval.split == "test"
    return 3.0 - distance if is_test else 3.0 + distance + config.seed / 100

  trained.loss = loss
  trained.diverges = {0.4}
  settings = {
    "analysis.learning_rates": (0.1, 0.2, 0.4),
    "analysis.seeds": (0, 2),
    "analysis.split": "test",
  }
  result = runs.study_of(
    data_dir, tmp_path, "base: ", "long: train.mem_len=16", **settings
  )
  rows = result["rows"]
  assert [row["learning_rate"] for row in rows] == [0.2, 0.1]
  assert [row["nll"] for row in rows] == [3.0, 3.0]
  tried = rows[0]["learning_rates"]
  # The first seed alone chooses.
  assert [one["nll"] for one in tried] == pytest.approx([3.1, 3.0, math.inf])
  assert [row["edge"] for row in rows] == ["", "lowest"]
  assert {folder for split, folder in trained.read if split == "test"} == {
    f"{tmp_path}/rate_{rate}/seed_{seed}/{name}"
    for name, rate in (("base", 0.2), ("long", 0.1))
    for seed in (0, 2)
  }
  saved = json.loads((tmp_path / "results" / "study.json").read_text())
  assert saved["rows"][0]["learning_rates"][2]["nll"] is None
  table = (tmp_path / "results" / "study.md").read_text()
  assert "| learning rate |" in table
  assert "| 0.2 | 0.1: 22.2, 0.2: 20.09, 0.4: inf |" in table
  assert "| 0.1 (lowest of 3, not extended) |" in table
  count = len(trained)
  runs.study_of(
    data_dir, tmp_path, "base: ", "long: train.mem_len=16", **settings
  )
  assert len(trained) == count  # What diverged is not tried again, either.
  rates = {"analysis.learning_rates": (0.4, 0.5)}
  trained.diverges = {0.4, 0.5}
  with pytest.raises(errors.UserError, match="'b' diverges at every learning"):
    runs.study_of(data_dir, tmp_path, "b: ", **rates)


def parabola(best):
  """Losses that are lowest at a learning rate, by its distance in octaves."""
  return lambda config: 3.0 + abs(math.log2(config.train.learning_rate / best))


@pytest.mark.parametrize(
  ("named", "best", "tried", "edge"),
  [
    (True, 3e-3, [1e-3, 3e-3, 9e-3], ""),
    (True, 9e-3, [1e-3, 3e-3, 9e-3, 2.7e-2], ""),
    (True, 2e-4, [1.1e-4, 3.3e-4, 1e-3, 3e-3, 9e-3], ""),
    (True, 1.0, [1e-3, 3e-3, 9e-3, 2.7e-2, 8.1e-2], "highest"),
    (False, 9e-3, [1e-3, 3e-3, 9e-3, 2.7e-2], ""),
  ],
)
def test_learning_rates_are_tried_until_the_best_is_inside(
  data_dir, tmp_path, trained, named, best, tried, edge
):
  """Those that are named, or three around that of the experiment, come first.

  The first seed alone looks for it.
  """
  trained.loss = parabola(best)
  updates = {"train.learning_rate": 3e-3}
  if named:
    updates = {"analysis.learning_rates": (1e-3, 3e-3, 9e-3)}
  updates |= {"analysis.max_learning_rates": 5, "analysis.seeds": (4, 0, 1)}
  (row,) = runs.study_of(data_dir, tmp_path, "base: ", **updates)["rows"]
  rates = [one["learning_rate"] for one in row["learning_rates"]]
  assert rates == pytest.approx(tried)
  chosen = min(rates, key=lambda rate: abs(math.log(rate / best)))
  assert row["learning_rate"] == chosen
  assert row["edge"] == edge
  others = [f"{tmp_path}/rate_{chosen}/seed_{seed}/base" for seed in (0, 1)]
  searched = [f"{tmp_path}/rate_{rate}/seed_4/base" for rate in rates]
  assert sorted(trained[:-2]) == sorted(searched)
  assert trained[-2:] == others
  words = " (highest of 5)" if edge else ""
  table = (tmp_path / "results" / "study.md").read_text()
  assert f"| {chosen:g}{words} |" in table


def test_a_rate_that_diverges_with_any_seed_is_lost(
  data_dir, tmp_path, trained, monkeypatch
):
  """The next best one is tried with all seeds, and beyond it if need be."""
  trained.loss = parabola(3e-3)
  train = trials.loop.train

  def train_or_diverge(config, folder):
    train(config, folder)
    if config.train.learning_rate == 3e-3 and config.seed == 1:
      raise errors.DivergenceError("lost")

  monkeypatch.setattr(trials.loop, "train", train_or_diverge)
  updates = {
    "analysis.learning_rates": (3e-3, 1e-3, 9.1e-3),
    "analysis.max_learning_rates": 6,
    "analysis.seeds": (0, 1, 2),
  }
  (row,) = runs.study_of(data_dir, tmp_path, "base: ", **updates)["rows"]
  assert row["learning_rate"] == 1e-3
  losses = {one["learning_rate"]: one["nll"] for one in row["learning_rates"]}
  assert sorted(losses) == [3.3e-4, 1e-3, 3e-3, 9.1e-3]
  assert losses[3e-3] == math.inf
  assert len(row["nll_by_seed"][8]) == 3
  # Neither the seed that came after the lost one, nor anything twice.
  assert len(trained) == len({*trained}) == 3 + 1 + 1 + 2


def test_times_are_measured_once_where_a_rate_diverged(
  data_dir, tmp_path, trained, monkeypatch
):
  trained.diverges = {0.4}
  timed = []
  seconds_per_token = costs.seconds_per_token

  def time(each):
    timed.append(each)
    return seconds_per_token(each)

  monkeypatch.setattr(costs, "seconds_per_token", time)
  rates = {"analysis.learning_rates": (0.1, 0.2, 0.4)}
  for _ in range(2):
    runs.study_of(data_dir, tmp_path, "base: ", **rates)
  assert len(timed) == 1


@pytest.mark.parametrize(
  ("module", "name", "value"),
  [(trials, "_commit", "abc"), (hardware, "processor", "Abacus 3000")],
)
def test_times_are_measured_again_with_other_code_or_elsewhere(
  data_dir, tmp_path, trained, monkeypatch, module, name, value
):
  runs.study_of(data_dir, tmp_path, "base: ")
  again = costs.Seconds(4.0, 5.0, 6.0)
  monkeypatch.setattr(
    costs, "seconds_per_token", lambda each: dict.fromkeys(each, again)
  )
  (row,) = runs.study_of(data_dir, tmp_path, "base: ")["rows"]
  assert row["seconds_per_token"]["training"] == 2.0
  monkeypatch.setattr(module, name, lambda: value)
  (row,) = runs.study_of(data_dir, tmp_path, "base: ")["rows"]
  assert row["seconds_per_token"] == again._asdict()


def test_a_rate_of_another_training_is_not_taken_for_ones_own(
  data_dir, tmp_path, trained
):
  """The search comes to a folder that the first rates do not name."""
  trained.loss = parabola(0.1)
  runs.study_of(
    data_dir, tmp_path, "base: ", **{"analysis.learning_rates": (0.05, 0.1)}
  )
  updates = {
    "analysis.learning_rates": (0.3, 0.9),
    "analysis.max_learning_rates": 6,
    "train.num_steps": 8,
  }
  with pytest.raises(errors.UserError, match=r"train\.num_steps=4 and 8 is"):
    runs.study_of(data_dir, tmp_path, "base: ", **updates)


def test_a_variant_that_always_diverges_does_not_end_the_others(
  data_dir, tmp_path, trained, monkeypatch
):
  train = trials.loop.train

  def train_or_diverge(config, folder):
    train(config, folder)
    if config.train.mem_len == 16:
      raise errors.DivergenceError("lost")

  monkeypatch.setattr(trials.loop, "train", train_or_diverge)
  trained.save_pictures()
  variants = ("base: ", "lost: train.mem_len=16", "last: train.mem_len=4")
  rates = {"analysis.learning_rates": (0.1, 0.2)}
  message = r"'lost' diverges at every learning rate of \[0.1, 0.2\]"
  with pytest.raises(errors.UserError, match=message):
    runs.study_of(data_dir, tmp_path, *variants, **rates)
  written = json.loads((tmp_path / "results" / "study.json").read_text())
  assert (tmp_path / "results" / "study.png").stat().st_size > 1000
  assert [row["name"] for row in written["rows"]] == ["base", "last"]
  assert all(row["seconds_per_token"] for row in written["rows"])


def test_a_first_variant_that_always_diverges_ends_the_study(
  data_dir, tmp_path, trained
):
  """All others would be compared with it."""
  trained.diverges = {0.1, 0.2}
  rates = {"analysis.learning_rates": (0.1, 0.2)}
  with pytest.raises(errors.UserError, match="'lost' diverges at every"):
    runs.study_of(data_dir, tmp_path, "lost: ", "b: ", **rates)
  assert len(trained) == 2


def test_more_rates_to_start_with_than_may_be_tried_are_refused(
  data_dir, tmp_path, trained
):
  with pytest.raises(errors.UserError, match=r"rates=2 is less than the 3 le"):
    runs.study_of(
      data_dir, tmp_path, "base: ", **{"analysis.max_learning_rates": 2}
    )


def test_the_log_says_how_long_the_rest_takes(
  data_dir, tmp_path, trained, monkeypatch, caplog
):
  """Each variant by its own trials; one without any as the others."""
  clock = [0.0]
  train = trials.loop.train

  def train_for_a_while(config, folder):
    train(config, folder)
    clock[0] += 60.0 if config.train.mem_len == 16 else 3600.0

  monkeypatch.setattr(trials.loop, "train", train_for_a_while)
  monkeypatch.setattr(trials.time, "perf_counter", lambda: clock[0])
  trained.loss = parabola(3e-3)
  caplog.set_level("INFO")
  updates = {
    "train.learning_rate": 3e-3,
    "analysis.max_learning_rates": 4,
    "analysis.seeds": (0, 1),
  }
  rows = runs.study_of(
    data_dir, tmp_path, "base: ", "long: train.mem_len=16", **updates
  )["rows"]
  assert [row["seconds"] for row in rows] == [4 * 3600, 4 * 60]
  said = [text for text in caplog.messages if text.startswith("Trials: ")]
  assert [text.removeprefix("Trials: ") for text in said] == [
    "0 done, 8 to 10 left, how long is known after the first.",
    "1 done, 7 to 9 left, 7.0 to 9.0 h to go for one worker.",
    "2 done, 6 to 8 left, 6.0 to 8.0 h to go for one worker.",
    "3 done, 5 to 6 left, 5.0 to 6.0 h to go for one worker.",
    "4 done, 4 to 5 left, 4.0 to 5.0 h to go for one worker.",
    "5 done, 3 to 4 left, 3 to 4 min to go for one worker.",
    "6 done, 2 to 3 left, 2 to 3 min to go for one worker.",
    "7 done, 1 left, 1 min to go for one worker.",
  ]


def test_what_chose_the_learning_rate_is_not_measured_again(
  data_dir, tmp_path, trained, monkeypatch
):
  """One of several processes need not see yet what the first one has kept."""
  monkeypatch.setattr(trials, "_write", lambda folder, kept: None)
  rates = {"analysis.learning_rates": (0.1, 0.2)}
  (row,) = runs.study_of(data_dir, tmp_path, "base: ", **rates)["rows"]
  assert trained == [f"{tmp_path}/rate_{rate}/base" for rate in (0.1, 0.2)]
  chosen = min(row["learning_rates"], key=lambda one: one["nll"])
  assert row["learning_rate"] == chosen["learning_rate"]
  assert row["nll"] == chosen["nll"]


def test_one_learning_rate_needs_no_validation(data_dir, tmp_path, trained):
  rates = {"analysis.learning_rates": (0.3,), "analysis.split": "test"}
  (row,) = runs.study_of(data_dir, tmp_path, "base: ", **rates)["rows"]
  assert (row["learning_rate"], row["learning_rates"]) == (0.3, [])
  assert trained.read == [("test", f"{tmp_path}/rate_0.3/base")]
