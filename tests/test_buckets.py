"""A run in a bucket has the files and the numbers of the run on disk."""

import json
import re
import threading
import time

import pytest

from tests import corpus
from tests import emulator
from tests import processes
from tests.analysis import runs
from tests.training import test_processes
from tests.training import test_resume
from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.evaluation import cards
from transformer_xl.evaluation import evaluate
from transformer_xl.training import loop
from transformer_xl.workdir import lease

UPDATES = {
  "model.num_layers": 1,
  "train.num_steps": 8,
  "train.eval_every_steps": 4,
  "eval.split": "valid",
}


def files(folder):
  """Names of a run's files, to the items of checkpoints, without the time."""
  paths = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
  short = ("/".join(p.parts[:3]) for p in paths)
  return sorted({re.sub("tfevents.*", "tfevents", name) for name in short})


def results(folder):
  """Numbers of all results, without timing, by the file and the path in it."""
  found = {}
  for path in folder.rglob("results/*.json"):
    numbers = test_processes.numbers(json.loads(path.read_text()))
    found[str(path.relative_to(folder))] = {
      name: value
      for name, value in numbers
      if not name.endswith("/config/data/dir")  # On disk, or in the bucket.
    }
  return found


def test_evaluations_of_one_run_keep_the_cards_of_each_other(bucket, caplog):
  """The second one waits until the first has written its file."""
  caplog.set_level("INFO")
  name = f"{bucket}/results/cards.jsonl"
  cards.keep(bucket, "eval_valid", {"cards": [{"number": 1}]})
  second = threading.Thread(
    target=cards.keep, args=(bucket, "eval_test", {"cards": [{"number": 3}]})
  )
  with lease.Leases().take(f"{bucket}/results/.cards.lock") as is_ours:
    assert is_ours
    second.start()
    end = time.monotonic() + 30
    while "has added its cards" not in caplog.text:
      assert time.monotonic() < end
      time.sleep(0.01)
    storage.write_text(name, storage.read_text(name) + '{"number": 2}\n')
  second.join(30)
  lines = storage.read_text(name).splitlines()
  assert [json.loads(line)["number"] for line in lines] == [1, 2, 3]


@pytest.mark.rest
@pytest.mark.slow
def test_a_run_that_was_stopped_and_evaluated(bucket, tmp_path):
  data_dir = corpus.write(tmp_path / "data")
  emulator.upload(data_dir, f"{bucket}/data")
  run, address = tmp_path / "run", f"{bucket}/run"
  for workdir, data in ((str(run), data_dir), (address, f"{bucket}/data")):
    config = corpus.config(data, **UPDATES)
    test_resume.train_until(6, config, workdir)
    assert loop.train(config, workdir)
    for cache_size in (0, 4):
      adapted = load.replaced(config, {"eval.cache.size": cache_size})
      evaluate.run(adapted, workdir)
      storage.publish(workdir)
      storage.forget(workdir)  # As another process would find it.
  copy = emulator.download(address, tmp_path / "copy")
  test_resume.assert_same_run(run, copy, config)
  assert results(run) == results(copy)
  assert len(results(copy)) == 2
  assert files(run) == files(copy)
  for folder in (run, copy):
    cards = (folder / "results" / "cards.jsonl").read_text().splitlines()
    assert ["cache" in json.loads(card) for card in cards] == [0, 0, 1]


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("mode", processes.MODES)
def test_every_mode_has_the_results_of_the_run_on_disk(mode, bucket, tmp_path):
  data_dir = corpus.write(tmp_path / "data")
  texts = tmp_path / "texts"
  texts.write_text("abc\nde fgh\nabcdefgh\n")
  run, address = tmp_path / "run", f"{bucket}/run"
  emulator.upload(data_dir, f"{bucket}/data")
  updates = processes.RUN | {"score.file": str(texts)}
  if mode == "eval":
    updates |= processes.ADAPTS
  for workdir, data in ((str(run), data_dir), (address, f"{bucket}/data")):
    config = runs.write(data, workdir, **updates)
    storage.publish(workdir)
    storage.forget(workdir)  # Another process has none of the files.
    processes.MODES[mode](config, workdir)
    storage.publish(workdir)
  copy = emulator.download(address, tmp_path / "copy")
  assert results(run) == results(copy)
  assert files(run) == files(copy)
  assert len(files(run)) > 3
