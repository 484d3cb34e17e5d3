"""Bad input and full disks: one clear line, and a whole dataset or none."""

import functools
import json
import os
import pathlib
import resource
import subprocess
import sys

import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.data_prep import encoding
from transformer_xl.data_prep import preparation
from transformer_xl.data_prep import source
from transformer_xl.data_prep import survey

prepare_text = functools.partial(layouts.prepare, "text")
remains = layouts.remains
ROOT = pathlib.Path(__file__).parents[2]
NOT_UTF8 = b"fine\nnot \xff fine\n"


def command(tmp_path, *arguments, preexec_fn=None):
  return subprocess.run(
    [
      sys.executable,
      "-m",
      "data_prep.main",
      f"--data_dir={tmp_path / 'data'}",
      *arguments,
    ],
    capture_output=True,
    text=True,
    check=False,
    preexec_fn=preexec_fn,
  )


def error_line(result):
  """Returns the only line that is no progress, of a command that failed."""
  lines = [x for x in result.stderr.splitlines() if "B/s" not in x]
  assert result.returncode == 2, result.stderr
  assert len(lines) == 1, result.stderr
  return lines[0]


def test_a_users_mistake_is_one_line_on_standard_error_and_status_two(tmp_path):
  result = command(tmp_path, "--dataset=text", "--source=/nowhere/at/all")
  assert error_line(result).startswith(
    "error: --source=/nowhere/at/all does not exist;"
  )
  assert result.stdout == ""


FULL_DISK = """
import errno, os, runpy
from transformer_xl.data_prep import preparation

def prepare(**options):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

preparation.prepare = prepare
runpy.run_module("data_prep.main", run_name="__main__", alter_sys=True)
"""


def test_a_full_disk_is_no_mistake_of_the_user_and_named_by_its_folder():
  """Engines start a command again after another status than 2."""
  result = subprocess.run(
    [sys.executable, "-c", FULL_DISK, "--dataset=recall", "--data_dir=there"],
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.stderr == (
    "error: No space left on device at there; fix that and run the same "
    "command again.\n"
  )
  assert result.returncode == 1


def test_a_reader_that_leaves_ends_the_description_without_a_word(tmp_path):
  source = tmp_path / "lines.txt"
  source.write_text("".join(f"{n}\n" for n in range(3000)))
  prepare_text(tmp_path, source)
  reader, writer = os.pipe()
  os.close(reader)
  result = subprocess.run(
    [
      *(sys.executable, "-m", "data_prep.main", "--describe"),
      *("--dataset=text", f"--data_dir={tmp_path / 'data'}"),
    ],
    stdout=writer,
    stderr=subprocess.PIPE,
    check=False,
  )
  os.close(writer)
  assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.some(3)
@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--dataset=pbt"], "|stories>; did you mean ptb?"),
    (["--dataset=text", "--tokenizer=unigram"], "<byte|character|word|subword"),
    (["--dataset=text", "--sorce=a"], "Did you mean: source"),
    (["--dataset=text", "--min_freq=0"], "--min_freq=0"),
    (["--dataset=text", "--source=a.txt", "b.txt"], "'b.txt' belongs to no"),
    ([], "error: name a corpus: --dataset=text --source=FOLDER for your own"),
  ],
)
def test_a_mistake_in_the_flags_is_one_line_and_status_two(
  tmp_path, arguments, message
):
  assert message in error_line(command(tmp_path, *arguments))


def test_a_dataset_is_described_by_its_name_alone(tmp_path):
  (tmp_path / "text.txt").write_text("some text\n" * 99)
  prepared = command(
    tmp_path,
    *("--dataset=text", f"--source={tmp_path}/text.txt", "--name=mine"),
  )
  assert prepared.returncode == 0, prepared.stderr
  assert prepared.stdout == f"{tmp_path / 'data' / 'mine'} is ready\n"
  shown = command(tmp_path, "--name=mine", "--describe")
  assert shown.returncode == 0, shown.stderr
  assert "/mine: text, a token is a byte" in shown.stdout


def test_help_begins_with_your_own_text_and_names_no_folder_here(tmp_path):
  result = command(tmp_path, "--help")
  assert (result.returncode, result.stderr) == (0, "")
  shown = result.stdout
  assert "--dataset=text --source=~/books --name=books\n" in shown
  assert "data_prep/main.py:" not in shown
  assert "\nFlags\n  --data_dir: " in shown


