"""Several processes train as one: same losses, one stop, one checkpoint."""

import json
import pathlib
import re
import signal
import time

import jax
import numpy as np
import pytest

from tests import comparison
from tests import corpus
from tests import own_process
from tests import processes
from tests.training import test_resume
from transformer_xl import signals

pytestmark = [pytest.mark.rest, pytest.mark.slow]

# Sums in another order, in float32, of losses and of norms of gradients.
TOLERANCE = 20 * comparison.FLOAT32
STEPS = 2000  # So many that the signal goes around before they are done.
SIGNALLED = 40
UPDATES = {
  "model.dropout_rate": 0.1,
  "train.num_steps": STEPS,
  "train.optimizer": "sgd",  # Adam magnifies rounding near gradients of 0.
  "train.log_every_steps": 20,
  "train.eval_every_steps": STEPS // 2,
  "checkpoint.every_steps": 200,
}


def start_both(workdir, flags):
  port = own_process.free_port()
  shared = ["--num_processes=2", f"--coordinator=localhost:{port}"]
  return [
    test_resume.start(workdir, [*flags, *shared, f"--process_id={index}"])
    for index in range(2)
  ]


# Four command lines, each for itself, and 2000 updates. One host is taken away.
def test_two_processes_stop_together_and_one_goes_on_where_they_were(tmp_path):
  data_dir = corpus.write(tmp_path / "data")
  flags = corpus.config_flags(data_dir, **UPDATES)
  alone, together = tmp_path / "alone", tmp_path / "together"
  test_resume.finish(test_resume.start(alone, flags), alone)
  both = start_both(together, flags)
  test_resume.wait_for_step(together, SIGNALLED, both[0])
  both[1].send_signal(signal.SIGTERM)
  for process in both:
    status = signals.stopped_status(signal.SIGTERM)
    test_resume.finish(process, together, status)
  log = pathlib.Path(f"{together}.log").read_text()
  assert "Traceback" not in log
  assert "process 0 of 2" in log
  assert "process 1 of 2" in log
  stopped = max(
    map(int, (p.name for p in (together / "checkpoints").iterdir()))
  )
  assert SIGNALLED <= stopped < STEPS
  test_resume.finish(test_resume.start(together, flags), together)
  assert (
    f"Resuming after step {stopped}."
    in pathlib.Path(f"{together}.log").read_text()
  )
  compare(test_resume.lines(alone), test_resume.lines(together))


FINISHES = {
  "train.num_steps": 8,
  "train.batch_size": 4,
  "eval.batch_size": 4,
  "generate.prompt": "abc",
  "generate.num_tokens": 400_000,  # So that it is killed meanwhile.
}


# A process fails where it was: as it reads a checkpoint, or as it computes.
@pytest.mark.parametrize(
  ("said", "times"),  # Both have said it, for the second mesh after training.
  [("What follows training", 2), ("Mesh of 2 devices", 4)],
)
def test_a_process_that_is_killed_after_training_is_named_in_one_line(
  tmp_path, said, times
):
  data_dir = corpus.write(tmp_path / "data")
  flags = corpus.config_flags(data_dir, **FINISHES)
  later = ["--config.train.finish_with=('eval','generate')"]
  workdir = tmp_path / "run"
  log = pathlib.Path(f"{workdir}.log")
  both = start_both(workdir, [*flags, *later])
  limit = time.monotonic() + 300
  while log.read_text().count(said) < times:
    assert time.monotonic() < limit, log.read_text()
    time.sleep(0.02)
  both[1].kill()
  start = time.monotonic()
  assert both[0].wait(60) == 1, log.read_text()
  assert time.monotonic() - start < 30
  assert both[1].wait() == -signal.SIGKILL
  *_, last = log.read_text().splitlines()
  assert last.startswith("error: process 1 is gone; the same command in all")
  for blamed in ("cannot be read", "Traceback", "*** Check failure"):
    assert blamed not in log.read_text()
  shorter = "--config.generate.num_tokens=4"
  for process in start_both(workdir, [*flags, *later, shorter]):
    test_resume.finish(process, workdir)


