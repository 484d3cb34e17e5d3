"""What `config.profile` writes."""

import pytest

from tests import corpus
from transformer_xl.training import loop

SCOPES = (
  *("content_scores", "position_scores", "attention_softmax", "feed_forward"),
  *("attention_norm", "tail_1", "head", "optimizer", "embedding"),
)


@pytest.mark.slow
def test_a_trace_names_every_part_of_the_model(data_dir, tmp_path, caplog):
  caplog.set_level("INFO")
  updates = {
    "profile.start_step": 3,  # Rounded up to a call of two updates.
    "profile.num_steps": 4,
    "train.segments_per_call": 2,
    "model.cutoffs": (7,),
  }
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path))
  assert "Traced updates 5 to 8" in caplog.text
  (trace,) = (tmp_path / "profile").rglob("*.xplane.pb")
  content = trace.read_bytes()
  assert not [scope for scope in SCOPES if scope.encode() not in content]


@pytest.mark.rest
def test_a_trace_ends_with_the_run(data_dir, tmp_path):
  updates = {"profile.start_step": 8, "profile.num_steps": 100}
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path))
  assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_a_run_that_ends_before_its_window_writes_no_trace(data_dir, tmp_path):
  updates = {"profile.start_step": 12, "profile.num_steps": 4}
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path))
  assert not (tmp_path / "profile").exists()
