"""One of two processes is killed: the other ends, and both continue."""

import shutil
import time

import pytest

from tests import corpus
from tests.faults import victim
from tests.training import test_processes
from tests.training import test_resume

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def start_both(bench, workdir, *more):
  address = f"localhost:{test_processes.free_port()}"
  flags = ["--num_processes=2", f"--coordinator={address}", *more]
  return [bench.start(workdir, *flags, f"--process_id={i}") for i in range(2)]


@pytest.fixture(scope="module")
def whole(bench, tmp_path_factory):
  """What two processes write that nothing happens to."""
  workdir = tmp_path_factory.mktemp("two") / "run"
  for process in start_both(bench, workdir):
    assert process.end() == 0, process.says()
  return workdir


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("stage", ["reading", "after saving"])
def test_one_of_two_is_killed(bench, whole, tmp_path, trying, killed, stage):
  workdir = tmp_path / "run"
  both = start_both(bench, workdir)
  assert both[killed].wait_for(stage, 4), both[killed].says()
  both[killed].hit(victim.SIGKILL)
  with trying("one of two processes killed"):
    start = time.monotonic()
    assert both[killed].end() == -victim.SIGKILL
    status = both[1 - killed].end(seconds=200)
    if killed:
      assert status == 1
      assert "error: process 1 is gone" in both[0].says()
      assert time.monotonic() - start < 60
    else:
      assert status != 0  # JAX ends what has lost process 0.
    print(f"the other ended after {time.monotonic() - start:.1f} s")
    for process in start_both(bench, workdir):
      assert process.end() == 0, process.says()
    assert test_resume.lines(workdir) == test_resume.lines(whole)
    config = corpus.config(bench.data_dir, **bench.updates)
    test_resume.assert_same_run(whole, workdir, config)
  shutil.rmtree(workdir)


def test_a_mistake_of_one_process_ends_it_with_its_own_status(bench, tmp_path):
  others = tmp_path / "data"
  shutil.copytree(bench.data_dir, others)
  (others / corpus.NAME / "train.npy").unlink()
  address = f"localhost:{test_processes.free_port()}"
  flags = ["--num_processes=2", f"--coordinator={address}"]
  workdir = tmp_path / "run"
  first = bench.start(workdir, *flags, "--process_id=0")
  second = bench.start(
    workdir, *flags, "--process_id=1", f"--config.data.dir={others}"
  )
  assert second.end(seconds=60) == 2
  assert "train.npy is missing" in second.says()
  assert first.end(seconds=200) != 0
