"""Input texts: reading files of them, and converting them to token streams."""

import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_xl import errors
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.formats import input_files
from transformer_xl.processes import exchange

POLICIES = ("fresh", "carry")


class Text(NamedTuple):
  """A text and its memory: fresh, or carried over from the previous text."""

  text: str
  memory: str  # fresh | carry


class Stream(NamedTuple):
  """The tokens that one lane reads."""

  tokens: np.ndarray  # [num_tokens], those of prefixes included.
  texts: dict[int, slice]  # Where each text is, by its index.


def read_file(path: str, *, field: str) -> str:
  """Reads a file in UTF-8, or standard input for `-`.

  Of several processes, the first reads it for all. The mark of UTF-8 at its
  start (BOM), which Windows writes, is left out.

  Raises:
    UserError: the file cannot be read, or is not UTF-8; it names the field.
  """
  return exchange.read_by_first(lambda: _read_file(path, field))


def _read_file(path: str, field: str) -> str:
  """Reads the file in one process, for `read_file`."""
  try:
    if path == "-":
      return sys.stdin.buffer.read().decode("utf-8-sig")
    with input_files.on_disk(path) as place, open(place, "rb") as file:
      return file.read().decode("utf-8-sig")
  except OSError as error:
    raise errors.UserError(
      f"cannot read {path}: {error.strerror}; set --config.{field}=FILE, "
      "or - for standard input."
    ) from None
  except UnicodeDecodeError as error:
    raise errors.UserError(
      f"{path} is not UTF-8 at byte {error.start}; convert it, for example "
      "with iconv."
    ) from None


def parse(content: str, *, memory: str, is_json: bool = False) -> list[Text]:
  """Parses a file with one text, or one JSON object, per line.

  The file is JSON, too, if its first line that is not blank starts an object.
  Then `text` is the text, which may contain newlines, `memory` overrides the
  default, and blank lines are no texts. Lines may end as in Windows.

  Raises:
    UserError: the file is empty, or a line is not JSON although the file is.
  """
  is_json = is_json or content.lstrip().startswith("{")
  if not content or (is_json and not content.strip()):
    raise errors.UserError("there are no texts to score: the file is empty.")
  lines = content.removesuffix("\n").split("\n")
  lines = [line.removesuffix("\r") for line in lines]
  if not is_json:
    return [Text(line, memory) for line in lines]
  return [
    _parse_object(number, line, memory)
    for number, line in enumerate(lines, start=1)
    if line.strip()
  ]


def from_python(values: Sequence[object], *, memory: str) -> list[Text]:
  """Converts texts, and JSON objects as a file has them, that Python was given.

  Raises:
    UserError: a value is neither.
  """
  found = []
  for number, value in enumerate(values, start=1):
    text = Text(value, memory) if isinstance(value, str) else None
    if isinstance(value, Mapping):
      text = _from_object(value, memory, f"text {number}")
    if text is None:
      shown = " ".join(repr(value).split())[:60]
      raise errors.UserError(
        f'text {number} must be a text or {{"text": "..."}}, optionally with '
        f'"memory": one of {POLICIES}; it is {shown}.'
      )
    found.append(text)
  return found


def _parse_object(number: int, line: str, memory: str) -> Text:
  try:
    text = _from_object(json.loads(line), memory, f"line {number}")
  except (ValueError, RecursionError):
    text = None
  if text is None:
    raise errors.UserError(
      f'line {number} must be {{"text": "..."}}, since the file is JSON by its '
      f'name or its first line, optionally with "memory": one of {POLICIES}.'
    )
  return text


def _from_object(value: object, memory: str, name: str) -> Text | None:
  """The text of a JSON object; None if it is not as it should be.

  Raises:
    UserError: a key is nearly one of ours. Others are the user's own.
  """
  if not isinstance(value, Mapping):
    return None
  missing = [field for field in Text._fields if field not in value]
  for key in value:
    near = difflib.get_close_matches(str(key).lower(), missing, 1, 0.85)
    if near:
      raise errors.UserError(
        f"{name} has {key!r}, which means nothing; did you mean {near[0]}?"
      )
  text = value.get("text")
  policy = value.get("memory", memory)
  if not isinstance(text, str) or policy not in POLICIES:
    return None
  return Text(text, policy)


