"""What is read of another trainer, and what is said of the rounds."""

import pickle

import numpy as np
import pytest

from benchmarks import time_to_loss
from transformer_xl.data import token_file
from transformer_xl.data_prep import preparation


def _output(num_updates: int) -> str:
  lines = ["step 0: train loss 4.2000, val loss 4.3000"]
  # The first and the last update's times include a validation.
  times = [9000.0, *[50.0] * (num_updates - 1), 8000.0]
  lines += [
    f"iter {step}: loss 2.1000, time {each:.2f}ms, mfu 0.10%"
    for step, each in enumerate(times)
  ]
  last = f"step {num_updates}: train loss 1.7000, val loss 1.8738"
  return "\n".join([*lines[:-1], last, lines[-1]]) + "\n"


def test_updates_are_timed_without_validation():
  found = time_to_loss.parsed(_output(2000))
  assert found == {"nll": 1.8738, "update_seconds": pytest.approx(1999 * 0.05)}


def test_a_trainer_that_was_stopped_has_no_result():
  with pytest.raises(RuntimeError, match="did not finish"):
    time_to_loss.parsed(_output(1500))


def test_both_read_the_same_characters(tmp_path):
  source = tmp_path / "input.txt"
  source.write_text("what is read by both\n" * 50, encoding="utf-8")
  folder = preparation.prepare(
    dataset="text",
    data_dir=str(tmp_path),
    name="same",
    source=str(source),
    tokenizer="character",
    valid_fraction=0.1,
    test_fraction=0.0,
  )
  time_to_loss.write_for_trainer(str(folder), str(tmp_path / "copy"))
  for split, name in (("train", "train"), ("valid", "val")):
    read = np.fromfile(tmp_path / "copy" / f"{name}.bin", np.uint16)
    tokens = token_file.open_split(str(folder), split).tokens
    assert len(read) > 50
    np.testing.assert_array_equal(read, tokens)
  meta = pickle.loads((tmp_path / "copy" / "meta.pkl").read_bytes())
  assert max(read) < meta["vocab_size"]


def test_the_loss_has_to_be_reached_in_every_round():
  def a_round(ours):
    theirs = {"nll": 1.9, "update_seconds": 100.0, "wall_seconds": 120.0}
    mine = {"nll": ours, "update_seconds": 30.0, "wall_seconds": 60.0}
    return {"trainer": theirs, "ours": mine}

  found = time_to_loss.summary([a_round(1.8), a_round(1.9), a_round(1.85)])
  assert found["reached"]
  assert found["share_of_its_time"]["update_seconds"] == pytest.approx(0.3)
  assert found["share_of_its_time"]["wall_seconds"] == pytest.approx(0.5)
  assert not time_to_loss.summary([a_round(1.8), a_round(1.91)])["reached"]
