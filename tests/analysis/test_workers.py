"""Several workers of one study: the work of one, and its result."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests import corpus

ROOT = pathlib.Path(__file__).parents[2]
TIMES = {"seconds", "seconds_per_token", "made_by"}


class Workers:
  """Starts workers, none of which outlives the block."""

  def __enter__(self):
    self._process = subprocess.Popen(
      [sys.executable, "-m", "tests.analysis.worker"],
      cwd=ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,  # So that its workers can be ended with it.
    )
    return self

  def __exit__(self, *_):
    os.killpg(self._process.pid, signal.SIGKILL)
    self._process.communicate()

  def start(self, folder, name, *, count=2, seconds=0.2, left=60.0):
    """The number of a new worker's process."""
    return self._ask([str(folder), name, count, seconds, left])

  def status(self, process):
    """The status with which a worker has ended."""
    return self._ask(process)

  def _ask(self, question):
    print(json.dumps(question), file=self._process.stdin, flush=True)
    return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def workers():
  with Workers() as workers:
    yield workers


def log(folder, name):
  return (folder / f"{name}.log").read_text()


def rows(path):
  """The rows of a result without times and folders."""
  found = json.loads(path.read_text())["rows"]
  for row in found:
    for name in TIMES & {*row}:
      del row[name]
    del row["config"]["data"]["dir"]
  return found


def begun(folder, name):
  path = folder / f"{name}.trials"
  return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def alone(workers, tmp_path_factory):
  """What one worker alone finds, and the trials that it trains."""
  folder = tmp_path_factory.mktemp("alone")
  corpus.write(folder / "data")
  process = workers.start(folder, "one", count=1, seconds=0)
  assert workers.status(process) == 0, log(folder, "one")
  trained = [path.replace(str(folder), "") for path in begun(folder, "one")]
  assert len({*trained}) == len(trained) == 3 + 2 + 5 + 2
  return rows(folder / "one.json"), sorted(trained)


def test_two_workers_find_what_one_finds_and_train_nothing_twice(
  alone, workers, tmp_path
):
  corpus.write(tmp_path / "data")
  processes = {name: workers.start(tmp_path, name) for name in ("a", "b")}
  for name, process in processes.items():
    assert workers.status(process) == 0, log(tmp_path, name)
  expected, trained = alone
  for name in ("a", "b"):
    assert rows(tmp_path / f"{name}.json") == expected
  both = [path for name in ("a", "b") for path in begun(tmp_path, name)]
  assert sorted(path.replace(str(tmp_path), "") for path in both) == trained
  assert begun(tmp_path, "a")
  assert begun(tmp_path, "b")
  # The one that writes measures the times, and the other takes them.
  written = tmp_path / "study" / "results" / "study.json"
  assert rows(written) == expected
  times = {
    str([row["seconds_per_token"] for row in json.loads(path)["rows"]])
    for path in (
      written.read_text(),
      *((tmp_path / f"{name}.json").read_text() for name in ("a", "b")),
    )
  }
  assert len(times) == 1
  assert not [*(tmp_path / "study").rglob("*.lock")]


def test_the_trial_of_a_killed_worker_is_taken_over(alone, workers, tmp_path):
  """Also that of a host which is gone, after a while."""
  corpus.write(tmp_path / "data")
  killed = workers.start(tmp_path, "killed", seconds=60)
  other = workers.start(tmp_path, "b", seconds=0, left=4)
  gives_up = time.monotonic() + 300
  while not begun(tmp_path, "killed"):
    assert time.monotonic() < gives_up, log(tmp_path, "killed")
    time.sleep(0.02)
  (trial,) = begun(tmp_path, "killed")
  lock = pathlib.Path(trial, ".trial.lock")
  owner = json.loads(lock.read_text())
  os.kill(killed, signal.SIGKILL)
  assert workers.status(killed) == -signal.SIGKILL
  lock.write_text(json.dumps(owner | {"host": "gone"}))
  assert workers.status(other) == 0, log(tmp_path, "b")
  assert rows(tmp_path / "b.json") == alone[0]
  assert trial in begun(tmp_path, "b")
