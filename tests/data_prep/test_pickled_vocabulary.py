"""The published cache.pkl gives its words and runs nothing."""

import collections
import os
import pickle
import sys
import types

import numpy as np
import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data import vocabulary


@pytest.fixture
def published(monkeypatch):
  """Returns a maker of corpora by classes that exist only for the writer."""
  module = types.ModuleType("published_data_utils")
  for name in ("Corpus", "Vocab"):
    made = type(name, (), {"__module__": module.__name__})
    setattr(module, name, made)
  monkeypatch.setitem(sys.modules, module.__name__, module)

  def make(symbols):
    corpus, vocab = module.Corpus(), module.Vocab()
    vocab.counter = collections.Counter(symbols)
    vocab.idx2sym = symbols
    vocab.sym2idx = collections.OrderedDict(
      (s, i) for i, s in enumerate(symbols)
    )
    vocab.lower_case = False
    vocab.min_freq, vocab.max_size, vocab.delimiter = 0, None, None
    corpus.dataset, corpus.vocab = "ptb", vocab
    corpus.train = np.arange(1000)
    corpus.cutoffs = []
    return corpus

  return make


def write(tmp_path, monkeypatch, value):
  """Pickles as Python 2 did; the reader then lacks the classes."""
  path = tmp_path / "cache.pkl"
  path.write_bytes(pickle.dumps(value, protocol=2))
  monkeypatch.delitem(sys.modules, "published_data_utils")
  return path


def prepare(tmp_path, path, kind, text="a b c\n"):
  source = tmp_path / "a.txt"
  source.write_text(text)
  options = {"tokenizer": kind, "vocabulary_file": str(path)}
  return layouts.prepare("text", tmp_path, source, **options, **layouts.WHOLE)


def test_the_published_order_is_used_for_new_text(
  tmp_path, published, monkeypatch
):
  path = write(tmp_path, monkeypatch, published(["<eos>", "<unk>", "b", "a"]))
  folder = prepare(tmp_path, path, "word")
  assert np.load(folder / "train.npy").tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
  ("kind", "symbols", "expected"),
  [
    ("byte", ["32", "97", "10"], (" ", "a", "\n")),
    ("character", ["_", "a"], (" ", "a")),
  ],
)
def test_published_bytes_are_numbers_and_spaces_are_underscores(
  tmp_path, published, monkeypatch, kind, symbols, expected
):
  path = write(tmp_path, monkeypatch, published(symbols))
  folder = prepare(tmp_path, path, kind, text="a a")
  assert vocabulary.load(str(folder)).symbols == expected
  assert layouts.read(folder, "train")[0] == ["a", " ", "a"]


class Attack:
  """What runs a command when it is unpickled."""

  def __init__(self, marker):
    self.marker = marker

  def __reduce__(self):
    return os.mkdir, (str(self.marker),)


def test_a_pickle_that_runs_commands_runs_none(tmp_path):
  marker, path = tmp_path / "ran", tmp_path / "cache.pkl"
  path.write_bytes(pickle.dumps(Attack(marker)))
  pickle.loads(path.read_bytes())
  assert marker.exists()  # An ordinary reader runs it.
  marker.rmdir()
  with pytest.raises(errors.UserError, match="is not a vocabulary"):
    prepare(tmp_path, path, "word")
  assert not marker.exists()


@pytest.mark.parametrize("content", [b"\xff", pickle.dumps([1])])
@pytest.mark.parametrize("name", ["cache.pkl", "words.txt"])
def test_what_is_no_vocabulary_is_refused(tmp_path, name, content):
  path = tmp_path / name
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match="is not a vocabulary"):
    prepare(tmp_path, path, "word")
