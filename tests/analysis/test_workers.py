"""Several workers of one study: the work of one, and its result."""

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests import corpus

ROOT = pathlib.Path(__file__).parents[2]
TIMES = {"seconds", "seconds_per_token", "made_by"}


@contextlib.contextmanager
def working(*commands):
  """The processes of some commands, none of which outlives the block."""
  with contextlib.ExitStack() as stack:
    yield [
      stack.enter_context(killed_at_the_end(command)) for command in commands
    ]


@contextlib.contextmanager
def killed_at_the_end(command):
  with subprocess.Popen(
    [sys.executable, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True
  ) as process:
    try:
      yield process
    finally:
      process.kill()


def worker(folder, name, *, count=2, seconds=0.2, left=60.0):
  arguments = [str(folder), name, str(count), str(seconds), str(left)]
  return ["-m", "tests.analysis.worker", *arguments]


def said(process):
  """What a worker has logged until its end, which has to be a good one."""
  _, text = process.communicate(timeout=300)
  assert process.returncode == 0, text
  return text


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
def alone(tmp_path_factory):
  """What one worker alone finds, and the trials that it trains."""
  folder = tmp_path_factory.mktemp("alone")
  corpus.write(folder / "data")
  with working(worker(folder, "one", count=1, seconds=0)) as (process,):
    said(process)
  trained = [path.replace(str(folder), "") for path in begun(folder, "one")]
  assert len({*trained}) == len(trained) == 3 + 2 + 5 + 2
  return rows(folder / "one.json"), sorted(trained)


def test_two_workers_find_what_one_finds_and_train_nothing_twice(
  alone, tmp_path
):
  corpus.write(tmp_path / "data")
  commands = (worker(tmp_path, "a"), worker(tmp_path, "b"))
  with working(*commands) as processes:
    for process in processes:
      said(process)
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


def test_the_trial_of_a_killed_worker_is_taken_over(alone, tmp_path):
  """Also that of a host which is gone, after a while."""
  corpus.write(tmp_path / "data")
  commands = (
    worker(tmp_path, "killed", seconds=60),
    worker(tmp_path, "b", seconds=0, left=4),
  )
  with working(*commands) as (killed, other):
    while not begun(tmp_path, "killed"):
      assert killed.poll() is None
      time.sleep(0.02)
    (trial,) = begun(tmp_path, "killed")
    lock = pathlib.Path(trial, ".trial.lock")
    owner = json.loads(lock.read_text())
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    lock.write_text(json.dumps(owner | {"host": "gone"}))
    said(other)
  assert rows(tmp_path / "b.json") == alone[0]
  assert trial in begun(tmp_path, "b")
