"""Runs with a compressed memory: resuming, validation, cards."""

import numpy as np
import pytest

from tests import corpus
from tests.training import test_resume
from transformer_xl.evaluation import cards
from transformer_xl.evaluation.dynamic import evaluate
from transformer_xl.text import generate
from transformer_xl.training import loop

COMPRESSED = {
  "model.compression": "conv",
  "model.compression_rate": 2,
  "data.reset_at_documents": True,
  "train.compressed_len": 6,
  "train.accumulation_steps": 2,
  "train.eval_every_steps": 6,
  "eval.compressed_len": 6,
  "generate.compressed_len": 6,
}


@pytest.fixture(scope="module")
def workdir(data_dir, tmp_path_factory):
  """Of a run in one piece."""
  folder = str(tmp_path_factory.mktemp("runs") / "whole")
  assert loop.train(corpus.config(data_dir, **COMPRESSED), folder)
  return folder


def test_a_run_in_parts_is_the_run_in_one(
  workdir, data_dir, tmp_path, monkeypatch
):
  config, parts = corpus.config(data_dir, **COMPRESSED), str(tmp_path)
  with monkeypatch.context() as patch:
    test_resume.stop_at(6, patch)
    assert not loop.train(config, parts)
  middle = test_resume.newest(parts, config)
  assert loop.train(config, parts)
  test_resume.assert_same_run(workdir, parts, config)
  end = test_resume.newest(parts, config)
  for run in (middle, end):
    assert np.all(np.abs(run.memory.compressed).max(axis=(2, 3)) > 0)
  before, after = (run.state.params for run in (middle, end))
  moved = after["compression_kernel"] - before["compression_kernel"]
  assert np.abs(moved).max() > 1e-3


def test_hidden_states_score_what_validation_scored(workdir, data_dir):
  """Validation has read keys and values."""
  updates = {"eval.split": "valid", "eval.memory": "hidden"}
  config = corpus.config(data_dir, **COMPRESSED | updates)
  (card,) = evaluate.run(config, workdir)
  validated = test_resume.lines(workdir)[-1]
  # Float32 sums in another order.
  assert card["nll"] == pytest.approx(validated["nll"], rel=1e-6)
  for result in (card, validated):
    assert cards.memory_text(result) == "8 and 6 slots of 2 (conv)"


@pytest.mark.rest
def test_a_run_generates_and_goes_on_with_another_length(workdir, data_dir):
  updates = {"generate.prompt": "abc de", "generate.num_tokens": 9}
  config = corpus.config(data_dir, **COMPRESSED | updates)
  drawn = generate.run(config, workdir)
  assert (drawn["num_tokens"], drawn["compressed_len"]) == (9, 6)
  updates = {"train.compressed_len": 5, "train.num_steps": 14}
  config = corpus.config(data_dir, **COMPRESSED | updates)
  assert loop.train(config, workdir)  # From an empty memory.
  assert test_resume.newest(workdir, config).memory.compressed_len == 5
