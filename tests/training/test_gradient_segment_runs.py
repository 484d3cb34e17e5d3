"""Runs whose updates take several segments: text, log, resuming."""

import numpy as np
import pytest

from tests import comparison
from tests import corpus
from tests.training import test_resume
from transformer_xl.training import loop


@pytest.mark.rest
@pytest.mark.parametrize(
  "updates",
  [{}, {"train.segment_len_std": 2.0, "train.mem_len": 0}],
  ids=["fixed", "drawn"],
)
def test_updates_of_several_segments_read_the_text_in_order(
  updates, data_dir, tmp_path
):
  """With a rate of 0, two segments at a time lose what single ones lose."""
  still = {"train.learning_rate": 0.0, "train.log_every_steps": 4} | updates
  single = corpus.config(
    data_dir, **still, **{"train.num_steps": 48, "train.segments_per_call": 4}
  )
  pairs = corpus.config(
    data_dir, **still, **{"train.num_steps": 24, "train.gradient_segments": 2}
  )
  logs = []
  for name, config in {"single": single, "pairs": pairs}.items():
    loop.train(config, str(tmp_path / name))
    logs.append(test_resume.lines(tmp_path / name))
  assert [line["step"] for line in logs[1]] == [4, 8, 12, 16, 20, 24]
  for one, other in zip(logs[0][1::2], logs[1], strict=True):
    assert one["tokens"] == other["tokens"]
  # A line is the mean over what its updates read.
  tokens = np.diff([0, *(line["tokens"] for line in logs[0])])
  total = np.sum(tokens * [line["loss"] for line in logs[0]])
  tokens = np.diff([0, *(line["tokens"] for line in logs[1])])
  assert np.sum(tokens * [line["loss"] for line in logs[1]]) == pytest.approx(
    total, rel=1e-5
  )
  memories = [
    test_resume.newest(tmp_path / name, config).memory
    for name, config in (("single", single), ("pairs", pairs))
  ]
  comparison.assert_close(*memories, roundings=30)


@pytest.mark.rest
def test_a_run_in_parts_is_the_run_in_one(data_dir, tmp_path):
  updates = test_resume.EVERYTHING | {
    "train.gradient_segments": 3,
    "train.num_steps": 24,
    "train.log_every_steps": 12,
    "train.eval_every_steps": 12,
    "checkpoint.every_steps": 12,
  }
  config = corpus.config(data_dir, **updates)
  test_resume.assert_same_in_parts(config, tmp_path, 16)


@pytest.mark.rest
def test_a_run_may_go_on_with_other_updates(data_dir, tmp_path, caplog):
  config = corpus.config(data_dir, **{"train.num_steps": 4})
  loop.train(config, str(tmp_path))
  assert "lanes continue elsewhere" not in caplog.text
  updates = {"train.num_steps": 8, "train.gradient_segments": 2}
  loop.train(corpus.config(data_dir, **updates), str(tmp_path))
  assert "lanes continue elsewhere" in caplog.text
  tokens = [line["tokens"] for line in test_resume.lines(tmp_path)]
  assert tokens == [4 * 8 * count for count in (2, 4, 8, 12)]
