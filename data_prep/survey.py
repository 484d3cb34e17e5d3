"""The first pass over a corpus: how much text there is, and which symbols.

A source with other than the published counts is refused here, before any token
is written.
"""

import collections
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import tokenizer as tokenizer_lib

# Part of the words by which another way of counting may differ.
_WORDS_TOLERANCE = 0.02


class Survey(NamedTuple):
  """What the first pass has found."""

  sizes: dict[str, dict[str, int]]  # How large each split is.
  symbols: collections.Counter[str]  # Empty unless they were counted.
  # The first byte that is not UTF-8 of each origin that has one; of bytes
  # alone, since other text is refused.
  not_utf8: dict[str, str]


def run(corpus: corpus_lib.Corpus, *, count_symbols: bool) -> Survey:
  """Returns the size of each split, and how often each symbol occurs, if asked.

  A word stands between white space, or is the end of a line. Symbols are in
  order of first occurrence. UserError if the text is empty, not UTF-8 and not
  read as bytes, or not the published one.
  """
  sizes: dict[str, dict[str, int]] = {}
  symbols: collections.Counter[str] = collections.Counter()
  not_utf8: dict[str, str] = {}
  for split in corpus.splits:
    counted = count_symbols and split in corpus.vocabulary_splits
    size: collections.Counter[str] = collections.Counter(num_empty_documents=0)
    for piece in corpus.pieces(split, "counting"):
      size.update(_count(piece, corpus.tokenizer, symbols if counted else None))
      if corpus.tokenizer.kind == "byte" and piece.origin not in not_utf8:
        not_utf8 |= _not_utf8(piece)
    _check(corpus, split, size)
    if corpus.stated_words is not None:
      size["num_words"] = _stated_words(corpus, split, size)
    sizes[split] = size
  return Survey(sizes, symbols, not_utf8)


def _not_utf8(piece: piece_lib.Piece) -> dict[str, str]:
  """Returns the first byte of a piece that is not UTF-8, by its origin."""
  try:
    piece.data.decode("utf-8")
  except UnicodeDecodeError as error:
    byte = piece.data[error.start]
    offset = piece.offset + error.start
    return {piece.origin: f"byte 0x{byte:02x} at offset {offset}"}
  return {}


def _count(
  piece: piece_lib.Piece,
  tokenizer: tokenizer_lib.Tokenizer,
  symbols: collections.Counter[str] | None,
) -> dict[str, int]:
  """Returns the size of a piece and adds its symbols to `symbols`."""
  is_bytes = tokenizer.kind == "byte"
  text = piece.data.decode("utf-8", "replace") if is_bytes else piece.text()
  num_characters = len(text)
  text = text.lower() if tokenizer.lower_case else text
  words = text.split()
  if tokenizer.kind == "word":
    piece.refuse_cut_word()
    if tokenizer.end_of_line in text and tokenizer.end_of_line in words:
      raise errors.UserError(
        f"{piece.origin} has the word {tokenizer.end_of_line!r}, which would be"
        " taken for the end of a line; replace it in the text, or use another"
        " --tokenizer."
      )
  if symbols is not None and is_bytes:
    symbols.update(piece.data.decode("latin-1"))
  elif symbols is not None:
    symbols.update(words if tokenizer.kind == "word" else text)
  num_lines = piece.data.count(b"\n")
  is_empty = piece.starts_document and piece.data in (b"", b"\n")
  return {
    "num_bytes": len(piece.data),
    "num_characters": num_characters,
    "num_words": len(words) + num_lines,
    "num_lines": num_lines,
    "num_empty_documents": int(is_empty),
  }


def _check(corpus: corpus_lib.Corpus, split: str, size: dict[str, int]) -> None:
  """Raises UserError unless the split has text, and its published counts."""
  path = corpus.source["path"]
  if not size["num_bytes"]:
    raise errors.UserError(
      f"the {split} split of {path} is empty; give it some text, or leave a"
      " split of your own text out, for example with --valid_fraction=0."
    )
  for field in filter(corpus.published.__contains__, size):
    expected = corpus.published[field][corpus_lib.SPLITS.index(split)]
    if expected not in (None, size[field]):
      raise errors.UserError(
        f"{path} is not the published {corpus.name}: its {split} split has"
        f" {size[field]} {field.removeprefix('num_')}, not {expected}; give"
        " the original files, or prepare other text with --dataset=text."
      )


def _stated_words(
  corpus: corpus_lib.Corpus, split: str, size: dict[str, int]
) -> int:
  """Returns the number of words that the publisher states of a split.

  UserError unless about as many words stand between white space: how the
  publisher counted is not known.
  """
  assert corpus.stated_words is not None
  stated = corpus.stated_words[corpus_lib.SPLITS.index(split)]
  counted = size["num_words"] - size["num_lines"]
  if abs(counted - stated) > _WORDS_TOLERANCE * stated:
    raise errors.UserError(
      f"{corpus.source['path']} is not the published {corpus.name}: its {split}"
      f" split has {counted} words between white space, and {stated} are"
      " published; fetch it again."
    )
  return stated
