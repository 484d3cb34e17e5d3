"""The second pass over a corpus: from text to token ids on disk."""

import pathlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep import array_file
from data_prep import corpus as corpus_lib
from data_prep import piece as piece_lib
from data_prep import tokenizer as tokenizer_lib
from transformer_xl import errors
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary


def run(
  corpus: corpus_lib.Corpus,
  tokenizer: tokenizer_lib.Tokenizer,
  vocab: vocabulary.Vocabulary,
  folder: pathlib.Path,
) -> dict[str, dict[str, Any]]:
  """Writes the tokens of every split; returns their entries in meta.json."""
  return {
    split: _write_split(corpus, split, tokenizer, vocab, folder)
    for split in corpus.splits
  }


def _write_split(
  corpus: corpus_lib.Corpus,
  split: str,
  tokenizer: tokenizer_lib.Tokenizer,
  vocab: vocabulary.Vocabulary,
  folder: pathlib.Path,
) -> dict[str, Any]:
  path = folder / f"{split}.npy"
  with (
    array_file.ArrayFile(path, vocab.dtype) as tokens,
    array_file.ArrayFile(
      folder / f"{split}_documents.npy", np.int64
    ) as documents,
  ):
    _write(corpus, split, tokenizer, vocab, tokens, documents)
  if tokens.length < 2:
    raise errors.UserError(
      f"the {split} split has {tokens.length} tokens, but nothing can be"
      " predicted from fewer than 2; give it more text."
    )
  return {
    "num_tokens": tokens.length,
    "num_documents": documents.length,
    "dtype": vocab.dtype.name,
    "sha256": token_file.sha256(path),
  }


def _write(
  corpus: corpus_lib.Corpus,
  split: str,
  tokenizer: tokenizer_lib.Tokenizer,
  vocab: vocabulary.Vocabulary,
  tokens: array_file.ArrayFile,
  documents: array_file.ArrayFile,
) -> None:
  """Appends the tokens of a split and the starts of its documents."""
  # Only words have a symbol that ends a sentence.
  num_markers = corpus.sentence_markers if vocab.unit == "word" else 0
  marker = vocab.encode(tokenizer.end_of_line)[0] if num_markers else None
  if num_markers:
    tokens.append(np.array([marker]))
    documents.append(np.array([0]))
  text = tokenizer_lib.pieces_of(corpus.splits[split], tokenizer)
  starts_document = False
  for piece in piece_lib.with_progress(
    text, f"{corpus.name}: encoding {split}"
  ):
    ids = _encode(vocab, piece)
    starts_document = starts_document or piece.starts_document
    starts = np.zeros(int(starts_document and len(ids) > 0), np.int64)
    if num_markers:
      ids, starts = _sentences(ids, marker, num_markers)
    documents.append(starts + tokens.length)
    tokens.append(ids)
    starts_document = starts_document and not len(ids)
  # The last marker starts no sentence.
  if num_markers:
    documents.drop_last()
  if num_markers == 2:
    tokens.drop_last()


def _encode(
  vocab: vocabulary.Vocabulary, piece: piece_lib.Piece
) -> NDArray[Any]:
  try:
    if vocab.unit == "byte":
      return vocab.encode_bytes(piece.data)
    return vocab.encode(piece_lib.text(piece))
  except errors.UserError as error:
    raise errors.UserError(
      f"{piece.origin}, after byte {piece.offset}: {error}"
    ) from None


def _sentences(
  ids: NDArray[Any], marker: Any, num_markers: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
  """Returns the ids of lines with their markers, and where sentences start.

  A sentence starts at the marker from which its first word is predicted: its
  own if there are two between sentences, else the end of the previous one.
  """
  ends = np.flatnonzero(ids == marker)
  if num_markers == 1:
    return ids, ends
  doubled = np.repeat(ids, 1 + (ids == marker))
  return doubled, ends + np.arange(1, len(ends) + 1)
