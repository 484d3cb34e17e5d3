"""PG-19: books in folders, and words as their publisher counts them."""

import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.data_prep.pg19 import pg19_dataset_builder as pg19


@pytest.fixture
def small(monkeypatch):
  """Takes six books for PG-19."""
  monkeypatch.setattr(pg19, "NUM_BOOKS", (3, 1, 2))
  monkeypatch.setattr(pg19, "NUM_WORDS", (9, 3, 6))


def bucket(tmp_path):
  return layouts.write_files(tmp_path / "bucket", layouts.pg19_members())


@pytest.mark.usefixtures("small")
def test_a_book_is_a_document_and_nothing_of_it_is_changed(tmp_path):
  folder = layouts.prepare("pg19", tmp_path, bucket(tmp_path), tokenizer="byte")
  text = layouts.everything(folder)
  assert text["test"] == b"Book 41\r\n\n ends.\nBook 9\r\n\n ends."
  assert text["valid"] == b"Book 8\r\n\n ends."
  entry = layouts.meta(folder)["splits"]["train"]
  assert entry["num_documents"] == 3


@pytest.mark.usefixtures("small")
def test_tokens_are_as_many_subwords_as_in_the_paper(tmp_path):
  folder = layouts.prepare("pg19", tmp_path, bucket(tmp_path))
  meta = layouts.meta(folder)
  assert meta["unit"] == "subword"
  assert meta["tokenizer"]["kind"] == "subword"
  assert vocabulary.load(str(folder)).size <= 32_000
  few = layouts.prepare(
    "pg19", tmp_path, bucket(tmp_path), name="few", max_size=258
  )
  assert vocabulary.load(str(few)).size == 258


def test_perplexity_per_word_is_by_the_published_number(tmp_path, monkeypatch):
  """Also where another way of counting words gives a few more."""
  monkeypatch.setattr(pg19, "NUM_BOOKS", (100, 1, 1))
  monkeypatch.setattr(pg19, "NUM_WORDS", (299, 3, 3))
  books = {f"train/{n}.txt": b"a b\nc" for n in range(100)}
  held_out = {f"{s}/1.txt": b"a b c" for s in ("validation", "test")}
  source = layouts.write_files(tmp_path / "bucket", books | held_out)
  folder = layouts.prepare("pg19", tmp_path, source, tokenizer="byte")
  splits = layouts.meta(folder)["splits"]
  assert splits["train"]["num_words"] == 299  # There are 300.
  assert splits["test"]["num_words"] == 3


@pytest.mark.usefixtures("small")
def test_other_books_are_refused(tmp_path, monkeypatch):
  source = bucket(tmp_path)
  monkeypatch.setattr(pg19, "NUM_WORDS", (9, 3, 7))
  with pytest.raises(errors.UserError, match="test split has 6 words between"):
    layouts.prepare("pg19", tmp_path, source, tokenizer="byte")
  (source / "train/40.txt").unlink()
  with pytest.raises(errors.UserError, match="train has 2 books, not 3"):
    layouts.prepare("pg19", tmp_path, source)
  assert layouts.remains(tmp_path) == []


def test_without_a_copy_the_command_that_makes_one_is_named(tmp_path):
  with pytest.raises(errors.UserError, match="gcloud storage cp -r gs://deep"):
    layouts.prepare("pg19", tmp_path, None)
