"""Runs in a bucket: killed, started twice, and failed by the bucket."""

import json
import random
import shutil
import time

import pytest
from etils import epath

from tests import faulty_server
from tests.faults import bucket_run
from tests.faults import test_two_processes
from tests.faults import victim
from tests.training import test_resume

pytestmark = [pytest.mark.slow, pytest.mark.faults]

# What happens to the requests of a run from its second save on.
FAILURES = {
  "503 to 20 requests": {"kind": "answer", "requests": 20},
  "429 to 20 requests": {"kind": "answer", "status": 429, "requests": 20},
  "503 to uploads for 10 s": {
    "kind": "answer",
    "methods": faulty_server.UPLOADS,
    "seconds": 10.0,
  },
  "503 to all for 60 s": {"kind": "answer", "seconds": 60.0},
  "403 to uploads": {
    "kind": "answer",
    "status": 403,
    "methods": faulty_server.UPLOADS,
    "seconds": 20.0,
  },
  "0.2 s more for each request": {"kind": "delay", "delay": 0.2},
  "20 connections dropped half-way": {"kind": "drop", "requests": 20},
  "answers to 20 requests lost": {"kind": "lose", "requests": 20},
}
# Stages, how often a run enters them, and the longest time from there on.
KILLS = {
  "starting": (1, 2.0),
  "building": (1, 0.5),
  "compiling": (1, 0.5),
  "reading": (12, 0.05),
  "evaluating": (3, 0.05),
  "saving": (3, 0.3),
  "after saving": (3, 2.0),
  "closing": (1, 0.5),
}
KILLS_EACH = 1
MANY_STEPS = "--config.train.num_steps=1000000"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
  folder = tmp_path_factory.mktemp("buckets")
  return victim.Bench(folder, bucket_run.UPDATES)


@pytest.fixture
def run(bench, bucket, tmp_path):
  return bucket_run.BucketRun(bench, bucket, tmp_path)


@pytest.mark.parametrize("failure", FAILURES)
def test_the_bucket_fails_during_a_save(run, faulty, trying_bucket, failure):
  with trying_bucket("saving", failure) as note:
    process = run.start_to("saving", 2)
    with faulty.failing(**FAILURES[failure]) as fault:
      process.end()
    note(run.finish(process))
  assert fault.hits


@pytest.mark.parametrize("seconds", [8, 60])
def test_the_bucket_cannot_be_reached_during_a_save(
  run, faulty, trying_bucket, seconds
):
  with trying_bucket("saving", f"connections refused for {seconds} s") as note:
    process = run.start_to("saving", 2)
    faulty.refuse()
    time.sleep(seconds)
    faulty.accept()
    note(run.finish(process))


# Where nothing can be listed, no checkpoint may be taken for none.
@pytest.mark.parametrize(
  ("stage", "seconds"),
  [("starting", 60), ("building", 60), ("restoring", 60), ("restoring", 5)],
)
def test_the_bucket_fails_while_a_run_resumes(
  run, faulty, trying_bucket, stage, seconds
):
  killed_after_saving(run)
  with trying_bucket(f"resuming ({stage})", f"503 for {seconds} s") as note:
    process = run.start_to(stage)
    with faulty.failing("answer", seconds=seconds) as fault:
      process.end()
    note(run.finish(process))
  assert fault.hits
  assert "Starting with" not in process.says()


def killed_after_saving(run):
  """Leaves a run with at least one checkpoint."""
  process = run.start_to("saving", 3)  # The first is complete by then.
  process.hit(victim.SIGKILL)
  process.end()
  assert run.steps()


def test_logs_that_could_not_be_uploaded_follow(run, faulty, trying_bucket):
  fault = {"status": 403, "path": "metrics.jsonl", "requests": 1}
  with trying_bucket("uploading logs", "403 once") as note:
    process = run.start_to("saving")
    with faulty.failing("answer", **fault):
      note(run.finish(process))
  says = process.says()
  assert says.count("The logs follow with the next checkpoint: cannot") == 1


def moments():
  generator = random.Random(0)
  for stage, (occurrences, longest) in KILLS.items():
    for _ in range(KILLS_EACH):
      occurrence = 1 + generator.randrange(occurrences)
      delay = generator.random() * longest
      yield pytest.param(
        stage, occurrence, delay, id=f"{stage} {occurrence} {delay:.3f}"
      )


@pytest.mark.parametrize(("stage", "occurrence", "delay"), [*moments()])
def test_kill_9(run, trying_bucket, stage, occurrence, delay):
  process = run.start_to(stage, occurrence)
  time.sleep(delay)
  process.hit(victim.SIGKILL)
  assert process.end() in (-victim.SIGKILL, 0)
  where = process.stages[-1].removeprefix("after ")
  with trying_bucket(where, "kill -9") as note:
    run.assert_continues()
    note("the same command resumes")


def test_a_second_run_is_refused(run, trying_bucket):
  first = run.start(MANY_STEPS)
  assert first.wait_for("after saving"), first.says()
  with trying_bucket("training", "a second run in the same workdir") as note:
    second = run.start()
    bucket_run.assert_one_line(second, "another process trains in gs://")
    assert first.process.is_alive()
    note("refused in one line")
  first.hit(victim.SIGKILL)
  first.end()


def test_the_lock_of_a_machine_that_is_gone(run, trying_bucket):
  killed_after_saving(run)
  lock = epath.Path(run.address, ".lock")
  owner = json.loads(lock.read_text())
  lock.write_text(json.dumps(owner | {"host": "another"}))
  with trying_bucket("training", "the machine is gone, its lock stays") as note:
    run.assert_continues()
    note("the same command resumes on another")


def test_two_processes_finish_with_modes_in_a_new_workdir(run, bench, tmp_path):
  modes = "--config.train.finish_with=('generate','report')"
  flags = (*run.flags, modes, "--config.generate.prompt=a")
  both = test_two_processes.start_both(bench, tmp_path / "run", *flags)
  for process in both:
    assert process.end() == 0, process.says()
  copy = run.fetched()
  assert (copy / "results" / "generate.json").exists()
  assert (copy / "report.html").exists()
  shutil.rmtree(copy)


@pytest.fixture(scope="module")
def whole(bench, tmp_path_factory):
  """What two processes write to a disk."""
  workdir = tmp_path_factory.mktemp("two") / "run"
  for process in test_two_processes.start_both(bench, workdir):
    assert process.end() == 0, process.says()
  return workdir


@pytest.mark.parametrize("killed", [0, 1])
def test_one_of_two_processes_is_killed(
  run, bench, whole, tmp_path, trying_bucket, killed
):
  log = tmp_path / "run"
  both = test_two_processes.start_both(bench, log, *run.flags)
  assert both[killed].wait_for("after saving", 2), both[killed].says()
  both[killed].hit(victim.SIGKILL)
  with trying_bucket("training", "one of two processes killed") as note:
    assert both[killed].end() == -victim.SIGKILL
    assert both[1 - killed].end(seconds=200) != 0
    for process in test_two_processes.start_both(bench, log, *run.flags):
      assert process.end() == 0, process.says()
    copy = run.fetched()
    assert test_resume.lines(copy) == test_resume.lines(whole)
    test_resume.assert_same_run(whole, copy, bench.config)
    note("both resume")
  shutil.rmtree(copy)
