"""The second pass over a corpus: from text to token ids on the disk."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep import array_file
from data_prep import corpus as corpus_lib
from data_prep import piece as piece_lib
from data_prep import progress
from data_prep import staging
from data_prep import tokenizer as tokenizer_lib
from transformer_xl import errors
from transformer_xl.data import vocabulary

# Text between two saved states: some ten seconds' work.
_SAVE_BYTES = 256 << 20


class Files(NamedTuple):
  """What a split becomes."""

  tokens: array_file.ArrayFile
  documents: array_file.ArrayFile  # Where in `tokens` each document starts.


class State(NamedTuple):
  """How far a split has come; what the files hold beyond it is dropped."""

  num_pieces: int = 0
  num_tokens: int = 0
  num_documents: int = 0
  done: bool = False


def run(
  corpus: corpus_lib.Corpus,
  tokenizer: tokenizer_lib.Tokenizer,
  vocab: vocabulary.Vocabulary,
  stage: staging.Staging,
) -> dict[str, dict[str, Any]]:
  """Writes the tokens of every split; returns what meta.json says of them."""
  saved = stage.load("encoding") or {}
  states = {split: State(*state) for split, state in saved.items()}
  for split in corpus.splits:
    state = states.get(split, State())
    text = tokenizer_lib.pieces_of(corpus.splits[split], tokenizer)
    rest = itertools.islice(text, state.num_pieces, None)
    meter = progress.Progress(f"{corpus.name}: encoding {split}")
    while not state.done:
      with _files(stage, split, vocab, state) as files:
        state = _write(rest, corpus, tokenizer, vocab, files, state, meter)
      states[split] = state
      stage.save("encoding", states)
    meter.close()
  return {split: _meta(stage, split, vocab, states[split]) for split in states}


@contextlib.contextmanager
def _files(
  stage: staging.Staging,
  split: str,
  vocab: vocabulary.Vocabulary,
  state: State,
) -> Iterator[Files]:
  """Opens the files of a split where the state left them."""
  with (
    array_file.ArrayFile(
      stage.path(f"{split}.npy"), vocab.dtype, length=state.num_tokens
    ) as tokens,
    array_file.ArrayFile(
      stage.path(f"{split}_documents.npy"),
      np.int64,
      length=state.num_documents,
    ) as documents,
  ):
    yield Files(tokens, documents)


def _write(
  text: Iterator[piece_lib.Piece],
  corpus: corpus_lib.Corpus,
  tokenizer: tokenizer_lib.Tokenizer,
  vocab: vocabulary.Vocabulary,
  files: Files,
  state: State,
  meter: progress.Progress,
) -> State:
  """Encodes text until it ends or the state is worth saving."""
  # Only words have a symbol that ends a sentence.
  num_markers = corpus.sentence_markers if vocab.unit == "word" else 0
  marker = None
  if num_markers:
    marker = vocab.encode(tokenizer.end_of_line)[0]
  if marker is not None and not state.num_pieces:
    files.tokens.append(np.array([marker]))
    files.documents.append(np.array([0]))
  unsaved, starts_document = 0, False
  num_pieces = state.num_pieces
  for piece in text:
    ids = _encode(vocab, piece)
    starts_document = starts_document or piece.starts_document
    starts = np.zeros(int(starts_document and len(ids) > 0), np.int64)
    if marker is not None:
      ids, starts = _sentences(ids, marker, num_markers)
    files.documents.append(starts + files.tokens.length)
    files.tokens.append(ids)
    starts_document = starts_document and not len(ids)
    num_pieces += 1
    unsaved += len(piece.data)
    meter.add(len(piece.data))
    if unsaved >= _SAVE_BYTES and not starts_document:
      return _state(num_pieces, files, done=False)
  _drop_markers(files, num_markers)
  return _state(num_pieces, files, done=True)


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
  ids: NDArray[Any], marker: int, num_markers: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
  """Returns ids of lines with their markers, and where sentences start.

  A sentence starts at a marker, from which its first word is predicted: its
  own if there are two between sentences, else the one that ends the last.
  """
  ends = np.flatnonzero(ids == marker)
  if num_markers == 1:
    return ids, ends
  doubled = np.repeat(ids, 1 + (ids == marker))
  return doubled, ends + np.arange(1, len(ends) + 1)


def _drop_markers(files: Files, num_markers: int) -> None:
  """Takes back the start of a sentence that does not come."""
  if num_markers:
    files.documents.drop_last()
  if num_markers == 2:
    files.tokens.drop_last()


def _state(num_pieces: int, files: Files, *, done: bool) -> State:
  return State(num_pieces, files.tokens.length, files.documents.length, done)


def _meta(
  stage: staging.Staging,
  split: str,
  vocab: vocabulary.Vocabulary,
  state: State,
) -> dict[str, Any]:
  if state.num_tokens < 2:
    raise errors.UserError(
      f"the {split} split has {state.num_tokens} tokens, but nothing can be"
      " predicted from fewer than 2; give it more text."
    )
  return {
    "num_tokens": state.num_tokens,
    "num_documents": state.num_documents,
    "dtype": vocab.dtype.name,
    "sha256": staging.digest(stage.path(f"{split}.npy")),
  }
