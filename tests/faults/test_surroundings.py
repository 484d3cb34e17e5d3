"""Full disks, read-only disks, other owners and clocks that jump."""

import contextlib
import os
import shutil
import subprocess
import time

import pytest

from tests.faults import victim
from transformer_xl import signals

pytestmark = [pytest.mark.slow, pytest.mark.faults]
NOBODY = 65534


@contextlib.contextmanager
def small_disk(folder, kilobytes):
  """A file system in memory; skips where it may not be mounted."""
  folder.mkdir()
  options = f"size={kilobytes}k"
  command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
  try:
    subprocess.run(command, check=True, capture_output=True)
  except (OSError, subprocess.CalledProcessError) as error:
    pytest.skip(f"no file system can be mounted here: {error}")
  try:
    yield folder
  finally:
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder, *, leaving):
  """Fills a file system up to a number of bytes, whoever else writes there."""
  ballast = folder / "ballast"
  with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
    while True:
      file.write(bytes(4096))
  os.truncate(ballast, max(0, ballast.stat().st_size - leaving))
  return ballast


def assert_one_line(process, status, says):
  """It ended with one line for people, and no traceback."""
  assert process.end() == status, process.says()
  *_, last = process.says().splitlines()
  assert last.startswith("error: "), process.says()
  assert says in last


@pytest.mark.parametrize("leaving", [0, 16, 80])
def test_a_full_disk(bench, tmp_path, trying, leaving):
  with small_disk(tmp_path / "disk", 16384) as disk:
    # What it says goes elsewhere, for it must not be lost.
    process = bench.start(tmp_path / "run", f"--workdir={disk}/run")
    assert process.wait_for("after saving", 2)
    ballast = fill(disk, leaving=leaving << 10)
    with trying("disk full while saving"):
      assert_one_line(process, 1, "No space left on device")
      ballast.unlink()
      bench.assert_continues(disk / "run")


def test_a_disk_that_is_full_at_the_start(bench, tmp_path, trying):
  with small_disk(tmp_path / "disk", 16384) as disk:
    ballast = fill(disk, leaving=0)
    process = bench.start(tmp_path / "run", f"--workdir={disk}/run")
    with trying("disk full at the start"):
      assert_one_line(process, 1, "No space left on device")
      ballast.unlink()
      bench.assert_continues(disk / "run")


def stopped(bench, workdir):
  process = bench.start(workdir)
  process.wait_for("after saving", 3)
  process.hit(victim.SIGTERM)
  assert process.end() == signals.TERMINATED


def test_a_read_only_disk(bench, tmp_path, trying):
  with small_disk(tmp_path / "disk", 65536) as disk:
    stopped(bench, disk / "run")
    again = ["mount", "-o", "remount,ro", str(disk)]
    subprocess.run(again, check=True)
    with trying("read-only file system"):
      process = bench.start(tmp_path / "run", f"--workdir={disk}/run")
      assert_one_line(process, 1, "Read-only file system")
      again[2] = "remount,rw"
      subprocess.run(again, check=True)
      bench.assert_continues(disk / "run")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_folder_of_another_user(bench, tmp_path, trying, mode):
  """Neither a closed folder nor one that can be read is taken for empty."""
  workdir = tmp_path / "run"
  stopped(bench, workdir)
  before = victim.steps(workdir)
  for folder in (tmp_path, *tmp_path.parents):
    with contextlib.suppress(PermissionError):
      if not folder.stat().st_mode & 0o001:
        folder.chmod(0o755)
  shutil.copytree(bench.data_dir, tmp_path / "data")
  workdir.chmod(mode)
  os.chmod(f"{workdir}.log", 0o666)
  process = bench.start(
    workdir,
    f"--config.data.dir={tmp_path}/data",
    user=NOBODY,
    cache=tmp_path / "no_cache",
  )
  with trying("checkpoints of another user"):
    assert_one_line(process, 1, "Permission denied")
    assert victim.steps(workdir) == before
    assert not (workdir / "damaged").exists()
    workdir.chmod(0o755)
    bench.assert_continues(workdir)


YEAR = 365 * 24 * 3600
CLOCKS = {
  "forward a year": {100: YEAR},
  "back ten years": {100: -10 * YEAR},
  "to and fro": {call: (-1) ** call * YEAR for call in range(1, 2000, 50)},
}


@pytest.mark.parametrize("jump", CLOCKS)
def test_a_clock_that_jumps(bench, tmp_path, trying, jump):
  workdir = tmp_path / "run"
  with trying(f"clock jumps: {jump}"):
    process = bench.start(workdir, clock=CLOCKS[jump])
    process.wait_for("after saving", 3)
    time.sleep(0.1)
    process.hit(victim.SIGKILL)
    process.end()
    back = {1: -YEAR}
    bench.assert_continues(workdir, clock=back)
