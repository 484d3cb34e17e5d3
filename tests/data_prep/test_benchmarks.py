"""The published corpora: what is read of them, and that it is them."""

import os
import pathlib

import numpy as np
import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep.enwik8 import enwik8_dataset_builder
from transformer_xl.data_prep.ptb import ptb_dataset_builder as ptb
from transformer_xl.data_prep.text8 import text8_dataset_builder
from transformer_xl.data_prep.wikitext103 import (
  wikitext103_dataset_builder as wikitext103,
)

prepare = layouts.prepare


def counts(folder):
  meta = layouts.meta(folder)
  return {s: entry["num_tokens"] for s, entry in meta["splits"].items()}


def test_ptb_has_the_published_counts_and_order(tmp_path):
  folder = prepare("ptb", tmp_path, layouts.shared("ptb"))
  expected = {"train": 929_589, "valid": 73_760, "test": 82_430}
  assert counts(folder) == expected
  vocab = vocabulary.load(str(folder))
  assert vocab.size == 10_000
  first = "<eos> the <unk> n of to a in and 's"
  assert " ".join(vocab.symbols[:10]) == first
  tokens = np.load(folder / "test.npy", mmap_mode="r")
  assert (tokens.shape, tokens.dtype) == ((82_430,), np.uint16)
  text = (layouts.SHARED / "ptb" / "ptb.test.txt").read_text().lower()
  assert vocab.decode(tokens).split() == text.split()


def held_out_wikitext(tmp_path):
  """Returns a folder with WikiText-2's validation and test text only."""
  folder = layouts.shared("wikitext-2")
  names = ("valid.txt", "test.txt")
  files = {name: (folder / name).read_bytes() for name in names}
  return layouts.write_files(tmp_path / "held_out", files)


def test_wikitext2_without_its_training_text_is_refused(tmp_path):
  source = held_out_wikitext(tmp_path)
  with pytest.raises(
    errors.UserError, match=r"no wiki\.train\.tokens or train\.txt"
  ):
    prepare("wikitext2", tmp_path, source)
  assert not (tmp_path / "data" / "wikitext2").exists()


def test_wikitext_files_alone_are_text_with_an_end_marker_a_line(tmp_path):
  source = held_out_wikitext(tmp_path)
  folder = prepare("text", tmp_path, source, tokenizer="word")
  assert counts(folder) == {"valid": 217_646, "test": 245_569}


def test_wikitext_has_sixty_articles_for_validation_and_for_the_test():
  source = source_lib.Source(layouts.shared("wikitext-2"))
  for split in ("valid", "test"):
    pieces = list(wikitext103.Builder.read(source, f"{split}.txt"))
    text = (source.path / f"{split}.txt").read_bytes()
    assert len(pieces) == 60
    assert b"".join(piece.data for piece in pieces) == text


@pytest.fixture
def any_ptb(monkeypatch):
  """Takes any text for the Penn Treebank."""
  monkeypatch.setattr(ptb.Builder, "PUBLISHED", {None: {}})


@pytest.mark.usefixtures("any_ptb")
@pytest.mark.parametrize("layout", ["archive", "folder", "flat"])
def test_ptb_is_read_from_its_archive_and_from_folders(tmp_path, layout):
  members = layouts.ptb_members()
  if layout == "archive":
    source = layouts.write_tar(tmp_path / "simple-examples.tgz", members)
  else:
    flat = {pathlib.Path(name).name: data for name, data in members.items()}
    chosen = flat if layout == "flat" else members
    source = layouts.write_files(tmp_path / "files", chosen)
  folder = prepare("ptb", tmp_path, source)
  expected = ["the", "<unk>", "n", "<eos>", "a", "cat", "<eos>"]
  assert layouts.read(folder, "test") == (expected, [0])
  # Four times "the", three times "cat", and <eos> first whatever its count.
  assert vocabulary.load(str(folder)).symbols[:3] == ("<eos>", "the", "cat")


def test_text_with_other_counts_is_not_taken_for_a_benchmark(tmp_path):
  source = layouts.write_tar(tmp_path / "a.tgz", layouts.ptb_members())
  with pytest.raises(errors.UserError, match="train split has 10 words, not"):
    prepare("ptb", tmp_path, source)
  assert list((tmp_path / "data").iterdir()) == []


@pytest.fixture
def any_wikitext(monkeypatch):
  """Takes any text for WikiText-103."""
  monkeypatch.setattr(wikitext103.Builder, "PUBLISHED", {None: {}})


@pytest.mark.usefixtures("any_wikitext")
def test_wikitext_articles_are_documents(tmp_path):
  source = layouts.write_zip(tmp_path / "w.zip", layouts.wikitext_members())
  folder = prepare("wikitext103", tmp_path, source)
  tokens, documents = layouts.read(folder, "train")
  assert [tokens[i : i + 3] for i in documents] == [
    ["<eos>", "=", "One"],
    ["=", "Two", "="],
  ]
  assert tokens.count("<eos>") == layouts.WIKITEXT["train"].count("\n")


@pytest.mark.usefixtures("any_wikitext")
def test_a_word_that_the_training_text_of_wikitext103_lacks_is_named(
  tmp_path, monkeypatch
):
  text = layouts.WIKITEXT["valid"].replace("Two", "Three")
  monkeypatch.setitem(layouts.WIKITEXT, "valid", text)
  source = layouts.write_zip(tmp_path / "w.zip", layouts.wikitext_members())
  with pytest.raises(errors.UserError, match=r"valid.*'Three' at position 2"):
    prepare("wikitext103", tmp_path, source)


