"""The shares of a run's time, over restarts."""

import json

import pytest

from transformer_xl.workdir import goodput as goodput_lib


class Clock:
  """Time that passes when a test says so."""

  def __init__(self, monkeypatch):
    self.now = 1000.0
    for name in ("time", "perf_counter"):
      monkeypatch.setattr(goodput_lib.time, name, lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
  return Clock(monkeypatch)


def begin(workdir, clock, *, step=0):
  """A start that takes five seconds."""
  goodput = goodput_lib.Goodput(str(workdir))
  clock.now += 5
  goodput.started(step)
  return goodput


def test_a_restart_loses_the_time_since_the_checkpoint(clock, tmp_path):
  goodput = begin(tmp_path, clock)
  with goodput.spent("compiling"):
    clock.now += 10
  clock.now += 60
  with goodput.spent("evaluating"):
    clock.now += 10
  goodput.record(5)
  clock.now += 20  # Lost, with what follows.
  with open(tmp_path / "goodput.jsonl", "a") as file:
    file.write('{"step": 6, "sav')
  again = begin(tmp_path, clock, step=5)
  clock.now += 90
  assert str(again) == (
    "updates 75.0%, starting 5.0%, compiling 5.0%, evaluating 5.0%, "
    "lost to restarts 10.0% of 200 s"
  )


def test_a_checkpoint_that_was_never_complete_is_lost(clock, tmp_path):
  goodput = begin(tmp_path, clock)
  clock.now += 45
  goodput.record(5)
  clock.now += 25
  goodput.record(10)  # The process is killed while it writes this one.
  clock.now += 5
  again = begin(tmp_path, clock, step=5)
  clock.now += 10
  again.record(6)
  *_, last = goodput_lib.read(str(tmp_path))
  assert {name: part for name, part in last.seconds.items() if part} == {
    **{"updates": 55, "starting": 10, "lost to restarts": 30}
  }


def test_more_steps_after_the_last_one_lose_nothing(clock, tmp_path):
  goodput = begin(tmp_path, clock)
  clock.now += 15
  goodput.record(5, is_last=True)
  clock.now += 86_400
  again = begin(tmp_path, clock, step=5)
  clock.now += 15
  assert str(again) == "updates 75.0%, starting 25.0% of 40 s"


def test_a_save_has_the_time_until_its_record(clock, tmp_path):
  goodput = begin(tmp_path, clock)
  with goodput.spent("saving"):
    clock.now += 5
    goodput.record(5)
  (record,) = goodput_lib.read(str(tmp_path))
  assert record.seconds["saving"] == 5


def test_a_part_of_an_activity_can_be_another(clock, tmp_path):
  goodput = begin(tmp_path, clock)
  clock.now += 15
  goodput.add("waiting for data", 5)
  assert str(goodput) == (
    "updates 50.0%, starting 25.0%, waiting for data 25.0% of 20 s"
  )


SECONDS = dict.fromkeys(goodput_lib.OVERHEAD, 0.0)
LINE = {
  "step": 5,
  "is_last": False,
  "saved_at": 900.0,
  "total_seconds": 8.0,
  "seconds": SECONDS,
}


@pytest.mark.parametrize(
  "text",
  [
    *("", "[]", '{"seconds": 3}', "\xff", "[" * 100_000),
    json.dumps(LINE | {"total_seconds": float("nan")}),
    json.dumps(LINE | {"saved_at": 10**400}),
    json.dumps(LINE | {"seconds": SECONDS | {"saving": -1.0}}),
    json.dumps(LINE | {"seconds": SECONDS | {"saving": "often"}}),
  ],
)
def test_a_damaged_line_is_left_out(clock, tmp_path, text):
  path = tmp_path / "goodput.jsonl"
  path.write_text(f"{json.dumps(LINE)}\n{text}\n", "latin-1")
  (record,) = goodput_lib.read(str(tmp_path))
  assert record.seconds["updates"] == 8
  path.write_text(text, "latin-1")
  assert str(begin(tmp_path, clock, step=5)).startswith("updates 0.0%")


@pytest.mark.parametrize(
  ("seconds", "text"),
  [
    (0.04, "0.0 s"),
    (9.94, "9.9 s"),
    (9.96, "10 s"),
    (59.6, "1 min"),
    (189, "3 min 9 s"),
    (7199.4, "1 h 59 min"),
    (3600, "1 h"),
    (86_400 + 60, "1 d"),
    (7 * 86_400 + 5 * 3600, "7 d 5 h"),
  ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
  assert goodput_lib.duration(seconds) == text
