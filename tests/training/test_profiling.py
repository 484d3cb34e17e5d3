"""What `train.profile_steps` writes."""

import re

import jax
import pytest

from tests import corpus
from transformer_xl.training import loop
from transformer_xl.training import profiling

SCOPES = {
  *("embedding", "attention", "content_scores", "position_scores"),
  *("attention_softmax", "attention_values", "mixer_norm"),
  *("feed_forward", "feed_forward_norm", "head", "tail_1", "optimizer"),
}


def read(workdir):
  """The profile of the one trace, and the parts of its operations' names."""
  (trace,) = (workdir / "profile").rglob("*.xplane.pb")
  content = trace.read_bytes()
  names = set(re.findall(rb"jit\(train_chunk\)/[ -~]+", content))
  parts = {part for name in names for part in re.findall(rb"[\w.]+", name)}
  profile = jax.profiler.ProfileData.from_serialized_xspace(content)
  return profile, {part.decode() for part in parts}


def trace_after(step, monkeypatch):
  monkeypatch.setattr(profiling, "START_STEP", step)


@pytest.mark.rest
@pytest.mark.slow
def test_a_trace_names_every_part_of_the_model(
  data_dir, tmp_path, caplog, monkeypatch
):
  caplog.set_level("INFO")
  trace_after(3, monkeypatch)  # Rounded up to a call of two updates.
  updates = {
    "train.profile_steps": 4,
    "train.segments_per_call": 2,
    "model.cutoffs": (7,),
  }
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path))
  assert "Traced updates 5 to 8" in caplog.text
  profile, parts = read(tmp_path)
  assert parts >= SCOPES
  events = [
    event
    for plane in profile.planes
    for line in plane.lines
    for event in line.events
  ]
  assert [event for event in events if "train_chunk" in event.name]
  # Python's own calls would be most of the trace.
  assert not [event.name for event in events if event.name.startswith("$")]


@pytest.mark.rest
def test_a_trace_ends_with_the_run(data_dir, tmp_path, monkeypatch):
  trace_after(8, monkeypatch)
  updates = {"train.profile_steps": 100}
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path))
  assert list((tmp_path / "profile").rglob("*.xplane.pb"))


@pytest.mark.rest
def test_a_run_that_ends_before_its_window_writes_no_trace_and_says_so(
  data_dir, tmp_path, monkeypatch, caplog
):
  trace_after(12, monkeypatch)
  updates = {"train.profile_steps": 4}
  assert loop.train(corpus.config(data_dir, **updates), str(tmp_path))
  assert not (tmp_path / "profile").exists()
  assert "train.profile_steps=4 traces nothing" in caplog.text