def compare(alone, together):
  """Sums are added in another order, in float32, over up to 2000 updates."""
  # That random text teaches nothing may be said again after a stop.
  alone, together = (
    [one for one in lines if "unigram_since" not in one]
    for lines in (alone, together)
  )
  assert len(alone) == len(together) == STEPS // 20 + 2
  for one, two in zip(alone, together, strict=True):
    assert one.keys() == two.keys(), json.dumps([one, two])
    for exact in ("split", "settings"):
      assert one.pop(exact, None) == two.pop(exact, None)
    assert two == pytest.approx(one, rel=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """What `tests/processes.py` leaves of its runs."""
  result = tmp_path_factory.mktemp("processes")
  own_process.finish("processes", result, "runs")
  return result


# What depends on the machine, the folder or the number of devices.
ELSEWHERE = {
  *("seconds", "made_by", "workdir", "planned_bytes", "num_bytes"),
  *("mesh", "relative_seconds"),
}


def numbers(value, path=""):
  """All values of a result by their path, without timing and memory."""
  if isinstance(value, dict | list):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in items:
      is_timing = name in ELSEWHERE or re.search(
        "per_(second|token)|times_", str(name)
      )
      if not is_timing:
        yield from numbers(item, f"{path}/{name}")
  else:
    yield path, value


@pytest.mark.parametrize("axis", ["data", "tensor"])
def test_every_mode_gives_two_processes_the_results_of_one(tmp_path, axis):
  own_process.finish("processes", tmp_path, axis)
  one, two = (tmp_path / "1", tmp_path / "2")
  files = [
    {path.relative_to(run) for path in run.rglob("results/*")}
    for run in (one, two)
  ]
  assert files[0] == files[1]
  results = [path for path in files[0] if path.match("results/*.json")]
  assert len(results) > len(processes.MODES)
  for path in results:
    first, second = (
      dict(numbers(json.loads((run / path).read_text()))) for run in (one, two)
    )
    assert first.keys() == second.keys(), path
    for name, value in first.items():
      found = second[name]
      assert found == value or found == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("name", ["to_many", "to_one", "whole"])
def test_losses_are_those_of_one_process(folder, name):
  """Where others or one process go on, and without a stop."""
  alone, other = (
    test_resume.lines(folder / "alone"),
    test_resume.lines(folder / name),
  )
  assert len(alone) == len(other) == processes.STEPS // 2
  losses = [record["loss"] for record in alone]
  assert max(losses) - min(losses) > 0.1  # Parameters move meanwhile.
  for one, two in zip(alone, other, strict=True):
    assert two == pytest.approx(one, rel=TOLERANCE)


def test_several_processes_start_from_the_parameters_of_another_run(folder):
  alone, both = (
    test_resume.lines(folder / name) for name in ("tuned_alone", "tuned")
  )
  assert [line["step"] for line in both] == [2, 4]
  first, *_ = test_resume.lines(folder / "alone")
  assert both[0]["loss"] < first["loss"]
  for one, two in zip(alone, both, strict=True):
    assert two == pytest.approx(one, rel=TOLERANCE)
  one, other = (
    json.loads((folder / name / "config.json").read_text())["initialised_from"]
    for name in ("tuned_alone", "tuned")
  )
  assert one == other


def test_a_workdir_that_is_in_use_or_not_shared_is_refused_in_all_processes(
  folder,
):
  logs = [*folder.glob("by_two.*.log")]
  assert len(logs) == 2
  refused = ["another process trains in", "process 0 could not lock"]
  for path, reason in zip(sorted(logs), refused, strict=True):
    log = path.read_text()
    assert "Refused: processes [1] do not see what process 0" in log
    assert f"Refused: {reason}" in log
  for process in range(2):
    assert list((folder / f"own.{process}").iterdir()) == []


def test_evaluation_is_that_of_one_process(folder):
  alone, many = (
    json.loads((folder / name / "results" / "eval_test.json").read_text())
    for name in ("alone", "to_many")
  )
  one, other = alone["cards"][0], many["cards"][0]
  assert one["num_tokens"] == other["num_tokens"]
  assert other["nll"] == pytest.approx(one["nll"], rel=TOLERANCE)


def test_on_the_same_mesh_all_processes_go_on_bit_for_bit(folder):
  config = corpus.config(str(folder / "data"), **processes.UPDATES)
  assert test_resume.lines(folder / "whole") == test_resume.lines(
    folder / "parts"
  )
  one, other = (
    test_resume.newest(folder / name, config) for name in ("whole", "parts")
  )
  assert int(one.state.step) == processes.STEPS
  jax.tree.map(np.testing.assert_array_equal, one[:2], other[:2])


def test_all_processes_choose_the_newest_checkpoint_that_is_whole(folder):
  logs = [*folder.glob("by_four.*.log")]
  assert len(logs) == 4
  for path in logs:
    log = path.read_text()
    # Two continue: what two processes had begun, and what lost its last part.
    assert log.count(f"Resuming after step {processes.SAVED}.") == 2
    assert f"Checkpoint {processes.STEPS} cannot be read" in log
  (aside,) = (folder / "parts" / "damaged").iterdir()
  assert aside.name.startswith(f"{processes.STEPS}.")
