"""Input texts: reading files of them, and converting them to token streams."""

import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_xl import errors
from transformer_xl import input_files
from transformer_xl.data import vocabulary as vocabulary_lib

POLICIES = ("fresh", "carry")


class Text(NamedTuple):
  """A text and its memory: fresh, or carried over from the previous text."""

  text: str
  memory: str  # fresh | carry


class Stream(NamedTuple):
  """The tokens that one lane reads."""

  tokens: np.ndarray  # [num_tokens].
  owners: np.ndarray  # [num_tokens] indices of texts; -1 for a prefix.
  texts: list[int]  # Indices of all texts, including empty ones.


def read_file(path: str, *, field: str) -> str:
  """Reads a file in UTF-8, or standard input for `-`.

  The mark of UTF-8 at its start (BOM), which Windows writes, is left out.

  Raises:
    UserError: the file cannot be read, or is not UTF-8; it names the field.
  """
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


def _parse_object(number: int, line: str, memory: str) -> Text:
  try:
    value = json.loads(line)
    text = Text(value["text"], value.get("memory", memory))
    if isinstance(text.text, str) and text.memory in POLICIES:
      return text
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
    pass  # Answered below.
  raise errors.UserError(
    f'line {number} must be {{"text": "..."}}, since the file is JSON by its '
    f'name or its first line, optionally with "memory": one of {POLICIES}.'
  )


def streams(
  texts: Sequence[Text], vocabulary: vocabulary_lib.Vocabulary, *, prefix: str
) -> list[Stream]:
  """Encodes texts, each after the prefix; a fresh one starts a new stream.

  Raises:
    UserError: a text has symbols outside the vocabulary.
  """
  before = _encode(vocabulary, prefix, "score.prefix")
  if prefix and not len(before):
    raise errors.UserError(
      f"score.prefix={prefix!r} has no tokens in this vocabulary, so the first "
      "token of a text would have no context; set --config.score.prefix to "
      "text that has some, or to nothing to leave first tokens unscored."
    )
  nobody = np.full(len(before), -1)
  groups: list[tuple[list, list, list]] = []  # Parts of each stream's fields.
  for index, (text, memory) in enumerate(texts):
    if memory == "fresh" or not groups:
      groups.append(([], [], []))
    encoded = _encode(vocabulary, text, f"text {index + 1}")
    tokens, owners, indices = groups[-1]
    tokens += [before, encoded]
    owners += [nobody, np.full(len(encoded), index)]
    indices.append(index)
  return [
    Stream(np.concatenate(tokens), np.concatenate(owners), indices)
    for tokens, owners, indices in groups
  ]


def _encode(
  vocabulary: vocabulary_lib.Vocabulary, text: str, name: str
) -> np.ndarray:
  try:
    return vocabulary.encode(text).astype(np.int32)
  except errors.UserError as error:
    raise errors.UserError(f"{name}: {error}") from None
