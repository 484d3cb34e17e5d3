"""Vocabulary files: made from a corpus, or given by the user."""

import collections
import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from data_prep import corpus as corpus_lib
from data_prep import tokenizer as tokenizer_lib
from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.formats import published_vocabulary

# Suffixes of the pickles of the published codes.
_PICKLED = (".pkl", ".pt", ".bin")


class VocabularyFile(NamedTuple):
  """The content of the file, and how to encode text with it."""

  content: bytes
  tokenizer: dict[str, Any]  # As in meta.json.

  @property
  def sha256(self) -> str:
    """The hash that meta.json states."""
    return hashlib.sha256(self.content).hexdigest()

  def load(self) -> vocabulary.Vocabulary:
    """Returns the vocabulary."""
    return vocabulary.parse(self.content, tokenizer=self.tokenizer)


def make(
  corpus: corpus_lib.Corpus, counts: collections.Counter[str]
) -> VocabularyFile:
  """Makes the vocabulary of a corpus, from its counts or as trained subwords.

  UserError if the published one has another number of symbols.
  """
  tokenizer = corpus.tokenizer
  if tokenizer.kind == "subword" and tokenizer.max_size is not None:
    texts = _texts(corpus)
    content = tokenizer_lib.train_subwords(texts, size=tokenizer.max_size)
    return VocabularyFile(content, tokenizer.meta())
  symbols = list(vocabulary.ByteVocabulary().symbols)
  if tokenizer.counts_symbols:
    symbols = tokenizer_lib.order(counts, tokenizer)
  [expected] = corpus.published.get("symbols", [len(symbols)])
  if len(symbols) != expected:
    raise errors.UserError(
      f"{corpus.source['path']} is not the published {corpus.name}: it has"
      f" {len(symbols)} different symbols, not {expected}; give the original"
      " files, or prepare other text with --dataset=text."
    )
  content = tokenizer_lib.content(symbols, kind=tokenizer.kind)
  return VocabularyFile(content, tokenizer.meta())


def read(path: str, tokenizer: tokenizer_lib.Tokenizer) -> VocabularyFile:
  """Reads a vocabulary for the tokenizer; UserError if it does not fit.

  It is the folder of a prepared dataset, which has a tokenizer of its own; JSON
  of the HuggingFace tokenizers library; a cache.pkl of the published TF code;
  or text with one word per line in the order of the ids, where anything after
  white space is ignored.
  """
  place = pathlib.Path(path).expanduser()
  if place.is_dir():
    vocabulary.load(path)  # Checks the hash.
    meta = json.loads((place / "meta.json").read_text("utf-8"))
    content = (place / meta["vocabulary"]["file"]).read_bytes()
    return VocabularyFile(content, meta["tokenizer"])
  try:
    content = place.read_bytes()
    if tokenizer.kind != "subword":
      symbols = _symbols(place, tokenizer.kind)
      content = tokenizer_lib.content(symbols, kind=tokenizer.kind)
    file = VocabularyFile(content, tokenizer.meta())
    file.load()
    return file
  except FileNotFoundError:
    problem = "it does not exist"
  except errors.UserError:
    problem = "it is no pickle of the published codes"
  except ValueError as error:
    problem = " ".join(str(error).split())
  raise errors.UserError(
    f"--vocabulary_file={path} is not a vocabulary for"
    f" --tokenizer={tokenizer.kind}: {problem}; give a prepared dataset's"
    " folder, a published cache.pkl, UTF-8 text with one symbol per line (bytes"
    " as numbers from 0 to 255), or for subwords a tokenizers .json."
  )


def _texts(corpus: corpus_lib.Corpus) -> Iterator[str]:
  for split in corpus.vocabulary_splits:
    for piece in corpus.pieces(split, "learning subwords of"):
      text = piece.text()
      yield text.lower() if corpus.tokenizer.lower_case else text


def _symbols(place: pathlib.Path, kind: str) -> list[str]:
  """Returns the symbols of a file; a UserError or ValueError if it has none."""
  if is_pickled := place.suffix in _PICKLED:
    symbols = list(published_vocabulary.read(str(place)).symbols)
  else:
    lines = place.read_text("utf-8").split("\n")
    symbols = [line.split()[0] for line in lines if line.strip()]
  if kind == "byte":  # The published enwik8 has decimal numbers.
    return list(bytes(map(int, symbols)).decode("latin-1"))
  if kind == "character" and is_pickled:
    # The published text8 has an underscore for every space.
    return [" " if symbol == "_" else symbol for symbol in symbols]
  return symbols
