"""Texts to read: files of them, and the streams of tokens that they become."""

import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_xl import errors
from transformer_xl.data import vocabulary as vocabulary_lib

POLICIES = ("fresh", "carry")


class Text(NamedTuple):
  """A text, and whether it starts from nothing or goes on from the last."""

  text: str
  memory: str  # fresh | carry


class Stream(NamedTuple):
  """What one lane reads."""

  tokens: np.ndarray
  owners: np.ndarray  # Which text each is of; -1 for a prefix.
  texts: list[int]  # All of them, also the empty ones.


def read_file(path: str, *, field: str) -> str:
  """The text of a file in UTF-8, or of standard input for `-`.

  Args:
    path: of the file.
    field: the configuration's, which an error names.

  Raises:
    UserError: the file cannot be read, or is no UTF-8.
  """
  try:
    if path == "-":
      return sys.stdin.buffer.read().decode("utf-8")
    with open(path, "rb") as file:
      return file.read().decode("utf-8")
  except OSError as error:
    raise errors.UserError(
      f"cannot read {path}: {error.strerror}; set --config.{field}=FILE, "
      "or - for standard input."
    ) from None
  except UnicodeDecodeError as error:
    raise errors.UserError(
      f"{path} is no UTF-8 at byte {error.start}; convert it, for example "
      "with iconv."
    ) from None


def parse(content: str, *, memory: str) -> list[Text]:
  """The texts of a file: one a line, or one JSON object a line.

  It is JSON if its first line is an object. Then `text` is the text, which may
  have newlines, and `memory` may be other than for the others.

  Raises:
    UserError: a line is not like the first, or there is none.
  """
  if not content:
    raise errors.UserError("there are no texts to score: the file is empty.")
  lines = content.removesuffix("\n").split("\n")
  if not lines[0].startswith("{"):
    return [Text(line, memory) for line in lines]
  return [
    _parse_object(line, number, memory)
    for number, line in enumerate(lines, start=1)
  ]


def _parse_object(line: str, number: int, memory: str) -> Text:
  try:
    value = json.loads(line)
    result = Text(value["text"], value.get("memory", memory))
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
    result = Text("", "")
  if not isinstance(result.text, str) or result.memory not in POLICIES:
    raise errors.UserError(
      f'line {number} must be {{"text": "..."}} as the first line is JSON, '
      f'perhaps with "memory": one of {POLICIES}.'
    )
  return result


def streams(
  texts: Sequence[Text],
  vocabulary: vocabulary_lib.Vocabulary,
  *,
  prefix: str,
) -> list[Stream]:
  """Tokens of the texts, with the prefix before each; a fresh one starts anew.

  Raises:
    UserError: a text is outside of the vocabulary.
  """
  before = _encode(vocabulary, prefix, "score.prefix")
  tokens = [
    np.concatenate([before, _encode(vocabulary, text, f"text {number}")])
    for number, (text, _) in enumerate(texts, start=1)
  ]
  groups: list[list[int]] = []
  for index, text in enumerate(texts):
    if text.memory == "fresh" or not groups:
      groups.append([])
    groups[-1].append(index)
  owners = [np.full(len(row), index) for index, row in enumerate(tokens)]
  for row in owners:
    row[: len(before)] = -1
  return [
    Stream(
      np.concatenate([tokens[index] for index in group]),
      np.concatenate([owners[index] for index in group]),
      group,
    )
    for group in groups
  ]


def _encode(vocabulary, text, name) -> np.ndarray:
  try:
    return vocabulary.encode(text).astype(np.int32)
  except errors.UserError as error:
    raise errors.UserError(f"{name}: {error}") from None
