"""A dataset in a bucket is whole or none, and equals the one on disk."""

import functools
import json

import numpy as np
import pytest
from etils import epath

from tests import emulator
from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data import token_file
from transformer_xl.data_prep import describe
from transformer_xl.data_prep import preparation
from transformer_xl.data_prep.lm1b import lm1b_dataset_builder

prepare = functools.partial(preparation.prepare, dataset="text")


@pytest.fixture
def source(tmp_path):
  """Twenty documents."""
  documents = {f"{i:02d}.txt": b"one two three\n" * (i + 1) for i in range(20)}
  return str(layouts.write_files(tmp_path / "source", documents))


def contents(folder):
  return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_it_is_the_dataset_that_a_folder_gets(bucket, tmp_path, source):
  folder = prepare(data_dir=bucket, source=source)
  assert str(folder) == f"{bucket}/text"
  expected = contents(prepare(data_dir=str(tmp_path / "data"), source=source))
  assert contents(folder) == expected
  assert len(expected) == 8


def test_documents_are_those_of_the_dataset_with_the_same_tokens(
  bucket, tmp_path
):
  path = tmp_path / "lines.txt"
  path.write_text("".join(f"line {i % 4}\n" for i in range(40)))
  found = {}
  for number in (0, 1):
    folder = prepare(
      data_dir=bucket,
      source=str(path),
      name=f"from_{number}",
      document_start=f"^line {number}",
      **layouts.WHOLE,
    )
    found[number] = token_file.open_split(str(folder), "train")
    with epath.Path(folder / "train_documents.npy").open("rb") as stored:
      np.testing.assert_array_equal(found[number].documents, np.load(stored))
  assert found[0].sha256 == found[1].sha256
  assert not np.array_equal(found[0].documents, found[1].documents)


def test_what_is_prepared_is_left_as_it_is(bucket, source, monkeypatch):
  folder = prepare(data_dir=bucket, source=source)
  storage.forget(str(folder))
  with monkeypatch.context() as patch:
    patch.setattr(storage, "publish", None)
    assert prepare(data_dir=bucket, source=source) == folder
  before = contents(folder)
  with pytest.raises(errors.UserError, match=f"^{folder} holds something else"):
    prepare(data_dir=bucket, source=source, tokenizer="word")
  assert contents(folder) == before


def test_other_files_are_not_overwritten(bucket, source):
  (epath.Path(bucket) / "text" / "notes.md").write_text("mine")
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare(data_dir=bucket, source=source)


def test_an_interrupted_upload_is_no_dataset(
  bucket, tmp_path, source, monkeypatch
):
  address, copy = f"{bucket}/text", storage.shutil.copyfileobj

  def copy_some(file, target):
    if len(storage.names(address)) == 4:
      raise OSError("connection lost")
    copy(file, target)

  with monkeypatch.context() as patch:
    patch.setattr(storage.shutil, "copyfileobj", copy_some)
    with pytest.raises(errors.UserError, match="connection lost"):
      prepare(data_dir=bucket, source=source)
  assert len(storage.names(address)) in (4, 5)  # The last one is empty.
  # Not for this process, which has the whole copy, nor for another one.
  for _ in range(2):
    with pytest.raises(errors.UserError, match="there is no prepared data"):
      token_file.read_meta(address)
    storage.forget(address)
  folder = prepare(data_dir=bucket, source=source)
  expected = prepare(data_dir=str(tmp_path / "data"), source=source)
  assert contents(folder) == contents(expected)


def test_it_is_described_as_on_disk(bucket, tmp_path, source):
  folder = prepare(data_dir=bucket, source=source)
  expected = prepare(data_dir=str(tmp_path / "data"), source=source)
  text = describe.describe(folder).replace(str(folder), str(expected))
  assert text == describe.describe(expected)


@pytest.mark.parametrize("place", ["run", "run/vocabulary/vocabulary.txt"])
def test_the_vocabulary_of_a_run_in_a_bucket_is_used(
  bucket, tmp_path, source, place
):
  words = prepare(
    data_dir=str(tmp_path / "data"), source=source, tokenizer="word"
  )
  emulator.upload(words, f"{bucket}/run/vocabulary")
  options = {"source": source, "vocabulary_file": f"{bucket}/{place}"}
  folder = prepare(data_dir=bucket, **options)
  found, expected = (
    json.loads((path / "meta.json").read_text()) for path in (folder, words)
  )
  assert found["vocabulary"] == expected["vocabulary"]
  assert found["unit"] == "word"


def test_what_is_unpacked_does_not_go_to_the_bucket(
  bucket, tmp_path, monkeypatch
):
  monkeypatch.setattr(lm1b_dataset_builder, "PUBLISHED", {})
  members = layouts.lm1b_members()
  archive = str(layouts.write_tar(tmp_path / "lm.tar.gz", members))
  options = {"dataset": "lm1b", "source": archive, "min_freq": 1}
  folder = prepare(data_dir=bucket, **options)
  expected = prepare(data_dir=str(tmp_path / "data"), **options)
  assert contents(folder) == contents(expected)
  assert not [*(storage.cache() / "downloads").iterdir()]


@pytest.mark.usefixtures("bucket_server")
def test_a_bucket_that_is_not_there_is_named_before_the_work(source):
  message = (
    "^cannot write to gs://none-such/text.*buckets create gs://none-such"
  )
  with pytest.raises(errors.UserError, match=message):
    prepare(data_dir="gs://none-such", source=source + "/none")
