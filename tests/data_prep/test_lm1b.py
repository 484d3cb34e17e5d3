"""One Billion Word: markers, modes and its own list of words."""

import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import corpus
from transformer_xl.data_prep.lm1b import lm1b_dataset_builder

prepare = layouts.prepare


@pytest.fixture
def any_lm1b(monkeypatch):
  """Takes any sentences and any list of words for lm1b."""
  monkeypatch.setattr(lm1b_dataset_builder, "PUBLISHED", {})
  monkeypatch.setattr(lm1b_dataset_builder, "VOCABULARY_SIZE", 8)


def lm1b_source(tmp_path, layout="folder"):
  folder = tmp_path / "lm1b"
  words = b"the 9\n<S> 8\n. 7\na 6\ncat 5\ndog 4\nran 3\n<UNK> 1\n"
  layouts.write_files(folder, {"1b_word_vocab.txt": words})
  if layout == "folder":
    return layouts.write_files(folder, layouts.lm1b_members())
  # The order of an archive is its publisher's, that of the tokens is not.
  return layouts.write_tar(folder / "lm.tar.gz", layouts.lm1b_members())


@pytest.mark.usefixtures("any_lm1b")
def test_lm1b_has_one_marker_between_sentences(tmp_path):
  folder = prepare("lm1b", tmp_path, lm1b_source(tmp_path))
  tokens, documents = layouts.read(folder, "train")
  sentences = "<S> a cat . <S> a dog ran . <S> <UNK> <UNK> . <S>"
  assert " ".join(tokens) == sentences
  assert documents == [0, 4, 9]
  entry = layouts.meta(folder)["splits"]["train"]
  # The first marker is given; every other token is predicted.
  assert entry["num_words"] == len(tokens) - 1
  assert entry["num_documents"] == entry["num_lines"] == 3
  assert (folder / "valid.npy").read_bytes() == (
    folder / "test.npy"
  ).read_bytes()


@pytest.mark.usefixtures("any_lm1b")
def test_lm1b_has_two_markers_in_the_mode_of_the_tensorflow_results(tmp_path):
  folder = prepare(
    "lm1b", tmp_path, lm1b_source(tmp_path), mode="double_marker"
  )
  tokens, documents = layouts.read(folder, "test")
  assert " ".join(tokens) == "<S> a cat ran . <S> <S> a <UNK> . <S>"
  assert documents == [0, 6]


@pytest.mark.usefixtures("any_lm1b")
@pytest.mark.parametrize("mode", ["standard", "double_marker"])
def test_lm1b_does_not_depend_on_pieces_nor_on_the_archive(
  tmp_path, mode, monkeypatch
):
  whole = prepare("lm1b", tmp_path, lm1b_source(tmp_path), mode=mode)
  layouts.small_pieces(monkeypatch, block=5, longest=64)
  archive = lm1b_source(tmp_path, "archive")
  cut = prepare("lm1b", tmp_path, archive, mode=mode, name="cut")
  for name in ("train.npy", "train_documents.npy", "test_documents.npy"):
    assert (whole / name).read_bytes() == (cut / name).read_bytes()
  # What was unpacked on the way is gone.
  assert not list((tmp_path / "data").rglob("news*"))


def test_what_was_unpacked_is_deleted_after_an_error(tmp_path, monkeypatch):
  monkeypatch.setattr(lm1b_dataset_builder, "VOCABULARY_SIZE", 8)
  archive = lm1b_source(tmp_path, "archive")
  with pytest.raises(errors.UserError, match="is not the published lm1b"):
    prepare("lm1b", tmp_path, archive)
  assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


@pytest.mark.usefixtures("any_lm1b")
def test_two_modes_can_be_prepared_at_once_from_one_archive(
  tmp_path, monkeypatch
):
  archive = lm1b_source(tmp_path, "archive")
  genuine = corpus.Corpus.pieces
  inner = []

  def pieces(self, split, activity):
    if not inner:
      inner.append(None)
      inner[0] = prepare(
        "lm1b", tmp_path, archive, mode="double_marker", name="double"
      )
    return genuine(self, split, activity)

  monkeypatch.setattr(corpus.Corpus, "pieces", pieces)
  outer = prepare("lm1b", tmp_path, archive)
  assert len(layouts.read(outer, "train")[0]) == 14
  assert len(layouts.read(inner[0], "train")[0]) == 16


@pytest.mark.usefixtures("any_lm1b")
def test_lm1b_words_can_be_counted_instead(tmp_path):
  source = lm1b_source(tmp_path)
  (source / "1b_word_vocab.txt").unlink()
  with pytest.raises(errors.UserError, match=r"1b_word_vocab\.txt is missing"):
    prepare("lm1b", tmp_path, source)
  folder = prepare("lm1b", tmp_path, source, min_freq=2)
  assert vocabulary.load(str(folder)).symbols == ("<S>", "<UNK>", ".", "a")


def test_a_list_of_words_of_another_length_is_not_the_published(tmp_path):
  with pytest.raises(errors.UserError, match="has 8 words, not"):
    prepare("lm1b", tmp_path, lm1b_source(tmp_path))
