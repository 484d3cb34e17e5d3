"""Runs with compressive layers: resuming, validation, cards, attention."""

import numpy as np
import pytest

import transformer_xl
from tests import corpus
from tests import saved_runs
from tests.training import test_resume
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import settings
from transformer_xl.text import generate
from transformer_xl.training import loop

COMPRESSIVE = {
  "model.layers": ("compressive",),
  "model.compressive.function": "conv",
  "model.compressive.rate": 2,
  "model.compressive.slots": 6,
  "data.reset_at_documents": True,
  "train.accumulation_steps": 2,
  "train.eval_every_steps": 6,
}
MEMORY = "8 in layers compressive (function conv, rate 2, slots 6)"


@pytest.fixture(scope="module")
def workdir(data_dir, tmp_path_factory):
  """Of a run in one piece."""
  folder = str(tmp_path_factory.mktemp("runs") / "whole")
  assert loop.train(corpus.config(data_dir, **COMPRESSIVE), folder)
  return folder


@pytest.mark.rest
def test_a_run_in_parts_is_the_run_in_one(workdir, data_dir, tmp_path, caplog):
  caplog.set_level("INFO")
  config, parts = corpus.config(data_dir, **COMPRESSIVE), str(tmp_path)
  test_resume.train_until(6, config, parts)
  middle = test_resume.newest(parts, config)
  assert loop.train(config, parts)
  assert f"[memory {MEMORY}]" in caplog.text
  test_resume.assert_same_run(workdir, parts, config)
  end = test_resume.newest(parts, config)
  for run in (middle, end):
    (layers,) = run.memory.layers
    assert np.all(np.abs(layers.slots).max(axis=(2, 3)) > 0)
  before, after = (
    run.state.params["layers"]["0"]["compressive"]["compression"]["kernel"]
    for run in (middle, end)
  )
  assert np.abs(after - before).max() > 1e-3


@pytest.mark.rest
def test_hidden_states_score_what_validation_scored(workdir, data_dir):
  """Slots have no streaming form; both readers have the state of training."""
  updates = {"eval.split": "valid", "eval.memory": "hidden"}
  config = corpus.config(data_dir, **COMPRESSIVE | updates)
  (card,) = evaluate.run(config, workdir)
  validated = test_resume.lines(workdir)[-1]
  # Float32 sums in another order.
  assert card["nll"] == pytest.approx(validated["nll"], rel=1e-6)
  assert settings.memory_text(card) == MEMORY


@pytest.mark.rest
def test_a_run_generates_and_goes_on_with_another_length(workdir, data_dir):
  updates = {"generate.prompt": "abc de", "generate.num_tokens": 9}
  config = corpus.config(data_dir, **COMPRESSIVE | updates)
  drawn = generate.run(config, workdir)
  assert drawn["num_tokens"] == 9
  assert drawn["mixer_fields"]["compressive"]["slots"] == 6
  updates = {"model.compressive.slots": 5, "train.num_steps": 14}
  config = corpus.config(data_dir, **COMPRESSIVE | updates)
  assert loop.train(config, workdir)  # From an empty memory.
  (layers,) = test_resume.newest(workdir, config).memory.layers
  assert layers.slots.shape[2] == 5


def test_attention_to_tokens_that_wait_to_be_compressed_is_shown(tmp_path):
  fields = {
    "model.layers": ("compressive",),
    "model.compressive.rate": 4,
    "model.compressive.slots": 2,
  }
  folder = saved_runs.write(tmp_path, **fields)
  model = transformer_xl.load(folder, mem_len=4, segment_len=5)
  text = "abc def abc ghi jkl mno"  # Longer than several segments.
  found = model.attention(text, layers=(1, 2)).weights
  # After 5 tokens, the first has left memory and waits for 3 others.
  np.testing.assert_allclose(found[:, :, :10].sum(-1), 1, rtol=1e-5)
  assert found[:, :, 5:10, 0].min() > 0
  # After 10 tokens, the first slot has 4, and 2 wait.
  assert found[:, :, 10:15, :4].max() == 0
  assert found[:, :, 10:15, 4:6].min() > 0
  assert found[:, :, 10:15].sum(-1).max() < 1
