"""The TFDS builders: the same text as the token files, without TensorFlow."""

import csv
import itertools
import pathlib

import pytest

from tests.data_prep import layouts
from transformer_xl.config import registry
from transformer_xl.data_prep import builder as builder_lib
from transformer_xl.data_prep import catalog
from transformer_xl.data_prep.enwik8 import enwik8_dataset_builder
from transformer_xl.data_prep.pg19 import pg19_dataset_builder

tfds = pytest.importorskip("tensorflow_datasets")
tfds.disable_progress_bar()

FOLDER = pathlib.Path(builder_lib.__file__).parent


def build(name, tmp_path, manual_dir):
  """Returns the records of each split, read back from array_record."""
  builder = catalog.builder_class(name)(
    data_dir=str(tmp_path / "tfds"), file_format="array_record"
  )
  config = tfds.download.DownloadConfig(
    manual_dir=manual_dir and str(manual_dir), try_download_gcs=False
  )
  builder.download_and_prepare(download_config=config)
  assert builder.name == name
  assert builder.info.description.strip()
  read = tfds.builder_from_directory(builder.data_dir)
  return {
    split: [example["text"] for example in read.as_data_source(split)]
    for split in read.info.splits
  }


@pytest.mark.parametrize("name", [*registry.datasets, "text"])
def test_published_checksums_are_the_ones_that_are_verified(name):
  with open(FOLDER / name / "checksums.tsv", newline="") as file:
    rows = [tuple(row) for row in csv.reader(file, delimiter="\t")]
  assert rows == [
    (url, str(archive.size), archive.sha256, archive.filename)
    for archive in catalog.builder_class(name).ARCHIVES
    if archive.sha256 is not None
    for url in archive.urls
  ]
  assert catalog.builder_class(name).name == name


def test_ptb_records_join_to_the_text(tmp_path):
  source = layouts.write_files(tmp_path / "manual", layouts.ptb_members())
  found = build("ptb", tmp_path, source)
  assert {s: b"".join(r).decode() for s, r in found.items()} == layouts.PTB


def test_wikitext_records_are_articles(tmp_path):
  source = layouts.write_files(tmp_path / "manual", layouts.wikitext_members())
  found = build("wikitext2", tmp_path, source)
  joined = {s: b"".join(r).decode() for s, r in found.items()}
  assert joined == layouts.WIKITEXT
  assert len(found["train"]) == 2


def test_lm1b_records_are_sentences(tmp_path):
  source = layouts.write_files(tmp_path / "manual", layouts.lm1b_members())
  found = build("lm1b", tmp_path, source)
  assert found["train"] == [b"a cat .", b"a dog ran .", b"The end ."]
  assert found["test"] == found["valid"] == [b"a cat ran .", b"a bird ."]


def test_pg19_records_are_books(tmp_path, monkeypatch):
  monkeypatch.setattr(pg19_dataset_builder, "NUM_BOOKS", (3, 1, 2))
  source = layouts.write_files(tmp_path / "manual", layouts.pg19_members())
  found = build("pg19", tmp_path, source)
  assert found["test"] == [b"Book 41\r\n\n ends.", b"Book 9\r\n\n ends."]
  assert {s: len(r) for s, r in found.items()} == {
    "train": 3,
    "valid": 1,
    "test": 2,
  }


def test_own_text_records_are_documents_in_order(tmp_path):
  files = {f"{i:02d}.txt": b"document %02d\r\n\xff" % i for i in range(99)}
  source = layouts.write_files(tmp_path / "manual", files)
  found = build("text", tmp_path, source)
  every = itertools.chain.from_iterable(found.values())
  assert sorted(every) == sorted(files.values())
  assert found["train"] == sorted(found["train"])


def test_the_running_pythons_library_needs_no_source(tmp_path):
  found = build("python_stdlib", tmp_path, None)
  assert set(found) == {"train", "valid", "test"}
  assert len(found["train"]) > 100


def test_enwik8_and_text8_records_join_to_the_bytes(tmp_path, monkeypatch):
  cuts = {"train": (0, 5), "valid": (5, 7), "test": (7, 9)}
  monkeypatch.setattr(enwik8_dataset_builder, "SPLITS", cuts)
  for name in ("enwik8", "text8"):
    source = layouts.write_files(tmp_path / name, {name: b"a\nb \xfcdefg"})
    found = build(name, tmp_path, source)
    assert {s: b"".join(r) for s, r in found.items()} == {
      "train": b"a\nb \xfc",
      "valid": b"de",
      "test": b"fg",
    }
