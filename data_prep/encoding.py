"""The second pass over a corpus: from text to token ids on disk."""

import collections
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike

from transformer_xl import errors
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import piece as piece_lib

# Characters that are compared with what their tokens stand for.
_COMPARED = 1 << 18
_EXCERPT = 40
# Ids [n], and where among them documents start.
_Encoded = tuple[np.ndarray, Sequence[int] | np.ndarray]


class ArrayFile:
  """Appends numbers to a new .npy file, which is complete when it is closed."""

  def __init__(self, path: pathlib.Path, dtype: DTypeLike):
    self.dtype = np.dtype(dtype)
    self.length = 0
    self._file = open(path, "wb")  # noqa: SIM115
    self._write_header()

  def append(self, numbers: np.ndarray) -> None:
    """Writes numbers [n] behind those written before."""
    self._file.write(np.ascontiguousarray(numbers, self.dtype).data)
    self.length += len(numbers)

  def __enter__(self) -> "ArrayFile":
    return self

  def __exit__(self, *unused: object) -> None:
    """Writes the final length into the header and waits for the disk."""
    with self._file:
      self._write_header()
      self._file.flush()
      os.fsync(self._file.fileno())

  def _write_header(self) -> None:
    # NumPy pads the header so that any length fits into the same bytes.
    self._file.seek(0)
    descr = npy.dtype_to_descr(self.dtype)
    shape = (self.length,)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(self._file, header)


def write_split(
  corpus: corpus_lib.Corpus,
  split: str,
  vocab: vocabulary.Vocabulary,
  folder: pathlib.Path,
  size: dict[str, int],
) -> dict[str, object]:
  """Writes the tokens of a split; returns its entry in meta.json.

  UserError if the text no longer has the size that it had in the first pass, or
  a synthetic task has unknown words.
  """
  num_bytes = 0
  num_unknown = 0
  num_special: collections.Counter[int] = collections.Counter()
  special = np.array([*vocab.special], np.int64)

  def counted() -> piece_lib.Pieces:
    nonlocal num_bytes
    for piece in corpus.pieces(split, "encoding"):
      num_bytes += len(piece.data)
      yield piece

  encoded = _encode(counted(), vocab)
  # Only words have a symbol that ends a sentence.
  if corpus.sentence_markers and vocab.unit == "word":
    marker = vocab.encode(corpus.tokenizer.end_of_line)[0]
    encoded = _sentences(encoded, marker, corpus.sentence_markers)
  path = folder / f"{split}.npy"
  with (
    ArrayFile(path, vocab.dtype) as tokens,
    ArrayFile(folder / f"{split}_documents.npy", np.int64) as documents,
  ):
    for numbers, starts in encoded:
      if corpus.answers is not None:
        _require_all_words(corpus.name, numbers, vocab)
      num_unknown += vocab.count_unknown(numbers)
      if len(special):
        num_special.update(numbers[np.isin(numbers, special)].tolist())
      documents.append(np.array(starts, np.int64) + tokens.length)
      tokens.append(numbers)
  if num_bytes != size["num_bytes"]:
    raise changed(corpus)
  if tokens.length < 2:
    raise errors.UserError(
      f"the {split} split has {tokens.length} tokens, but nothing can be"
      " predicted from fewer than 2; give it more text."
    )
  return {
    "num_tokens": tokens.length,
    "num_documents": documents.length,
    "num_unknown": num_unknown,
    **_special_tokens(vocab, num_special),
    **_write_answers(corpus, split, folder),
    "dtype": vocab.dtype.name,
    "sha256": token_file.sha256(path),
    **size,
  }


def _special_tokens(
  vocab: vocabulary.Vocabulary, counts: Mapping[int, int]
) -> dict[str, dict[str, int]]:
  """Returns how often a text has each special token's name, if it has any."""
  found = {vocab.special[i]: n for i, n in sorted(counts.items())}
  return {"special_tokens": found} if found else {}


