"""Text encoded with the vocabulary of a run, which it may extend."""

import functools
import shutil

import numpy as np
import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.workdir import run_record

prepare = functools.partial(layouts.prepare, "text", **layouts.WHOLE)


@pytest.fixture
def run(tmp_path):
  """Returns a workdir that keeps the vocabulary of some text."""

  def make(text, **options):
    (tmp_path / "old.txt").write_text(text, "utf-8")
    folder = prepare(tmp_path, tmp_path / "old.txt", name="old", **options)
    workdir = tmp_path / "run"
    run_record.keep_vocabulary(str(folder), str(workdir))
    shutil.rmtree(folder)  # The workdir alone serves.
    return str(workdir)

  return make


def new_text(tmp_path, text):
  (tmp_path / "new.txt").write_text(text, "utf-8")
  return tmp_path / "new.txt"


def test_the_vocabulary_of_a_run_comes_with_its_tokenizer(tmp_path, run):
  workdir = run("a b b\n", tokenizer="word", lower_case=True)
  source = new_text(tmp_path, "B x\n")
  folder = prepare(tmp_path, source, vocabulary_file=workdir)
  assert layouts.read(folder, "train")[0] == ["b", "<unk>", "<eos>"]
  run_record.check_vocabulary(str(folder), workdir)


def test_new_words_get_the_ids_after_the_old_ones(tmp_path, run):
  workdir = run("a b b\n", tokenizer="word")
  old = vocabulary.load(f"{workdir}/vocabulary").symbols
  source = new_text(tmp_path, "b z y y rare x x z y\n")
  options = {"vocabulary_file": workdir, "extend_vocabulary": True}
  folder = prepare(tmp_path, source, min_freq=2, **options)
  symbols = vocabulary.load(str(folder)).symbols
  assert symbols == (*old, "y", "z", "x")
  assert layouts.read(folder, "train")[0][3:5] == ["y", "<unk>"]
  run_record.check_vocabulary(str(folder), workdir, may_be_extended=True)
  with pytest.raises(errors.UserError, match="is not the one that"):
    run_record.check_vocabulary(str(folder), workdir)
  limited = prepare(tmp_path, source, max_size=5, name="limited", **options)
  assert vocabulary.load(str(limited)).symbols == (*old, "y")
  assert prepare(tmp_path, source, min_freq=2, **options) == folder


def test_new_characters_and_bytes_get_the_ids_after_the_old_ones(tmp_path, run):
  workdir = run("abba\n", tokenizer="character")
  source = new_text(tmp_path, "bééc\n")
  with pytest.raises(errors.UserError, match="is not in the vocabulary"):
    prepare(tmp_path, source, vocabulary_file=workdir)
  options = {"vocabulary_file": workdir, "extend_vocabulary": True}
  folder = prepare(tmp_path, source, **options)
  assert vocabulary.load(str(folder)).symbols == ("a", "b", "\n", "é", "c")
  # 205 of all bytes, as enwik8 has them.
  some = tmp_path / "bytes.txt"
  some.write_text("10\n97\n")
  options["vocabulary_file"] = str(some)
  folder = prepare(tmp_path, source, name="bytes", tokenizer="byte", **options)
  tokens = np.load(folder / "train.npy").tolist()
  assert vocabulary.load(str(folder)).symbols[:2] == ("\n", "a")
  assert sorted({*tokens}) == [0, 2, 3, 4, 5]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({}, "needs the vocabulary to extend: --vocabulary_file=WORKDIR"),
    ({"vocabulary_file": "RUN", "max_size": 2}, "has 4; set a higher one"),
    (
      {"vocabulary_file": "x.json", "tokenizer": "subword"},
      "not subwords",
    ),
  ],
)
def test_what_cannot_be_extended_is_refused(tmp_path, run, options, message):
  workdir = run("a b b\n", tokenizer="word")
  if options.get("vocabulary_file") == "RUN":
    options = options | {"vocabulary_file": workdir}
  source = new_text(tmp_path, "b x\n")
  with pytest.raises(errors.UserError, match=message) as refusal:
    prepare(tmp_path, source, extend_vocabulary=True, **options)
  assert "\n" not in str(refusal.value)
  assert not (tmp_path / "data" / "text").exists()


def test_another_vocabulary_is_no_extension(tmp_path, run):
  workdir = run("a b b\n", tokenizer="word")
  source = new_text(tmp_path, "b x\n")
  folder = prepare(tmp_path, source, tokenizer="word")
  with pytest.raises(errors.UserError, match=f"--vocabulary_file={workdir} "):
    run_record.check_vocabulary(str(folder), workdir, may_be_extended=True)
