"""One of two processes is hit: both end soon, and continue when restarted."""

import re
import shutil
import signal
import time

import pytest

from tests import corpus
from tests import own_process
from tests.faults import victim
from tests.training import test_resume
from transformer_xl import signals

pytestmark = [pytest.mark.slow, pytest.mark.faults]

FLAGS = ["--config.train.finish_with=('eval',)"]
# Where the process is that is hit, by a stage and how often it was entered.
WHEN = {
  "compiling": ("compiling", 1),
  "training": ("reading", 4),
  "saving": ("saving", 2),
  "validating": ("evaluating", 1),
  "after training": ("following", 1),
}
# Which process is hit, and the statuses of process 0 and 1.
KILLS = {
  "process 0 is killed": (0, (-victim.SIGKILL, 1)),
  "process 1 is killed": (1, (1, -victim.SIGKILL)),
}
FAILURES = {"a mistake": 2, "a full disk": 1, "a bug": 1}
# Within which a process ends after the other one.
LIMIT = 30.0
# Seconds to wait for others to join, instead of five minutes.
PATIENCE = 20.0


def start_both(bench, workdir, *more, each=({}, {})):
  address = f"localhost:{own_process.free_port()}"
  flags = ["--num_processes=2", f"--coordinator={address}", *more]
  return [
    bench.start(
      workdir,
      *(*flags, f"--process_id={index}", *options.get("flags", ())),
      log=f"{workdir}.{index}.log",
      fails=options.get("fails"),
      patience=options.get("patience"),
    )
    for index, options in enumerate(each)
  ]


def ends(both, *, limit):
  """Status and last line of each process at its end."""
  start = time.monotonic()
  found = {}
  while len(found) < 2:
    seconds = time.monotonic() - start
    assert seconds < limit, "".join(process.says() for process in both)
    for index, process in enumerate(both):
      if index not in found and process.process.exitcode is not None:
        found[index] = (process.end(), last_line(process))
    time.sleep(0.05)
  return [found[0], found[1]]


def last_line(process):
  """The last line that a process says, without what differs from try to try."""
  if process.process.exitcode == -victim.SIGKILL:
    return ""
  said = process.says().splitlines()
  # JAX may add some of its own while the process ends.
  line = ([line for line in said if line.startswith("error: ")] or said)[-1]
  line = re.sub(r"^[\d:]+ \[\d\] ", "", line)
  line = re.sub(r"localhost:\d+", "HOST:PORT", line)
  line = re.sub(r"(left on device at) [^ ;`]+", r"\1 FOLDER", line)
  line = re.sub(r"Saved at step \d+", "Saved at step N", line)
  assert len(line) < 300, process.says()
  return f"`{line}`"


@pytest.fixture(scope="module")
def whole(bench, tmp_path_factory):
  """What two processes write that nothing happens to."""
  workdir = tmp_path_factory.mktemp("two") / "run"
  for process in start_both(bench, workdir, *FLAGS):
    assert process.end() == 0, process.says()
  return workdir


def assert_continue(bench, workdir, whole):
  """The same command in both goes on to the end of the uninterrupted run."""
  for process in start_both(bench, workdir, *FLAGS):
    assert process.end() == 0, process.says()
  assert test_resume.lines(workdir) == test_resume.lines(whole)
  config = corpus.config(bench.data_dir, **bench.updates)
  test_resume.assert_same_run(whole, workdir, config)
  shutil.rmtree(workdir)


@pytest.mark.parametrize("what", [*KILLS, "process 1 gets SIGTERM"])
@pytest.mark.parametrize("when", WHEN)
def test_one_of_two_is_hit(bench, whole, tmp_path, trying, when, what):
  workdir = tmp_path / "run"
  both = start_both(bench, workdir, *FLAGS)
  stage, occurrence = WHEN[when]
  stopped = signals.TERMINATED
  hit, statuses = KILLS.get(what, (1, (stopped, stopped)))
  number = victim.SIGKILL if what in KILLS else signal.SIGTERM
  with trying(f"of two processes, {what}"):
    assert both[hit].wait_for(stage, occurrence), both[hit].says()
    both[hit].hit(number)
    found = ends(both, limit=LIMIT)
    for end, process, status in zip(found, both, statuses, strict=True):
      # JAX, too, notices at once that process 0 is gone, and aborts.
      aborts = status == 1 and hit == 0 and end[0] == -signal.SIGABRT
      assert end[0] == status or aborts, process.says()
      if status == 1 and not aborts:
        assert f"error: process {hit} is gone; the same" in end[1]
      assert "Traceback" not in process.says()
    assert_continue(bench, workdir, whole)


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("when", ["saving", "after training"])
def test_one_of_two_fails(bench, whole, tmp_path, trying, when, kind):
  workdir = tmp_path / "run"
  failing = {"fails": (*WHEN[when], kind)}
  both = start_both(bench, workdir, *FLAGS, each=({}, failing))
  with trying("of two processes, one fails"):
    assert both[1].wait_for(*WHEN[when]), both[1].says()
    found = ends(both, limit=LIMIT)
    assert [end[0] for end in found] == 2 * [FAILURES[kind]]
    assert "error: process 1 ended: " in found[0][1]
    assert "Traceback" not in both[0].says()
    assert_continue(bench, workdir, whole)


@pytest.mark.parametrize("what", ["is killed", "has a mistake", "is process 0"])
def test_one_of_two_does_not_join(bench, whole, tmp_path, trying, what):
  workdir = tmp_path / "run"
  flags = {
    "has a mistake": ["--config.train.batch_size=abc"],
    "is process 0": ["--process_id=0"],
  }.get(what, [])
  each = ({}, {"flags": flags})
  for options in each:
    options["patience"] = PATIENCE
  both = start_both(bench, workdir, *FLAGS, each=each)
  with trying("of two processes, one does not join"):
    if what == "is killed":
      assert both[1].wait_for("starting")
      both[1].hit(victim.SIGKILL)
    found = ends(both, limit=PATIENCE + LIMIT)
    first = 1 if what == "is killed" else 2
    assert found[0][0] == first, both[0].says()
    if what == "is killed":
      assert "process 1 of 2 did not join at HOST:PORT within" in found[0][1]
      assert "Waiting for process 1 of 2 at" in both[0].says()
    assert_continue(bench, workdir, whole)


def test_a_file_that_one_process_lacks_is_named_by_both(bench, tmp_path):
  others = tmp_path / "data"
  shutil.copytree(bench.data_dir, others)
  (others / corpus.NAME / "train.npy").unlink()
  second = {"flags": [f"--config.data.dir={others}"]}
  both = start_both(bench, tmp_path / "run", each=({}, second))
  for process in both:
    assert process.end(seconds=60) == 2
    assert "train.npy is missing" in process.says()
