"""A dataset is whole or absent, whatever happens while it is prepared."""

import functools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data_prep import corpus
from transformer_xl.data_prep import preparation
from transformer_xl.data_prep import staging

prepare = functools.partial(layouts.prepare, "text")
SPLITS = ("train", "valid", "test")


@pytest.fixture
def files(tmp_path):
  """Twenty documents."""
  documents = {f"{i:02d}.txt": b"one two three\n" * (i + 1) for i in range(20)}
  return layouts.write_files(tmp_path / "source", documents)


def contents(folder):
  return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_what_a_killed_preparation_left_is_deleted(tmp_path, files):
  left = tmp_path / "data" / "text.partial" / "dataset"
  layouts.write_files(left, {"train.npy": b"half", "test_documents.npy": b"?"})
  folder = prepare(tmp_path, files)
  assert list((tmp_path / "data").iterdir()) == [folder]
  fresh = prepare(tmp_path / "other", files)
  assert contents(folder) == contents(fresh)


def test_a_folder_of_that_name_is_left_as_it_is(tmp_path, files):
  """It may be a dataset of its own, called so."""
  other = prepare(tmp_path, files, name="text.partial")
  before = contents(other)
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare(tmp_path, files)
  assert contents(other) == before


def test_a_dataset_that_another_process_has_just_made_is_left(
  tmp_path, files, monkeypatch
):
  acquire = staging.filelock.FileLock.acquire

  def late(lock, **options):
    monkeypatch.undo()
    prepare(tmp_path, files)
    (tmp_path / "data" / "text.partial").mkdir()
    return acquire(lock, **options)

  monkeypatch.setattr(staging.filelock.FileLock, "acquire", late)
  with pytest.raises(errors.UserError, match="another process has prepared"):
    prepare(tmp_path, files)
  assert [*(tmp_path / "data").iterdir()] == [tmp_path / "data" / "text"]


def test_any_exception_leaves_nothing(tmp_path, files, monkeypatch):
  class Interrupted(BaseException):
    pass

  def suggest(counts):
    assert len(list((tmp_path / "data").rglob("train.npy"))) == 1
    raise Interrupted

  monkeypatch.setattr(preparation.cutoffs, "suggest", suggest)
  with pytest.raises(Interrupted):
    prepare(tmp_path, files)
  assert list((tmp_path / "data").iterdir()) == []


def test_two_processes_do_not_prepare_the_same_dataset(
  tmp_path, files, monkeypatch
):
  raised = []
  genuine = corpus.Corpus.pieces

  def pieces(self, split, activity):
    if not raised:
      with pytest.raises(errors.UserError, match="another process") as error:
        prepare(tmp_path, files)
      raised.append(error)
    return genuine(self, split, activity)

  monkeypatch.setattr(corpus.Corpus, "pieces", pieces)
  prepare(tmp_path, files)
  assert len(raised) == 1


@pytest.mark.rest
def test_a_killed_process_leaves_no_dataset_and_the_next_one_finishes(
  tmp_path,
):
  path = tmp_path / "a.txt"
  path.write_bytes(b"some words to count and encode\n" * 700_000)
  arguments = [
    sys.executable,
    "-m",
    "data_prep.main",
    "--dataset=text",
    f"--data_dir={tmp_path / 'data'}",
    f"--source={path}",
    "--tokenizer=word",
  ]
  process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
  tokens = tmp_path / "data" / "text.partial" / "dataset" / "train.npy"
  deadline = time.monotonic() + 60
  while not tokens.exists() and time.monotonic() < deadline:
    time.sleep(0.01)
  os.kill(process.pid, signal.SIGKILL)
  assert process.wait() == -signal.SIGKILL
  assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [
    "text.partial"
  ]
  subprocess.run(arguments, check=True, capture_output=True)
  folder = tmp_path / "data" / "text"
  assert (folder / "meta.json").exists()
  tokens = sum(len(np.load(folder / f"{s}.npy")) for s in SPLITS)
  assert tokens == 7 * 700_000
  assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["text"]


@pytest.mark.rest
def test_ctrl_c_ends_the_learning_of_subwords(tmp_path):
  """The library that learns them calls no Python for a long time."""
  path = tmp_path / "a.txt"
  letters = np.random.default_rng(0).integers(97, 123, 8_000_000)
  path.write_bytes(letters.astype(np.uint8).tobytes())
  arguments = [
    *(sys.executable, "-m", "data_prep.main", "--dataset=text"),
    *(f"--data_dir={tmp_path / 'data'}", f"--source={path}"),
    *("--tokenizer=subword", "--max_size=60000"),
  ]
  process = subprocess.Popen(
    arguments,
    stderr=subprocess.PIPE,
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
  )
  dataset = tmp_path / "data" / "text.partial" / "dataset"
  deadline = time.monotonic() + 60
  try:
    while not dataset.exists() and time.monotonic() < deadline:
      time.sleep(0.01)
    time.sleep(6)  # The text is counted and read by then.
    assert process.poll() is None
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=20)
  finally:
    process.kill()
  assert time.monotonic() - start < 5
  assert process.returncode == 130
  assert (
    printed.decode()
    .splitlines()[-1]
    .endswith("error: interrupted; the same command starts it again.")
  )
  assert sorted((tmp_path / "data").iterdir()) == []
