"""Broken trainings of the quickstart leave the recorded curve's band early."""

import shutil

import pytest

from tests import broken_runs
from tests.training import test_resume
from transformer_xl.analysis.reference_curves import curve as curve_lib
from transformer_xl.analysis.reference_curves import logged_run
from transformer_xl.config import load
from transformer_xl.data_prep import preparation
from transformer_xl.experiments import quickstart

pytestmark = [pytest.mark.slow, pytest.mark.faults]

CURVE = "experiments/reference_curves/quickstart.json"
STEPS, MORE = 40, 80  # Targets one token late show later.


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """The text that the curve is of; another Python has another one."""
  folder = str(tmp_path_factory.mktemp("data"))
  preparation.prepare(dataset="python_stdlib", data_dir=folder)
  return folder


def judged(folder, data_dir, fault, monkeypatch, steps=STEPS):
  """The comparison over a few steps of a quickstart with a fault."""
  config = quickstart.get_config()
  config.seed = 11
  config.data.dir = data_dir
  config.train.log_every_steps = 10
  config.train.finish_with = ()
  with monkeypatch.context() as patch:
    fault(patch)
    test_resume.train_until(steps, load.from_config_dict(config), folder)
  run = logged_run.read(str(folder))
  shutil.rmtree(folder)
  curve = curve_lib.load(str(test_resume.ROOT / CURVE))
  if run.data_sha256 != curve.data_sha256:
    pytest.skip("this Python's library is another text than the curve's")
  return curve_lib.compare(run, curve)


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
