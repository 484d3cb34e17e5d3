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
  def name(self) -> str:
    """The file's name in a dataset's folder."""
    is_json = self.tokenizer["kind"] == "subword"
    return "vocabulary.json" if is_json else "vocabulary.txt"

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
  """Makes a vocabulary from the text.

  Args:
    corpus: The text, which is read again to train subwords.
    counts: How often each symbol occurs, in order of first occurrence.

  Raises:
    UserError: the corpus has another number of symbols than the published one.
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
  return _of_symbols(symbols, tokenizer)


def read(path: str, tokenizer: tokenizer_lib.Tokenizer) -> VocabularyFile:
  """Reads a vocabulary that the user gives.

  Args:
    path: The folder of a prepared dataset; a .json file of the HuggingFace
      tokenizers library; a cache.pkl of the published TF code; or text with one
      word per line in the order of the ids, where anything after white space is
      ignored.
    tokenizer: The text's tokenizer; a prepared dataset brings its own.

  Raises:
    UserError: there is no vocabulary, or not one for this tokenizer.
  """
  place = pathlib.Path(path).expanduser()
  if place.is_dir():
    vocabulary.load(path)  # Checks the hash.
    meta = json.loads((place / "meta.json").read_text("utf-8"))
    content = (place / meta["vocabulary"]["file"]).read_bytes()
    return VocabularyFile(content, meta["tokenizer"])
  if not place.is_file():
    raise errors.UserError(
      f"--vocabulary_file={path} does not exist; give a prepared dataset's"
      " folder, a tokenizers .json, a published cache.pkl, or a file with one"
      " word per line."
    )
  if (place.suffix == ".json") != (tokenizer.kind == "subword"):
    raise errors.UserError(
      f"{path} does not fit --tokenizer={tokenizer.kind}: subwords are in a"
      " .json of the tokenizers library, other symbols in a list."
    )
  if tokenizer.kind == "subword":
    file = VocabularyFile(place.read_bytes(), tokenizer.meta())
    try:
      file.load()
    except ValueError as error:
      raise errors.UserError(
        f"{place} is not JSON of the HuggingFace tokenizers library ({error});"
        " give a tokenizer.json."
      ) from None
    return file
  symbols = _read_symbols(place, tokenizer.kind)
  (twice, count), *_ = collections.Counter(symbols).most_common(1) or [("", 0)]
  if count > 1:
    raise errors.UserError(
      f"{path} has {twice!r} more than once; a symbol has one id."
    )
  needed = (tokenizer.end_of_line, tokenizer.unk)
  for symbol in needed if tokenizer.kind == "word" else ():
    if symbol is not None and symbol not in symbols:
      raise errors.UserError(
        f"{path} lacks {symbol}, which this text needs; add a line with it."
      )
  return _of_symbols(symbols, tokenizer)


def _of_symbols(
  symbols: list[str], tokenizer: tokenizer_lib.Tokenizer
) -> VocabularyFile:
  content = tokenizer_lib.content(symbols, kind=tokenizer.kind)
  return VocabularyFile(content, tokenizer.meta())


def _texts(corpus: corpus_lib.Corpus) -> Iterator[str]:
  for split in corpus.vocabulary_splits:
    for piece in corpus.pieces(split, "learning subwords of"):
      text = piece.text()
      yield text.lower() if corpus.tokenizer.lower_case else text


def _read_symbols(place: pathlib.Path, kind: str) -> list[str]:
  is_pickled = place.suffix in _PICKLED
  try:
    if is_pickled:
      symbols = list(published_vocabulary.read(str(place)).symbols)
    else:
      lines = place.read_text("utf-8").split("\n")
      symbols = [line.split()[0] for line in lines if line.strip()]
  except (errors.UserError, UnicodeDecodeError):
    raise errors.UserError(
      f"{place} is not a vocabulary: neither a pickle of the published codes"
      " nor UTF-8 text with one symbol per line; give another"
      " --vocabulary_file."
    ) from None
  if kind == "character" and is_pickled:
    # The published text8 has an underscore for every space.
    return [" " if symbol == "_" else symbol for symbol in symbols]
  if kind == "byte":
    # The published enwik8 has decimal numbers.
    for symbol in symbols:
      if not symbol.isdecimal() or int(symbol) > 255:
        raise errors.UserError(
          f"{place} has {symbol!r}, which is not a byte from 0 to 255; bytes"
          " are listed as decimal numbers."
        )
    return [chr(int(symbol)) for symbol in symbols]
  return symbols
