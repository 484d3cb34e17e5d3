"""A tracker of the user's own: what it gets, and that it cannot hurt a run."""

import functools
import pathlib
import sys
import threading
import time
import types

import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl.training import loop
from transformer_xl.workdir import chosen_tracker

EXAMPLE = pathlib.Path(__file__).parents[2] / "docs/extensions/my_trackers.py"
OWN = """
import json

class Lines:
  def __init__(self, workdir, *, name):
    with open(f"{workdir}/config.json") as file:
      self.seed = json.load(file)["config"]["seed"]
    self.file = open(f"{workdir}/own.jsonl", "a")

  def record(self, record):
    self.file.write(json.dumps({"seed": self.seed, **record}) + "\\n")

  def close(self):
    self.file.close()

class NotOne:
  pass
"""


class Failing:
  """A tracker whose server is away."""

  def __init__(self, workdir, *, name):
    del workdir, name

  def record(self, record):
    raise RuntimeError("the server\nis away")

  def close(self):
    """Nothing is open."""


class Exiting(Failing):
  """A tracker whose package ends the program."""

  def record(self, record):
    sys.exit("no key")


class Changing(Failing):
  """A tracker that takes records apart."""

  def record(self, record):
    record.pop("settings").clear()


class Waiting(Failing):
  """A tracker whose server does not answer."""

  def __init__(self, workdir, *, name, answers):
    del workdir, name
    self._answers = answers

  def record(self, record):
    self._answers.wait(60)


def track(make, *records):
  tracker = chosen_tracker.InBackground(
    make, path="own:Tracker", workdir="run", name="run"
  )
  for record in records:
    tracker.record(record)
  tracker.close()


@pytest.mark.rest
def test_a_class_of_ones_own_gets_the_lines_of_the_log(tmp_path, monkeypatch):
  (tmp_path / "own_tracker.py").write_text(OWN)
  monkeypatch.syspath_prepend(tmp_path)
  run = tmp_path / "run"
  data = corpus.write(tmp_path / "data")
  values = {"train.tracker": "own_tracker:Lines", "seed": 3}
  loop.train(corpus.config(data, **values), str(run))
  lines = (run / "metrics.jsonl").read_text().splitlines()
  expected = ['{"seed": 3, ' + line.removeprefix("{") for line in lines]
  assert (run / "own.jsonl").read_text().splitlines() == expected
  assert len(lines) > 1


@pytest.mark.parametrize(
  ("path", "says"),
  [
    ("no_such_module:Class", "No module named 'no_such_module'"),
    ("json:Tracker", "module json has no class Tracker"),
    ("divides:Tracker", "divides fails .ZeroDivisionError: division by zero"),
    ("exits:Tracker", "exits fails .SystemExit: 3"),
  ],
)
def test_without_the_class_training_does_not_start(
  tmp_path, monkeypatch, path, says
):
  (tmp_path / "divides.py").write_text("1 / 0")
  (tmp_path / "exits.py").write_text("raise SystemExit(3)")
  monkeypatch.syspath_prepend(tmp_path)
  data = corpus.write(tmp_path / "data")
  config = corpus.config(data, **{"train.tracker": path})
  with pytest.raises(errors.UserError, match=says):
    loop.train(config, str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("make", "says"),
  [
    (Failing, "RuntimeError: the server is away"),
    (Exiting, "SystemExit: no k"),
  ],
)
def test_an_error_of_a_tracker_is_a_line_of_the_log(caplog, make, says):
  track(make, {"step": 2, "loss": 2.5}, {"step": 4, "loss": 2.0})
  (line,) = caplog.records
  assert f"own:Tracker failed ({says}" in line.getMessage()


def test_a_tracker_may_change_what_it_gets():
  settings = {"mem_len": 8}
  track(Changing, {"step": 2, "settings": settings})
  assert settings == {"mem_len": 8}


def test_training_does_not_wait_for_a_tracker(monkeypatch, caplog):
  monkeypatch.setattr(chosen_tracker, "_CLOSING_SECONDS", 0.1)
  answers = threading.Event()
  start = time.monotonic()
  make = functools.partial(Waiting, answers=answers)
  track(make, *({"step": step, "loss": 2.5} for step in range(1000)))
  assert time.monotonic() - start < 30  # It would be hours.
  assert "own:Tracker did not finish" in caplog.text
  answers.set()


def test_the_example_for_trackio_reports_numbers_by_step(tmp_path, monkeypatch):
  """With a stand-in for trackio; the signatures are those of 0.43."""
  calls = []
  trackio = types.ModuleType("trackio")

  def init(project, name=None, *, config=None, resume="never"):
    calls.append((project, name, config, resume))
    return types.SimpleNamespace(log=log, finish=lambda: calls.append("end"))

  def log(metrics, step=None):
    calls.append((step, metrics))

  trackio.init = init
  monkeypatch.setitem(sys.modules, "trackio", trackio)
  names: dict = {}
  exec(EXAMPLE.read_text("utf-8"), names)
  (tmp_path / "config.json").write_text('{"config": {"seed": 3}}')
  tracker = names["Trackio"](str(tmp_path), name="run")
  tracker.record({"step": 2, "loss": 2.5, "mfu": None})
  tracker.record({"step": 2, "split": "valid", "nll": 3.0, "settings": {}})
  tracker.close()
  assert calls == [
    ("transformer-xl", "run", {"seed": 3}, "allow"),
    (2, {"train/loss": 2.5}),
    (2, {"valid/nll": 3.0}),
    "end",
  ]
