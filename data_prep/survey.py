"""The first pass over a corpus: how much text there is, and which symbols.

A source with other than the published counts is refused here, before any token
is written.
"""

import collections
import operator
from typing import NamedTuple

from data_prep import corpus as corpus_lib
from data_prep import piece as piece_lib
from data_prep import tokenizer as tokenizer_lib
from transformer_xl import errors


class Survey(NamedTuple):
  """The result of the first pass."""

  counts: dict[str, corpus_lib.Counts]  # By split.
  symbols: collections.Counter[str]  # In order of first occurrence.


def run(
  corpus: corpus_lib.Corpus,
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  count_symbols: bool,
) -> Survey:
  """Reads every split once.

  Args:
    corpus: The text.
    tokenizer: What a symbol is.
    count_symbols: Whether the vocabulary is to be made from the counts.

  Raises:
    UserError: the text is empty, not UTF-8, or not the published one.
  """
  survey = Survey({}, collections.Counter())
  for split, read in corpus.splits.items():
    counted = count_symbols and split in corpus.vocabulary_splits
    counter = survey.symbols if counted else None
    counts = corpus_lib.Counts()
    text = tokenizer_lib.pieces_of(read, tokenizer)
    for piece in piece_lib.with_progress(
      text, f"{corpus.name}: counting {split}"
    ):
      found = _count(piece, tokenizer, counter)
      counts = corpus_lib.Counts(*map(operator.add, counts, found))
    _check(corpus, split=split, counts=counts)
    survey.counts[split] = counts
  return survey


def _count(
  piece: piece_lib.Piece,
  tokenizer: tokenizer_lib.Tokenizer,
  counter: collections.Counter[str] | None,
) -> corpus_lib.Counts:
  """Returns the size of a piece and adds its symbols to the counter."""
  if tokenizer.kind == "byte":
    text = piece.data.decode("utf-8", "replace")
  else:
    text = piece_lib.text(piece)
  num_characters = len(text)
  text = text.lower() if tokenizer.lower_case else text
  words = text.split()
  if tokenizer.kind == "word":
    piece_lib.refuse_cut_word(piece)
  if counter is not None and tokenizer.kind == "word":
    counter.update(words)
  elif counter is not None and tokenizer.kind == "character":
    counter.update(text)
  elif counter is not None:
    counter.update(piece.data.decode("latin-1"))
  num_lines = piece.data.count(b"\n")
  return corpus_lib.Counts(
    num_bytes=len(piece.data),
    num_characters=num_characters,
    num_words=len(words) + num_lines,
    num_lines=num_lines,
  )


def _check(
  corpus: corpus_lib.Corpus, *, split: str, counts: corpus_lib.Counts
) -> None:
  """Raises UserError unless the split has text, and its published counts."""
  if counts.num_bytes == 0:
    raise errors.UserError(
      f"the {split} split of {corpus.source['path']} is empty; give it some"
      " text, or leave a split of your own text out, for example with"
      " --valid_fraction=0."
    )
  for field, expected in corpus.published.get(split, {}).items():
    if (found := getattr(counts, field)) != expected:
      raise errors.UserError(
        f"{corpus.source['path']} is not the published {corpus.name}: its"
        f" {split} split has {found} {field.removeprefix('num_')}, not"
        f" {expected}; give the original files, or prepare other text with"
        " --dataset=text."
      )