def unrestored(
  corpus: corpus_lib.Corpus, split: str, vocab: vocabulary.SubwordVocabulary
) -> str | None:
  """Compares the first lines of a split with what their tokens stand for.

  Returns:
    A line on those that do not come back; None if all do.
  """
  num_lines = num_lost = num_bytes = 0
  example = ("", "")
  for piece in corpus.pieces(split, "comparing"):
    text = piece.text().lower() if vocab.lower_case else piece.text()
    for line in filter(None, text.split("\n")):
      back = vocab.decode(vocab.encode(line))
      if back != line:
        example = example if num_lost else (line, back)
        num_lost += 1
      num_lines += 1
      num_bytes += len(line)
      if num_bytes > _COMPARED:
        break
    if num_bytes > _COMPARED:
      break
  if not num_lost:
    return None
  line, back = (one[:_EXCERPT] for one in example)
  return (
    f"{num_lost:,} of the first {num_lines:,} lines of {split} are not what"
    f" their tokens stand for, as {line!r}, which comes back as {back!r}: what"
    " the tokenizer replaces or deletes is in no loss"
  )


def _require_all_words(
  task: str, numbers: np.ndarray, vocab: vocabulary.Vocabulary
) -> None:
  """Raises a UserError if a word of a task is unknown: answers would be too."""
  if vocab.count_unknown(numbers):
    raise errors.UserError(
      f"--dataset={task} has words that the vocabulary of {vocab.size} has not,"
      " and a task needs all of its words; leave --max_size, --min_freq and"
      " --vocabulary_file out."
    )


def _write_answers(
  corpus: corpus_lib.Corpus, split: str, folder: pathlib.Path
) -> dict[str, int]:
  """Writes which tokens are answers, and their distances, if any are known."""
  if corpus.answers is None:
    return {}
  answers = corpus.answers[split]()
  numbers = {"answers": answers.positions, "distances": answers.distances}
  for name, array in numbers.items():
    with ArrayFile(folder / f"{split}_{name}.npy", np.int64) as file:
      file.append(array)
  return {"num_answers": len(answers.positions)}


def changed(corpus: corpus_lib.Corpus) -> errors.UserError:
  """Returns the error for a text that is not the one of the first pass."""
  return errors.UserError(
    f"{corpus.source['path']} changed while it was read; run the same command"
    " again when no other program writes to it."
  )


def _encode(
  text: piece_lib.Pieces, vocab: vocabulary.Vocabulary
) -> Iterator[_Encoded]:
  starts_document = False
  for piece in text:
    tokens = ids(piece, vocab)
    starts_document = starts_document or piece.starts_document
    if len(tokens):
      yield tokens, [0] if starts_document else []
      starts_document = False


def ids(piece: piece_lib.Piece, vocab: vocabulary.Vocabulary) -> vocabulary.Ids:
  """Returns the tokens of a piece; UserError names what has no id."""
  data = piece.data if vocab.unit == "byte" else piece.text()
  try:
    if isinstance(data, bytes):
      return vocab.encode_bytes(data)
    return vocab.encode(data)
  except errors.UserError as error:
    raise errors.UserError(
      f"{piece.origin}, after byte {piece.offset}: {error}"
    ) from None


def _sentences(
  encoded: Iterator[_Encoded], marker: np.integer, num_markers: int
) -> Iterator[_Encoded]:
  """Yields lines as sentences, with markers between them and at both ends.

  A sentence starts at the marker from which its first word is predicted: its
  own if there are two between sentences, else the end of the previous one.
  """
  last = marker
  for number, (ids, _) in enumerate(encoded):
    # The end of a line goes to the start of the next one.
    moved = np.concatenate([[last], ids[:-1]])
    last = ids[-1]
    starts = moved == marker
    repeats = np.where(starts, num_markers, 1)
    if number == 0:
      repeats[0] = 1
    yield np.repeat(moved, repeats), np.cumsum(repeats)[starts] - 1
  yield np.array([last]), []
