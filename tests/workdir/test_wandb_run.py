"""The run of wandb is continued."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl.training import loop
from transformer_xl.workdir import wandb_run

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = {"config": {"seed": 3}, "git_commit": "abc"}
# Two commands on one workdir; the second repeats steps 9 to 12, because their
# checkpoint is gone.
TRAINING = """
import shutil
from tests import corpus
from transformer_xl.training import loop
for num_steps in (12, 16):
  values = {"train.tracker": "wandb", "train.num_steps": num_steps}
  loop.train(corpus.config("data", **values), "run")
  shutil.rmtree("run/checkpoints/12", ignore_errors=True)
"""


class StandIn(types.ModuleType):
  """What the tracker uses of wandb; each run's settings and calls."""

  def __init__(self, *, is_logged_in=True):
    super().__init__("wandb")
    self.runs, self.calls = [], []
    self._is_logged_in = is_logged_in

  def login(self, *, prompt):
    assert not prompt  # Nobody may be there to answer.
    return self._is_logged_in

  def Settings(self, **values):  # noqa: N802
    return values

  def init(self, **values):
    self.runs.append(values)
    return types.SimpleNamespace(
      define_metric=lambda *names, **values: None,
      log=self.calls.append,
      finish=lambda: self.calls.append("finish"),
    )


@pytest.fixture
def use(monkeypatch):
  """Puts a stand-in in the place of wandb."""
  for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "WANDB_NAME"):
    monkeypatch.delenv(name, raising=False)

  def put(**behaviour):
    module = StandIn(**behaviour)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module

  return put


def track(folder, *records):
  (folder / "config.json").write_text(json.dumps(CONFIG))
  run = wandb_run.WandbRun(str(folder), name=folder.name)
  for record in records:
    run.record(record)
  run.close()


def test_numbers_are_reported_with_their_step_and_nothing_else(use, tmp_path):
  wandb = use()
  track(
    tmp_path,
    {"step": 2, "loss": 2.5, "mfu": None},
    {"step": 2, "split": "valid", "nll": 3.0},
  )
  assert wandb.calls == [
    {"step": 2, "train/loss": 2.5},
    {"step": 2, "valid/nll": 3.0},
    "finish",
  ]


def test_the_configuration_and_its_origin_are_reported_once(use, tmp_path):
  wandb = use()
  track(tmp_path, {"step": 2, "loss": 2.5}, {"step": 4, "loss": 2.0})
  (run,) = wandb.runs
  assert run["config"] == CONFIG
  assert run["name"] == tmp_path.name


def test_a_resumed_run_is_continued(use, tmp_path):
  wandb = use()
  for _ in range(2):
    track(tmp_path, {"step": 2, "loss": 2.5})
  first, second = wandb.runs
  assert first["id"] == second["id"]
  assert first["resume"] == second["resume"] == "allow"
  other = tmp_path / "other"
  other.mkdir()
  track(other)
  assert wandb.runs[2]["id"] != first["id"]


def test_without_a_login_the_run_is_kept_offline(use, tmp_path, caplog):
  wandb = use(is_logged_in=False)
  track(tmp_path)
  assert wandb.runs[0]["mode"] == "offline"
  assert "wandb login" in caplog.text
  assert use().runs == []
  track(tmp_path)
  assert sys.modules["wandb"].runs[0]["mode"] == "online"


def test_without_wandb_training_does_not_start(tmp_path, monkeypatch):
  """A folder `wandb`, which wandb itself writes, is not taken for it."""
  (tmp_path / "wandb").mkdir()
  monkeypatch.setattr(sys, "path", [str(tmp_path)])
  monkeypatch.delitem(sys.modules, "wandb", raising=False)
  config = corpus.config(
    corpus.write(tmp_path / "data"), **{"train.tracker": "wandb"}
  )
  with pytest.raises(errors.UserError, match="wandb: pip install --con"):
    loop.train(config, str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.rest
def test_the_real_wandb_keeps_a_resumed_run_offline(tmp_path):
  """Its files are there for `wandb sync`, one for each start, with one id."""
  corpus.write(tmp_path / "data")
  finished = subprocess.run(
    [sys.executable, "-c", TRAINING],
    capture_output=True,
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"},
    text=True,
  )
  assert finished.returncode == 0, finished.stderr
  assert "wandb failed" not in finished.stderr
  name = (tmp_path / "run" / "wandb_id.txt").read_text().strip()
  folder = tmp_path / "run" / "wandb"
  files = sorted(folder.glob(f"offline-*/run-{name}.wandb"))
  assert len(files) == 2
  for file in files:
    content = file.read_bytes()
    assert b"train/loss" in content
    assert b"git_commit" in content