def test_a_corpus_may_be_written_with_other_hyphens_and_capitals(tmp_path):
  wrong = command(tmp_path, "--dataset=WikiText-2", "--source=/nowhere")
  assert "--source=/nowhere does not exist" in error_line(wrong)


def test_data_go_to_the_folder_of_training_and_bpe_is_subwords(tmp_path):
  (tmp_path / "text.txt").write_text("some text\n" * 99)
  subprocess.run(
    [
      *(sys.executable, "-m", "data_prep.main", "--dataset=text"),
      *("--source=text.txt", "--name=mine", "--tokenizer=bpe"),
      "--max_size=300",
    ],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    check=True,
    capture_output=True,
  )
  folder = tmp_path / load.default().data.dir / "mine"
  meta = json.loads((folder / "meta.json").read_text())
  assert meta["tokenizer"]["kind"] == "subword"


def test_text_that_is_not_utf8_is_refused_with_its_place(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(NOT_UTF8)
  for kind in ("word", "character"):
    with pytest.raises(errors.UserError, match="byte 0xff at offset 9"):
      prepare_text(tmp_path, path, tokenizer=kind)
  with pytest.raises(errors.UserError, match="byte 0xff at offset 9"):
    prepare_text(tmp_path, path, tokenizer="subword", max_size=300)
  assert remains(tmp_path) == []


def test_text_that_is_not_utf8_is_fine_as_bytes(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(NOT_UTF8)
  folder = prepare_text(tmp_path, path, **layouts.WHOLE)
  assert (folder / "train.npy").read_bytes().endswith(NOT_UTF8)


def test_an_empty_file_is_refused(tmp_path):
  path = tmp_path / "a.txt"
  path.touch()
  with pytest.raises(errors.UserError, match=r"train split of .* is empty"):
    prepare_text(tmp_path, path)
  assert remains(tmp_path) == []


def test_a_single_byte_is_refused_since_it_predicts_nothing(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"a")
  with pytest.raises(errors.UserError, match="has 1 tokens"):
    prepare_text(tmp_path, path, **layouts.WHOLE)
  assert remains(tmp_path) == []


def test_one_gigantic_line_is_cut_between_words(tmp_path, monkeypatch):
  layouts.small_pieces(monkeypatch, block=16, longest=64)
  path = tmp_path / "a.txt"
  path.write_text("wort \u00fc " * 500)
  folder = prepare_text(tmp_path, path, tokenizer="word", **layouts.WHOLE)
  tokens, documents = layouts.read(folder, "train")
  assert tokens == ["wort", "\u00fc"] * 500 + ["<eos>"]
  assert documents == [0]


def test_one_gigantic_word_is_text_for_bytes_and_characters_only(
  tmp_path, monkeypatch
):
  layouts.small_pieces(monkeypatch, block=16, longest=64)
  path = tmp_path / "a.txt"
  text = "\u00fc\U0001f600x" * 100
  path.write_text(text)
  with pytest.raises(errors.UserError, match="no white space in the"):
    prepare_text(tmp_path, path, tokenizer="word", **layouts.WHOLE)
  folder = prepare_text(tmp_path, path, tokenizer="character", **layouts.WHOLE)
  assert layouts.read(folder, "train")[0] == list(text)


def limit_file_size():
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"some text\n" * 50_000)
  arguments = ("--dataset=text", f"--source={path}")
  result = command(tmp_path, *arguments, preexec_fn=limit_file_size)
  line = error_line(result)
  assert line.startswith(f"error: {tmp_path / 'data'}: File too large;")
  assert line.endswith("run the same command again.")
  assert remains(tmp_path) == []
  prepare_text(tmp_path, path)
  assert remains(tmp_path) == ["text"]


@pytest.mark.parametrize(
  ("content", "split"), [(b"more text\n", "train"), (b"more text\n", "test")]
)
def test_text_that_changes_while_it_is_read_is_refused(
  tmp_path, monkeypatch, content, split
):
  path = tmp_path / "a.txt"
  path.write_bytes(b"some text\n" * 99)
  genuine = encoding.write_split

  def write_split(corpus, name, *arguments):
    entry = genuine(corpus, name, *arguments)
    if name == split:
      with open(path, "ab") as file:
        file.write(content)
    return entry

  with monkeypatch.context() as patch:
    patch.setattr(encoding, "write_split", write_split)
    with pytest.raises(errors.UserError, match=r"a\.txt changed while it was"):
      prepare_text(tmp_path, path)
  assert remains(tmp_path) == []
  prepare_text(tmp_path, path)


def test_text_that_grows_under_an_old_date_is_refused(tmp_path, monkeypatch):
  path = tmp_path / "a.txt"
  path.write_bytes(b"some text\n" * 99)
  monkeypatch.setattr(source, "fingerprint", lambda paths: "the same")
  genuine = survey.run

  def run(corpus, **options):
    found = genuine(corpus, **options)
    path.write_bytes(b"some more text\n" * 99)
    return found

  monkeypatch.setattr(survey, "run", run)
  with pytest.raises(errors.UserError, match=r"a\.txt changed while it was"):
    prepare_text(tmp_path, path, **layouts.WHOLE)


def test_a_dataset_may_be_asked_for_in_other_words(tmp_path, monkeypatch):
  source = layouts.write_files(
    tmp_path / "source", {f"{i:02d}.txt": b"one two\n" for i in range(99)}
  )
  folder = prepare_text(tmp_path, source)
  before = (folder / "meta.json").read_bytes()
  monkeypatch.chdir(tmp_path)
  for path, options in (
    ("source", {}),
    ("./source", {"tokenizer": "byte"}),
    (f"{source}/*.txt", {"valid_fraction": 0.05}),
    ("../" + tmp_path.name + "/source", {"extend_vocabulary": False}),
  ):
    assert prepare_text(tmp_path, path, **options) == folder
  for options in ({"tokenizer": "word"}, {"valid_fraction": 0.1}):
    with pytest.raises(errors.UserError, match="holds something else"):
      prepare_text(tmp_path, source, **options)
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare_text(tmp_path, f"{source}/0*.txt")
  assert (folder / "meta.json").read_bytes() == before


def test_names_of_files_need_not_be_unicode(tmp_path):
  source = tmp_path / os.fsdecode(b"mine\xff")
  files = {os.fsdecode(b"a\xff.txt"): b"one two\n" * 99}
  layouts.write_files(source, files)
  name = os.fsdecode(b"text\xff")
  arguments = ("--dataset=text", f"--source={source}", f"--name={name}")
  result = command(tmp_path, *arguments)
  assert result.returncode == 0, result.stderr
  assert result.stdout.endswith("text\\udcff is ready\n")
  meta = layouts.meta(tmp_path / "data" / name)
  assert meta["request"]["source"] == str(source)
  assert meta["name"] == name
  result = command(tmp_path, *arguments, "--describe")
  assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("content", ["[]", "[" * 100_000, '"text"', "{"])
def test_a_damaged_description_is_not_a_dataset(tmp_path, content):
  path = tmp_path / "a.txt"
  path.write_bytes(b"one\n" * 99)
  folder = prepare_text(tmp_path, path)
  (folder / "meta.json").write_text(content)
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare_text(tmp_path, path)


def test_another_dataset_is_never_overwritten(tmp_path):
  one, two = tmp_path / "1.txt", tmp_path / "2.txt"
  one.write_bytes(b"one\n" * 99)
  two.write_bytes(b"two\n" * 99)
  folder = prepare_text(tmp_path, one)
  before = (folder / "train.npy").read_bytes()
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare_text(tmp_path, two)
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare_text(tmp_path, one, tokenizer="word")
  assert prepare_text(tmp_path, one) == folder
  assert (folder / "train.npy").read_bytes() == before


def test_a_downloaded_dataset_is_not_downloaded_again(tmp_path, monkeypatch):
  data_dir = str(tmp_path / "data")
  options = {"dataset": "python_stdlib", "data_dir": data_dir}
  folder = preparation.prepare(**options)
  monkeypatch.setattr(preparation.catalog, "open_corpus", None)
  assert preparation.prepare(**options) == folder
  with pytest.raises(TypeError):  # Another request opens the corpus.
    preparation.prepare(**options, tokenizer="character")


def test_a_folder_that_the_finder_has_shown_is_empty(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"one\n" * 99)
  layouts.write_files(tmp_path / "data" / "text", {".DS_Store": b"\x00Bud1"})
  folder = prepare_text(tmp_path, path)
  assert sorted(p.suffix for p in folder.iterdir()) == [
    ".json",
    *[".npy"] * 6,
    ".txt",
  ]


def test_a_folder_of_the_users_is_never_overwritten(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"one\n" * 99)
  mine = tmp_path / "data" / "text" / "thesis.tex"
  layouts.write_files(mine.parent, {mine.name: b"my only copy"})
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare_text(tmp_path, path)
  assert mine.read_bytes() == b"my only copy"
