"""A killed preparation goes on and ends with the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from data_prep import encoding
from data_prep import preparation
from data_prep import survey
from data_prep import tokenizer as tokenizer_lib
from data_prep.text import corpus
from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data import vocabulary

WORDS = "one two three four five six seven\n"
OPTIONS = {
  "byte": {},
  "word": {"tokenizer": "word"},
  "character": {"tokenizer": "character"},
  "subword": {"tokenizer": "subword", "max_size": 270},
}


class Killed(BaseException):
  """What no handler catches."""


@pytest.fixture
def files(tmp_path, monkeypatch):
  """Twenty documents in small pieces, with the state saved at nearly each."""
  layouts.small_pieces(monkeypatch, block=40, longest=80)
  monkeypatch.setattr(survey, "_SAVE_BYTES", 100)
  monkeypatch.setattr(encoding, "_SAVE_BYTES", 100)
  documents = {
    f"{i:02d}.txt": WORDS[i:].encode() * (i % 7 + 1) for i in range(20)
  }
  return layouts.write_files(tmp_path / "source", documents)


def prepare(tmp_path, files, name, **options):
  return preparation.prepare(
    dataset="text",
    data_dir=str(tmp_path / "data"),
    source=str(files),
    name=name,
    valid_fraction=0.2,
    test_fraction=0.0,
    **options,
  )


def contents(folder):
  meta = json.loads((folder / "meta.json").read_text())
  del meta["name"]
  files = {p.name: p.read_bytes() for p in folder.iterdir()}
  return files | {"meta.json": meta}


def kill_after(monkeypatch, number):
  """Ends the process, as it were, when the number-th piece is read."""
  left = [number]
  genuine = tokenizer_lib.pieces_of

  def pieces_of(split, tokenizer):
    for piece in genuine(split, tokenizer):
      left[0] -= 1
      if left[0] < 0:
        raise Killed
      yield piece

  monkeypatch.setattr(tokenizer_lib, "pieces_of", pieces_of)


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_resumed_preparation_equals_an_uninterrupted_one(
  tmp_path, files, kind, monkeypatch
):
  whole = contents(prepare(tmp_path, files, "whole", **OPTIONS[kind]))
  kills = 0
  for step in range(5, 400, 30):
    with monkeypatch.context() as patch:
      kill_after(patch, step)
      try:
        folder = prepare(tmp_path, files, "resumed", **OPTIONS[kind])
        break
      except Killed:
        kills += 1
        assert not (tmp_path / "data" / "resumed").exists()
  assert kills > 2
  assert contents(folder) == whole


def test_resuming_goes_on_where_the_state_was_saved(
  tmp_path, files, monkeypatch
):
  prepare(tmp_path, files, "whole")
  encoded = []
  genuine = vocabulary.ByteVocabulary.encode_bytes

  def encode_bytes(self, data):
    encoded.append(len(data))
    return genuine(self, data)

  monkeypatch.setattr(vocabulary.ByteVocabulary, "encode_bytes", encode_bytes)
  num_pieces = len(
    [p for split in ("train", "valid") for p in _pieces(files, split)]
  )
  with monkeypatch.context() as patch:
    kill_after(patch, num_pieces + num_pieces // 2)
    with pytest.raises(Killed):
      prepare(tmp_path, files, "resumed")
  before = sum(encoded)
  encoded.clear()
  prepare(tmp_path, files, "resumed")
  total = sum(path.stat().st_size for path in files.iterdir())
  assert before > total / 4
  # At most what was read since the last save is encoded twice.
  assert total <= before + sum(encoded) <= total + 200


def _pieces(files, split):
  options = corpus.Options(valid_fraction=0.2, test_fraction=0.0)
  text = corpus.open_corpus(
    options, tokenizer_lib.of_text("byte"), source=str(files)
  )
  return text.splits[split]()


def test_another_source_starts_anew(tmp_path, files, monkeypatch):
  with monkeypatch.context() as patch:
    kill_after(patch, 60)
    with pytest.raises(Killed):
      prepare(tmp_path, files, "text")
  (files / "00.txt").write_bytes(b"changed\n")
  changed = prepare(tmp_path, files, "text")
  fresh = prepare(tmp_path, files, "fresh")
  assert contents(changed) == contents(fresh)


def test_two_processes_do_not_prepare_the_same_dataset(
  tmp_path, files, monkeypatch
):
  raised = []
  genuine = tokenizer_lib.pieces_of

  def pieces_of(split, tokenizer):
    if not raised:
      with pytest.raises(errors.UserError, match="another process") as error:
        prepare(tmp_path, files, "text")
      raised.append(error)
    return genuine(split, tokenizer)

  monkeypatch.setattr(tokenizer_lib, "pieces_of", pieces_of)
  prepare(tmp_path, files, "text")
  assert len(raised) == 1


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
  tokens = tmp_path / "data" / "text.partial" / "train.npy"
  deadline = time.monotonic() + 60
  while not tokens.exists() and time.monotonic() < deadline:
    time.sleep(0.01)
  os.kill(process.pid, signal.SIGKILL)
  assert process.wait() == -signal.SIGKILL
  assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [
    "text.partial"
  ]
  subprocess.run(arguments, check=True, capture_output=True)
  assert (tmp_path / "data" / "text" / "meta.json").exists()
