"""The published cache.pkl gives its words and runs nothing."""

import collections
import os
import pickle
import sys
import types

import numpy as np
import pytest

from data_prep import main
from data_prep import pickled_vocabulary
from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl import vocabulary


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


def test_words_come_in_the_order_of_their_ids(tmp_path, published, monkeypatch):
  # Python 2 wrote UTF-8 bytes, which a reader of latin1 sees as such.
  symbols = ["<eos>", "the", "caf\u00e9".encode().decode("latin1")]
  path = write(tmp_path, monkeypatch, published(symbols))
  assert pickled_vocabulary.read(path) == ["<eos>", "the", "caf\u00e9"]


def test_the_published_order_is_used_for_new_text(
  tmp_path, published, monkeypatch
):
  path = write(tmp_path, monkeypatch, published(["<eos>", "<unk>", "b", "a"]))
  text = tmp_path / "a.txt"
  text.write_text("a b c\n")
  folder = main.prepare(
    dataset="text",
    data_dir=str(tmp_path),
    source=str(text),
    tokenizer="word",
    vocabulary_file=str(path),
    valid_fraction=0,
    test_fraction=0,
  )
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
  text = tmp_path / "a.txt"
  text.write_text("a a")
  folder = main.prepare(
    dataset="text",
    data_dir=str(tmp_path),
    source=str(text),
    tokenizer=kind,
    vocabulary_file=str(path),
    valid_fraction=0,
    test_fraction=0,
  )
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
  with pytest.raises(errors.UserError, match="not a corpus pickled"):
    pickled_vocabulary.read(path)
  assert not marker.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_command_hidden_in_a_genuine_corpus_is_not_run(
  tmp_path, published, monkeypatch, protocol
):
  marker = tmp_path / "ran"
  corpus = published(["<eos>", "a"])
  corpus.extra = [Attack(marker), {1: Attack(marker)}]
  path = write(tmp_path, monkeypatch, 0)
  monkeypatch.setitem(
    sys.modules,
    "published_data_utils",
    types.SimpleNamespace(Corpus=type(corpus), Vocab=type(corpus.vocab)),
  )
  path.write_bytes(pickle.dumps(corpus, protocol=protocol))
  monkeypatch.delitem(sys.modules, "published_data_utils")
  if protocol >= 2:
    assert pickled_vocabulary.read(path) == ["<eos>", "a"]
  else:
    # The published code wrote protocol 2; older ones build objects otherwise.
    pickled_vocabulary.read(path)
  assert not marker.exists()


@pytest.mark.parametrize(
  "content",
  [b"", b"no pickle", pickle.dumps([1]), pickle.dumps(["a"] * 9)[:-3]],
)
def test_what_is_no_corpus_is_refused(tmp_path, content):
  path = tmp_path / "cache.pkl"
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match="not a corpus pickled"):
    pickled_vocabulary.read(path)