def streams(
  texts: Iterable[Text], vocabulary: vocabulary_lib.Vocabulary, *, prefix: str
) -> list[Stream]:
  """All streams of `each_stream`."""
  return [*each_stream(texts, vocabulary, prefix=prefix)]


def each_stream(
  texts: Iterable[Text], vocabulary: vocabulary_lib.Vocabulary, *, prefix: str
) -> Iterator[Stream]:
  """Encodes texts, each after the prefix; a fresh one starts a new stream.

  Streams are in the order of their texts.

  Raises:
    UserError: a text has symbols outside the vocabulary.
  """
  try:
    before = encode(vocabulary, prefix, "score.prefix")
  except errors.UserError as error:
    raise errors.UserError(
      f"{error} The prefix is read before each text: set --config.score.prefix "
      "to other text, or to nothing to leave first tokens unscored."
    ) from None
  if prefix and not len(before):
    raise errors.UserError(
      f"score.prefix={prefix!r} has no tokens in this vocabulary, so the first "
      "token of a text would have no context; set --config.score.prefix to "
      "text that has some, or to nothing to leave first tokens unscored."
    )
  parts: list[np.ndarray] = []  # Of the stream that is being made.
  places: dict[int, slice] = {}
  end = 0
  for index, (text, memory) in enumerate(texts):
    if memory == "fresh" and parts:
      yield Stream(np.concatenate(parts), places)
      parts, places, end = [], {}, 0
    encoded = encode(vocabulary, text, f"text {index + 1}")
    start = end + len(before)
    end = start + len(encoded)
    parts += [before, encoded]
    places[index] = slice(start, end)
  if parts:
    yield Stream(np.concatenate(parts), places)


def whole_segments(ids: np.ndarray, segment_len: int) -> np.ndarray:
  """The ids [L] of a text in one lane [1, S * segment_len], with zeros behind.

  S is the number of segments that the text needs.
  """
  padded = np.zeros((1, len(ids) + -len(ids) % segment_len), np.int32)
  padded[0, : len(ids)] = ids
  return padded


def batches(
  rows: Sequence[np.ndarray], *, num_lanes: int, segment_len: int
) -> Iterator[tuple[list[int], np.ndarray]]:
  """Batches of rows [num_tokens] of similar length, the longest first.

  Yields:
    The indices of the rows, and their tokens [lanes, S * segment_len] with
    zeros behind them, for the S segments of the longest.
  """
  order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
  for first in range(0, len(order), num_lanes):
    chosen = order[first : first + num_lanes]
    longest = len(rows[chosen[0]])
    num_segments = max(1, -(-longest // segment_len))
    tokens = np.zeros((num_lanes, num_segments * segment_len), np.int32)
    for lane, index in enumerate(chosen):
      tokens[lane, : len(rows[index])] = rows[index]
    yield chosen, tokens


def encode_after(
  vocabulary: vocabulary_lib.Vocabulary,
  before: np.ndarray,
  text: str,
  name: str,
) -> np.ndarray:
  """The ids [num_tokens] of a text that goes on after tokens [P].

  Tokenizers such as Llama's put a space before a text, which is none in the
  middle of one. Errors call the text by the name.
  """
  if vocabulary.unit != "subword" or not text or not len(before):
    return encode(vocabulary, text, name)
  try:
    _, found = vocabulary.encode_after(vocabulary.decode(before), text)
  except errors.UserError as error:
    raise errors.UserError(f"{name}: {error}") from None
  return found.astype(np.int32)


def encode(
  vocabulary: vocabulary_lib.Vocabulary, text: str, name: str
) -> np.ndarray:
  """The ids [num_tokens] of a text, which errors call by this name."""
  try:
    return vocabulary.encode(text).astype(np.int32)
  except errors.UserError as error:
    raise errors.UserError(f"{name}: {error}") from None
