"""Bad input and full disks: one clear line, and a whole dataset or none."""

import functools
import os

import pytest

from tests import commands
from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.data_prep import encoding
from transformer_xl.data_prep import preparation
from transformer_xl.data_prep import source
from transformer_xl.data_prep import survey

prepare_text = functools.partial(layouts.prepare, "text")
remains = layouts.remains
NOT_UTF8 = b"fine\nnot \xff fine\n"


WRONG_FLAGS = [
  (["--dataset=pbt"], "|stories>; did you mean ptb?"),
  (["--dataset=text", "--tokenizer=unigram"], "<byte|character|word|subword"),
  (["--dataset=text", "--sorce=a"], "Did you mean: source"),
  (["--dataset=text", "--min_freq=0"], "--min_freq=0"),
  (["--dataset=text", "--source=a.txt", "b.txt"], "'b.txt' belongs to no"),
  ([], "error: name a corpus: --dataset=text --source=FOLDER for your own"),
]
NAME = os.fsdecode(b"text\xff")
NOT_UNICODE = os.fsdecode(b"mine\xff")
COMMAND = {"module": "data_prep.main", "apart": True}
COMMANDS = {
  **{
    f"wrong flags {index}": {"arguments": arguments}
    for index, (arguments, _) in enumerate(WRONG_FLAGS)
  },
  "no source": {"arguments": ["--dataset=text", "--source=/nowhere/at/all"]},
  "full disk": {
    "module": "tests.data_prep.full_disk",
    "arguments": ["--dataset=recall", "--data_dir=there"],
  },
  "large": {
    "arguments": [
      *("--dataset=text", "--source=large.txt", "--data_dir=full/data")
    ],
    "most_bytes": 100_000,
  },
  "lines": {"arguments": ["--dataset=text", "--source=lines.txt"]},
  "nobody reads": {
    "arguments": ["--dataset=text", "--describe"],
    "nobody_reads": True,
    "apart": False,
  },
  "mine": {"arguments": ["--dataset=text", "--source=text.txt", "--name=mine"]},
  "describe": {"arguments": ["--name=mine", "--describe"]},
  "help": {"arguments": ["--help"]},
  "other words": {"arguments": ["--dataset=WikiText-2", "--source=/nowhere"]},
  "bpe": {
    "arguments": [
      *("--dataset=text", "--source=text.txt", "--name=subwords"),
      *("--tokenizer=bpe", "--max_size=300"),
    ]
  },
  "not Unicode": {
    "arguments": ["--dataset=text", f"--source={NOT_UNICODE}", f"--name={NAME}"]
  },
  "describe not Unicode": {
    "arguments": ["--dataset=text", f"--name={NAME}", "--describe"]
  },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Where the commands run, one after another."""
  folder = tmp_path_factory.mktemp("commands")
  (folder / "text.txt").write_text("some text\n" * 99)
  (folder / "large.txt").write_text("some text\n" * 50_000)
  (folder / "lines.txt").write_text("".join(f"{n}\n" for n in range(3000)))
  files = {os.fsdecode(b"a\xff.txt"): b"one two\n" * 99}
  layouts.write_files(folder / NOT_UNICODE, files)
  return folder


@pytest.fixture(scope="module")
def results(folder):
  """What each command said, and its status."""
  where = COMMAND | {"folder": str(folder)}
  groups = [[where | case] for case in COMMANDS.values()]
  imported = [
    f"transformer_xl.data_prep.{name}" for name in ("describe", "preparation")
  ]
  found = commands.finished(groups, imported)
  return {name: one for name, (one,) in zip(COMMANDS, found, strict=True)}


def error_line(result):
  """Returns the only line that is no progress, of a command that failed."""
  lines = [x for x in result["stderr"].splitlines() if "B/s" not in x]
  assert result["status"] == 2, result["stderr"]
  assert len(lines) == 1, result["stderr"]
  return lines[0]


def test_a_users_mistake_is_one_line_on_standard_error_and_status_two(results):
  assert error_line(results["no source"]).startswith(
    "error: --source=/nowhere/at/all does not exist;"
  )
  assert results["no source"]["stdout"] == ""


def test_a_full_disk_is_no_mistake_of_the_user_and_named_by_its_folder(results):
  """Engines start a command again after another status than 2."""
  assert results["full disk"]["stderr"] == (
    "error: No space left on device at there; fix that and run the same "
    "command again.\n"
  )
  assert results["full disk"]["status"] == 1


def test_a_reader_that_leaves_ends_the_description_without_a_word(results):
  assert results["lines"]["status"] == 0, results["lines"]["stderr"]
  found = results["nobody reads"]
  assert (found["status"], found["stderr"]) == (1, "")


@pytest.mark.parametrize("index", range(len(WRONG_FLAGS)))
def test_a_mistake_in_the_flags_is_one_line_and_status_two(results, index):
  _, message = WRONG_FLAGS[index]
  assert message in error_line(results[f"wrong flags {index}"])


def test_a_dataset_is_described_by_its_name_alone(results):
  prepared, shown = results["mine"], results["describe"]
  assert prepared["status"] == 0, prepared["stderr"]
  assert prepared["stdout"] == "data/mine is ready\n"
  assert shown["status"] == 0, shown["stderr"]
  assert "/mine: text, a token is a byte" in shown["stdout"]


def test_help_begins_with_your_own_text_and_names_no_folder_here(results):
  result = results["help"]
  assert (result["status"], result["stderr"]) == (0, "")
  shown = result["stdout"]
  assert "--dataset=text --source=~/books --name=books\n" in shown
  assert "data_prep/main.py:" not in shown
  assert "\nFlags\n  --data_dir: " in shown


def test_a_corpus_may_be_written_with_other_hyphens_and_capitals(results):
  line = error_line(results["other words"])
  assert "--source=/nowhere does not exist" in line


def test_data_go_to_the_folder_of_training_and_bpe_is_subwords(folder, results):
  assert results["bpe"]["status"] == 0, results["bpe"]["stderr"]
  meta = layouts.meta(folder / load.default().data.dir / "subwords")
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


def test_a_full_disk_is_one_line_and_leaves_nothing(folder, results):
  line = error_line(results["large"])
  assert line.startswith("error: full/data: File too large;")
  assert line.endswith("run the same command again.")
  assert remains(folder / "full") == []
  prepare_text(folder / "full", folder / "large.txt")
  assert remains(folder / "full") == ["text"]


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


def test_names_of_files_need_not_be_unicode(folder, results):
  result = results["not Unicode"]
  assert result["status"] == 0, result["stderr"]
  assert result["stdout"].endswith("text\\udcff is ready\n")
  meta = layouts.meta(folder / "data" / NAME)
  assert meta["request"]["source"] == NOT_UNICODE
  assert meta["name"] == NAME
  shown = results["describe not Unicode"]
  assert shown["status"] == 0, shown["stderr"]


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
