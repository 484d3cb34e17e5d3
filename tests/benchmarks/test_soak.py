"""A run in two lives: the first is stopped, and the second finishes."""

import pytest

from benchmarks import soak


@pytest.mark.rest
@pytest.mark.slow
def test_a_run_that_is_stopped_is_resumed_and_finished(tmp_path, monkeypatch):
  monkeypatch.setattr(soak, "_INTERVAL", 0.02)
  workdir = str(tmp_path / "run")
  lives = soak.measure(workdir, steps=8000, resumes=1)
  assert len(lives) == 2
  assert 4000 <= lives[0][-1]["step"] < 8000
  assert soak._last_step(workdir) == 8000
  log = (tmp_path / "run.log").read_text("utf-8")
  assert "; the same command continues" in log
