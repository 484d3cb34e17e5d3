"""Token files: intact ones, and damaged ones."""

import shutil

import numpy as np
import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.data import token_file


def test_a_prepared_split_opens_as_it_was_written(tmp_path):
  folder = f"{corpus.write(tmp_path)}/{corpus.NAME}"
  file = token_file.open_split(folder, "valid")
  length = corpus.TOKENS["valid"]
  np.testing.assert_array_equal(file.tokens, corpus.text(length, seed=length))
  assert isinstance(file.tokens, np.memmap)
  assert file.meta["num_bytes"] == length
  assert file.documents[0] == 0
  assert len(file.documents) == file.meta["num_documents"] > 2


def _remove(folder):
  shutil.rmtree(folder)


def _damage_meta(folder):
  (folder / "meta.json").write_text('{"splits": {', encoding="utf-8")


def _truncate(folder):
  content = (folder / "train.npy").read_bytes()
  (folder / "train.npy").write_bytes(content[: len(content) // 2])


def _truncate_to_nothing(folder):
  (folder / "train.npy").write_bytes(b"")


def _shorten(folder):
  np.save(folder / "train.npy", np.load(folder / "train.npy")[:-1])


def _replace_by_text(folder):
  (folder / "train.npy").write_text("the cat sat on the mat")


def _remove_documents(folder):
  (folder / "train_documents.npy").unlink()


def _rename_split(folder):
  with corpus.changed_meta(folder) as meta:
    meta["splits"]["other"] = meta["splits"].pop("train")


def _change_a_token(folder):
  path = folder / "train.npy"
  content = bytearray(path.read_bytes())
  content[-100] ^= 1
  path.write_bytes(content)


def _disorder_documents(folder):
  path = folder / "train_documents.npy"
  np.save(path, np.load(path)[::-1])


def _join_documents(folder):
  """The same tokens, as fewer documents."""
  path = folder / "train_documents.npy"
  np.save(path, np.load(path)[:1])


@pytest.mark.parametrize(
  ("harm", "says"),
  [
    (_join_documents, "has 1 documents where meta.json says"),
    (_remove, "no prepared data in"),
    (_damage_meta, "meta.json is damaged"),
    (_truncate, "train.npy is truncated"),
    (_truncate_to_nothing, "train.npy is truncated"),
    (_shorten, "has 1002 tokens where meta.json says 1003"),
    (_change_a_token, r"SHA-256 \w{12} where meta.json says \w{12}: it was"),
    (_replace_by_text, "not a token file"),
    (_disorder_documents, "must have rising positions below 1003"),
    (_remove_documents, "train_documents.npy is missing"),
    (_rename_split, "no split 'train', only valid, test, other"),
  ],
)
def test_a_damaged_dataset_is_one_line_with_the_command(tmp_path, harm, says):
  folder = tmp_path / corpus.NAME
  corpus.write(tmp_path)
  harm(folder)
  with pytest.raises(errors.UserError, match=says) as caught:
    token_file.open_split(str(folder), "train")
  message = str(caught.value)
  assert "\n" not in message
  if harm is not _rename_split:
    command = "transformer-xl-data --dataset=text --source=YOUR_TEXT"
    assert f"{command} --name=tiny --data_dir={tmp_path}" in message


def test_a_misspelled_dataset_is_answered_with_the_right_name(tmp_path):
  (tmp_path / "books").mkdir()
  (tmp_path / "books" / "meta.json").write_text("{}")
  with pytest.raises(errors.UserError) as caught:
    token_file.read_meta(str(tmp_path / "bokks"))
  assert "did you mean books?" in str(caught.value)


@pytest.mark.parametrize("name", [*registry.datasets])
def test_a_benchmark_is_no_misspelling_of_itself(tmp_path, name):
  with pytest.raises(errors.UserError, match="no prepared data") as caught:
    token_file.read_meta(str(tmp_path / name))
  assert "did you mean" not in str(caught.value)
  assert "--dataset=bokks" not in str(caught.value)
  with pytest.raises(errors.UserError) as caught:
    token_file.read_meta(str(tmp_path / "ptb"))
  command = "transformer-xl-data --dataset=ptb --data_dir="
  assert command + str(tmp_path) in str(caught.value)


def test_shares_of_the_tail_clusters_are_counted():
  tokens = np.repeat(np.arange(10, dtype=np.uint8), 10)
  file = token_file.TokenFile(tokens, np.zeros(1, int), "", {})
  assert token_file.tail_shares(file, (5, 9)) == (0.4, 0.1)
  # 6.6 million sorted tokens: each sample shows its surroundings.
  long = token_file.TokenFile(
    np.repeat(tokens, 1 << 16), np.zeros(1, int), "", {}
  )
  assert token_file.tail_shares(long, (5, 9)) == pytest.approx(
    (0.4, 0.1), abs=0.02
  )