@pytest.mark.usefixtures("any_wikitext")
def test_articles_do_not_depend_on_how_the_text_is_cut(tmp_path, monkeypatch):
  source = source_lib.Source(
    layouts.write_files(tmp_path, layouts.wikitext_members())
  )
  name = "wikitext-103/wiki.train.tokens"
  whole = list(wikitext103.Builder.read(source, name))
  assert len(whole) == 2
  for block in (1, 7, 30):
    layouts.small_pieces(monkeypatch, block=block, longest=64)
    assert list(wikitext103.Builder.read(source, name)) == whole


@pytest.fixture
def small_enwik8(monkeypatch):
  """Cuts enwik8 after 80, 90 and 100 bytes."""
  cuts = {"train": (0, 80), "valid": (80, 90), "test": (90, 100)}
  monkeypatch.setattr(enwik8_dataset_builder, "SPLITS", cuts)
  data = (b"aab\nc " * 20)[:100]
  published = {"bytes": data, "newline_free": data.replace(b"\n", b"")}
  symbols = {m: {"symbols": [len(set(d))]} for m, d in published.items()}
  monkeypatch.setattr(enwik8_dataset_builder.Builder, "PUBLISHED", symbols)
  return data


def test_enwik8_is_all_bytes_or_the_published_stream(tmp_path, small_enwik8):
  source = layouts.write_zip(tmp_path / "e.zip", {"enwik8": small_enwik8})
  for mode, size in {"bytes": 5, "newline_free": 4}.items():
    folder = prepare("enwik8", tmp_path, source, mode=mode, name=mode)
    vocab = vocabulary.load(str(folder))
    assert (vocab.unit, vocab.size) == ("byte", size)
    assert vocab.symbol(0) == "a"
    text = b"".join(
      vocab.decode_bytes(np.load(folder / f"{split}.npy"))
      for split in ("train", "valid", "test")
    )
    newlines = mode == "bytes"
    assert text == (
      small_enwik8 if newlines else small_enwik8.replace(b"\n", b"")
    )
    meta = layouts.meta(folder)
    assert meta["mode"] == mode
    # Bits per character are per symbol of the stream, in either mode.
    train = meta["splits"]["train"]
    assert train["num_bytes"] == train["num_tokens"]
    assert train["num_tokens"] == (80 if newlines else 80 - 13)


def test_enwik8_of_another_length_is_refused(tmp_path):
  path = tmp_path / "enwik8"
  path.write_bytes(b"<mediawiki>\n")
  with pytest.raises(errors.UserError, match="12 bytes, not 90000000"):
    prepare("enwik8", tmp_path, path)


@pytest.mark.usefixtures("small_enwik8")
def test_text8_keeps_every_character(tmp_path, monkeypatch):
  published = {None: {"symbols": [3]}}
  monkeypatch.setattr(text8_dataset_builder.Builder, "PUBLISHED", published)
  path = tmp_path / "text8"
  path.write_bytes(b" a b" * 25)
  folder = prepare("text8", tmp_path, path)
  vocab = vocabulary.load(str(folder))
  assert vocab.symbols == (" ", "a", "b")
  assert vocab.decode(np.load(folder / "valid.npy")) == " a b a b a"


@pytest.mark.parametrize("dataset", ["enwik8", "lm1b"])
def test_an_unknown_mode_is_refused(tmp_path, dataset):
  with pytest.raises(errors.UserError, match="--mode=best is none of"):
    prepare(dataset, tmp_path, tmp_path, mode="best")


def test_an_unknown_dataset_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match="no dataset 'wiki'"):
    prepare("wiki", tmp_path, None)


def test_the_standard_library_is_found_and_split_by_file(tmp_path):
  library = layouts.write_files(
    tmp_path / "lib",
    {
      **{f"module{i}.py": b"x = %d\n" % i for i in range(200)},
      "test/test_x.py": b"no\n",
      "site-packages/other.py": b"no\n",
      "notes.txt": b"no\n",
    },
  )
  folder = prepare("python_stdlib", tmp_path, library)
  meta = layouts.meta(folder)
  documents = {s: e["num_documents"] for s, e in meta["splits"].items()}
  assert sum(documents.values()) == 200
  assert set(documents) == {"train", "valid", "test"}
  assert min(documents.values()) > 0
  assert meta["vocabulary"]["size"] == 256
  again = prepare("python_stdlib", tmp_path, library, name="again")
  assert (folder / "train.npy").read_bytes() == (
    again / "train.npy"
  ).read_bytes()


def test_the_split_of_a_file_does_not_need_a_name_in_unicode(
  tmp_path, monkeypatch
):
  library = tmp_path / "lib"
  for number in range(200):
    name = os.fsencode(f"module{number}_") + b"\xff.py"
    layouts.write_files(library, {os.fsdecode(name): b"x = %d\n" % number})
  monkeypatch.setenv("HOME", str(tmp_path))
  folder = prepare("python_stdlib", tmp_path, "~/lib")
  entries = layouts.meta(folder)["splits"].values()
  assert sum(entry["num_documents"] for entry in entries) == 200


def test_an_empty_source_is_not_the_current_folder(tmp_path):
  with pytest.raises(errors.UserError, match="--source is empty"):
    prepare("ptb", tmp_path, "")


def test_the_running_pythons_library_is_enough_to_train_on(tmp_path):
  folder = prepare("python_stdlib", tmp_path, None)
  found = counts(folder)
  assert found["train"] > 2_000_000
  assert min(found["valid"], found["test"]) > 20_000
