"""The shares of a run's time, over restarts."""

import json
import re

import pytest

from tests import corpus
from transformer_xl.training import goodput as goodput_lib
from transformer_xl.training import loop


class Clock:
  """Time that passes when a test says so."""

  def __init__(self, monkeypatch):
    self.now = 1000.0
    for name in ("time", "perf_counter"):
      monkeypatch.setattr(goodput_lib.time, name, lambda: self.now)


def test_a_restart_loses_the_time_since_the_checkpoint(monkeypatch, tmp_path):
  clock = Clock(monkeypatch)
  goodput = goodput_lib.Goodput(str(tmp_path))
  with goodput.spent("compiling"):
    clock.now += 10
  clock.now += 60
  with goodput.spent("evaluating"):
    clock.now += 10
  goodput.record(5)
  clock.now += 20  # Lost, with what follows.
  with open(tmp_path / "goodput.jsonl", "a") as file:
    file.write('{"step": 6, "sav')
  again = goodput_lib.Goodput(str(tmp_path))
  clock.now += 100
  assert str(again) == (
    "updates 80.0%, compiling 5.0%, evaluating 5.0%, lost to restarts 10.0% of "
    "200 s"
  )


@pytest.mark.parametrize("text", ["", "[]\n", '{"seconds": 3}\n', "\xff"])
def test_a_damaged_record_is_no_record(tmp_path, text):
  (tmp_path / "goodput.jsonl").write_text(text, "latin-1")
  goodput = goodput_lib.Goodput(str(tmp_path))
  assert str(goodput).startswith("updates 100.0% of 0 s")


def test_training_accounts_for_its_time(data_dir, tmp_path, caplog):
  caplog.set_level("INFO")
  config = corpus.config(data_dir)
  assert loop.train(config, str(tmp_path))
  (line,) = re.findall(r"Time of the run: (.*)\.$", caplog.text, re.MULTILINE)
  shares = [float(share) for share in re.findall(r"([\d.]+)%", line)]
  assert sum(shares) == pytest.approx(100, abs=1)
  assert "compiling" in line
  text = (tmp_path / "goodput.jsonl").read_text()
  records = [json.loads(record) for record in text.splitlines()]
  assert records[-1]["step"] == config.train.num_steps
  for record in records:
    assert 0 < sum(record["seconds"].values()) < record["total_seconds"]
