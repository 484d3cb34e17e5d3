"""Leases: one holder at a time, and none for ever."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from transformer_xl import storage
from transformer_xl.workdir import lease


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
  monkeypatch.setattr(lease, "RENEWED_AFTER_SECONDS", 0.05)
  monkeypatch.setattr(lease, "LEFT_AFTER_SECONDS", 0.4)
  monkeypatch.setattr(lease, "_SETTLED_AFTER_SECONDS", 0.1)


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.rest)])
def path(request, tmp_path):
  if request.param == "bucket":
    return f"{request.getfixturevalue('bucket')}/.lease"
  return str(tmp_path / ".lease")


def is_taken(leases, path):
  with leases.take(path) as is_ours:
    return is_ours


def test_a_lease_has_one_holder_as_long_as_he_renews_it(path):
  one, other = lease.Leases(), lease.Leases()
  with one.take(path) as is_ours:
    assert is_ours
    end = time.monotonic() + 3 * lease.LEFT_AFTER_SECONDS
    while time.monotonic() < end:
      assert not is_taken(other, path)
      time.sleep(0.05)
    assert other.is_renewed(path)
    assert other.holder(path) == socket.gethostname()
  assert is_taken(other, path)
  with pytest.raises(FileNotFoundError):
    storage.read_text(path)


def test_who_waits_has_it_after_the_other(path, caplog, monkeypatch):
  monkeypatch.setattr(lease, "LEFT_AFTER_SECONDS", 60.0)
  caplog.set_level("INFO")
  order = []

  def second():
    with lease.Leases().wait(path, until="ended", look_seconds=0.01):
      order.append("second")

  waiting = threading.Thread(target=second)
  said = f"Waiting until {socket.gethostname()} has ended."
  with lease.Leases().take(path) as is_ours:
    assert is_ours
    waiting.start()
    end = time.monotonic() + 30
    while said not in caplog.text and time.monotonic() < end:
      time.sleep(0.01)
    order.append("first")
  waiting.join(30)
  assert order == ["first", "second"]
  assert caplog.text.count(said) == 1


def test_what_nobody_renews_is_taken_after_a_while_whatever_its_clock(path):
  owner = {"host": "another", "process": os.getpid(), "renewed": 1e12}
  storage.write_text(path, json.dumps(owner))
  leases = lease.Leases()
  assert not is_taken(leases, path)
  assert not leases.is_renewed(path)
  time.sleep(1.1 * lease.LEFT_AFTER_SECONDS)
  assert not is_taken(lease.Leases(), path)  # Who has not watched it waits.
  assert is_taken(leases, path)


def test_the_lease_of_a_process_that_has_ended_here_is_taken_at_once(tmp_path):
  path = str(tmp_path / ".lease")
  held = (
    "import sys, time; from transformer_xl.workdir import lease\n"
    "with lease.Leases().take(sys.argv[1]) as is_ours:\n"
    "  print(is_ours, flush=True); time.sleep(60)"
  )
  with subprocess.Popen(
    [sys.executable, "-c", held, path], stdout=subprocess.PIPE, text=True
  ) as process:
    assert process.stdout.readline() == "True\n"
    assert not is_taken(lease.Leases(), path)
    process.kill()
  assert is_taken(lease.Leases(), path)


def test_of_two_that_take_over_the_last_one_has_it(tmp_path, monkeypatch):
  """The first finds another's token where it has just written its own."""
  path = str(tmp_path / ".lease")
  dead = {"host": "another", "token": "dead"}
  storage.write_text(path, json.dumps(dead))
  leases = lease.Leases()
  assert not is_taken(leases, path)
  time.sleep(1.1 * lease.LEFT_AFTER_SECONDS)
  winner = {"host": "another", "token": "winner"}
  sleep = time.sleep

  def settle(seconds):
    if seconds == lease._SETTLED_AFTER_SECONDS:
      storage.write_text(path, json.dumps(winner))
    sleep(seconds)

  monkeypatch.setattr(lease.time, "sleep", settle)
  assert not is_taken(leases, path)
  assert json.loads(storage.read_text(path)) == winner
