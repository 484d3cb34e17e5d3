"""Broken trainings of the quickstart leave the recorded curve's band early."""

import shutil

import pytest

from experiments import quickstart
from tests import broken_runs
from tests import test_resume as runs
from transformer_xl import config as config_lib
from transformer_xl import logged_run
from transformer_xl import reference_curve
from transformer_xl import train as train_lib
from transformer_xl import verdict

pytestmark = [pytest.mark.slow, pytest.mark.faults]

CURVE = "experiments/reference_curves/quickstart.json"
STEPS, MORE = 40, 80  # Targets one token late show later.


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """The text that the curve is of; another Python has another one."""
  return str(tmp_path_factory.mktemp("data"))


def judged(folder, data_dir, fault, monkeypatch, steps=STEPS):
  """The verdict over a few steps of a quickstart with a fault."""
  config = quickstart.get_config()
  config.seed = 11
  config.data.dir = data_dir
  config.train.log_every_steps = 10
  config.train.finish_with = ()
  with monkeypatch.context() as patch:
    fault(patch)
    runs.stop_at(steps, patch)
    train_lib.train(config_lib.from_config_dict(config), str(folder))
  run = logged_run.read(str(folder))
  shutil.rmtree(folder)
  curve = reference_curve.load(str(runs.ROOT / CURVE))
  if run.data_sha256 != curve.data_sha256:
    pytest.skip("this Python's library is another text than the curve's")
  return verdict.of(run, curve)


def test_a_healthy_run_is_on_track(data_dir, tmp_path, monkeypatch):
  status, text = judged(
    tmp_path / "run", data_dir, broken_runs.nothing, monkeypatch
  )
  print(text)
  assert status == 0, text


@pytest.mark.parametrize(
  ("fault", "steps"),
  [
    (broken_runs.tenfold_rate, STEPS),
    (broken_runs.much_dropout, STEPS),
    (broken_runs.shifted_labels, MORE),
    (broken_runs.seen_labels, STEPS),
  ],
)
def test_a_broken_run_is_off_track(
  data_dir, tmp_path, monkeypatch, fault, steps
):
  status, text = judged(tmp_path / "run", data_dir, fault, monkeypatch, steps)
  print(f"{fault.__name__}: {text}")
  assert status == 1, text
