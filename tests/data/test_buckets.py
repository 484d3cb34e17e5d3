"""Token files in a bucket: copied once, checked, and copied again."""

import hashlib
import os

import numpy as np
import pytest
from etils import epath

from tests import corpus
from tests import emulator
from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data import token_file

LENGTH = corpus.TOKENS["train"]
TEXT = corpus.text(LENGTH, seed=LENGTH)


@pytest.fixture
def dataset(bucket, tmp_path, monkeypatch):
  """A dataset in a bucket, of which the cache has nothing."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  corpus.write(tmp_path)
  address = f"{bucket}/data/{corpus.NAME}"
  emulator.upload(tmp_path / corpus.NAME, address)
  return address


def copies(tmp_path):
  """The copies of the tokens."""
  return sorted((tmp_path / "cache").rglob("train.npy"))


def test_a_split_is_copied_once(dataset, tmp_path):
  first = token_file.open_split(dataset, "train")
  np.testing.assert_array_equal(first.tokens, TEXT)
  assert isinstance(first.tokens, np.memmap)
  # Another process has nothing to copy: there is nothing any more.
  for name in ("train.npy", "train_documents.npy"):
    (epath.Path(dataset) / name).unlink()
  storage.forget(dataset)
  second = token_file.open_split(dataset, "train")
  np.testing.assert_array_equal(second.tokens, TEXT)
  np.testing.assert_array_equal(second.documents, first.documents)
  assert second.sha256 == first.sha256
  assert len(copies(tmp_path)) == 1


@pytest.mark.parametrize(
  ("name", "content"),
  [
    ("train.npy", b""),
    ("train.npy", np.lib.format.magic(1, 0) + b"damaged"),
    ("train_documents.npy", b"damaged"),
  ],
)
def test_a_damaged_copy_is_replaced(dataset, tmp_path, name, content):
  intact = token_file.open_split(dataset, "train")
  [path] = (tmp_path / "cache").rglob(name)
  path.write_bytes(content)
  again = token_file.open_split(dataset, "train")
  np.testing.assert_array_equal(again.tokens, TEXT)
  np.testing.assert_array_equal(again.documents, intact.documents)
  expected = (epath.Path(dataset) / name).read_bytes()
  assert path.read_bytes() == expected


def test_a_copy_with_another_token_is_replaced(dataset, tmp_path):
  token_file.open_split(dataset, "train")
  [path] = copies(tmp_path)
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)
  again = token_file.open_split(dataset, "train")
  np.testing.assert_array_equal(again.tokens, TEXT)


def test_documents_of_another_dataset_with_the_same_tokens_are_replaced(
  dataset, tmp_path
):
  intact = token_file.open_split(dataset, "train").documents
  [path] = copies(tmp_path)
  starts = path.with_name("train_documents.npy")
  np.save(starts, np.zeros(1, np.int64))
  again = token_file.open_split(dataset, "train")
  np.testing.assert_array_equal(again.documents, intact)
  assert len(intact) > 1


def test_text_that_changed_in_the_bucket_is_another_copy(dataset, tmp_path):
  old = token_file.open_split(dataset, "train")
  folder = tmp_path / corpus.NAME
  np.save(folder / "train.npy", TEXT[::-1])
  digest = hashlib.sha256((folder / "train.npy").read_bytes()).hexdigest()
  with corpus.changed_meta(folder) as meta:
    meta["splits"]["train"]["sha256"] = digest
  emulator.upload(folder, dataset)
  storage.forget(dataset)
  new = token_file.open_split(dataset, "train")
  np.testing.assert_array_equal(new.tokens, TEXT[::-1])
  np.testing.assert_array_equal(old.tokens, TEXT)  # A run may still read it.
  assert len(copies(tmp_path)) == 2


def test_damage_in_the_bucket_is_named_by_its_address(dataset):
  path = epath.Path(dataset) / "train.npy"
  path.write_bytes(path.read_bytes()[:-1] + b"\0")
  parent = os.path.dirname(dataset)
  message = (
    f"^{dataset}/train.npy has the SHA-256 .*; delete {dataset} and prepare it "
    f"again: .* --data_dir={parent}$"
  )
  with pytest.raises(errors.UserError, match=message):
    token_file.open_split(dataset, "train")


def test_a_missing_file_is_named_by_its_address(dataset):
  (epath.Path(dataset) / "train_documents.npy").unlink()
  with pytest.raises(errors.UserError, match=f"{dataset}/train_documents.npy"):
    token_file.open_split(dataset, "train")


def test_a_missing_dataset_is_answered_with_the_nearest(dataset):
  parent = os.path.dirname(dataset)
  message = (
    f"^there is no prepared data in {parent}/tinny; did you mean "
    f"{corpus.NAME}\\? Otherwise prepare it: .* --data_dir={parent}$"
  )
  with pytest.raises(errors.UserError, match=message):
    token_file.read_meta(f"{parent}/tinny")


def test_a_bucket_that_refuses_is_no_missing_dataset(dataset, monkeypatch):
  monkeypatch.setattr(storage.fsspec, "filesystem", _refusing)
  with pytest.raises(errors.UserError, match="needs the role roles/storage"):
    token_file.read_meta(f"{dataset}/other")


def _refusing(protocol):
  raise OSError(f"Forbidden: {protocol}")
