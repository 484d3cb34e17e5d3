"""Vocabularies: text to token ids and back, lossless where possible.

A prepared dataset keeps its vocabulary as plain text or JSON, beside a
`meta.json` that states how text is split into symbols. Nothing is unpickled.
"""

import abc
import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any
from typing import ClassVar

import numpy as np
import tokenizers
from numpy.typing import NDArray

from transformer_xl import errors
from transformer_xl.data import lookup_table

_LAST_CODE_POINT = 0x10FFFF


@dataclasses.dataclass(frozen=True)
class Vocabulary(abc.ABC):
  """Symbols in the order of their ids; `unit` names their kind."""

  unit: ClassVar[str]  # byte, character, word or subword.
  symbols: tuple[str, ...]

  @property
  def size(self) -> int:
    """Number of symbols; ids are in [0, size)."""
    return len(self.symbols)

  @property
  def dtype(self) -> np.dtype[Any]:
    """The smallest unsigned integers that hold every id."""
    return np.min_scalar_type(self.size - 1)

  @abc.abstractmethod
  def encode(self, text: str) -> NDArray[Any]:
    """Returns ids [num_tokens]; a UserError names a symbol without an id."""

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; bytes that are not UTF-8 become U+FFFD."""

  def symbol(self, index: int) -> str:
    """Returns a symbol for display: printable, without white space."""
    return escape(self.symbols[index])

  def encode_bytes(self, data: bytes) -> NDArray[Any]:
    """Returns ids [num_tokens] of UTF-8; a byte vocabulary takes any bytes."""
    return self.encode(data.decode("utf-8"))

  def decode_bytes(self, ids: Iterable[int]) -> bytes:
    """Returns the exact bytes of ids."""
    return self.decode(ids).encode("utf-8", "surrogatepass")


@dataclasses.dataclass(frozen=True)
class ByteVocabulary(Vocabulary):
  """Bytes, each stored as the character of that code point.

  By default all 256 in order, so that an id is the byte's value.
  """

  unit = "byte"
  symbols: tuple[str, ...] = tuple(map(chr, range(256)))

  def encode(self, text: str) -> NDArray[Any]:
    """Returns ids [num_bytes] of a text in UTF-8."""
    return self.encode_bytes(text.encode("utf-8", "surrogatepass"))

  def encode_bytes(self, data: bytes) -> NDArray[Any]:
    """Returns ids [num_bytes] of any bytes."""
    values = np.frombuffer(data, np.uint8)
    ids = lookup_table.find(
      self._table, values, name=lambda value: f"the byte 0x{value:02x}"
    )
    return ids.astype(self.dtype)

  def decode_bytes(self, ids: Iterable[int]) -> bytes:
    """Returns the bytes of ids."""
    values = np.array([ord(s) for s in self.symbols], np.uint8)
    return values[_as_indices(ids)].tobytes()

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the bytes as text; invalid UTF-8 becomes U+FFFD."""
    return self.decode_bytes(ids).decode("utf-8", "replace")

  def symbol(self, index: int) -> str:
    """Returns an ASCII character, or the byte as an escape."""
    return escape_byte(self.symbols[index])

  @functools.cached_property
  def _table(self) -> NDArray[np.uint32]:
    return lookup_table.make(self.symbols, length=256)


@dataclasses.dataclass(frozen=True)
class CharacterVocabulary(Vocabulary):
  """Unicode characters."""

  unit = "character"
  lower_case: bool

  def encode(self, text: str) -> NDArray[Any]:
    """Returns one id per character, [num_characters]."""
    text = text.lower() if self.lower_case else text
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    ids = lookup_table.find(
      self._table, points, name=lambda point: repr(chr(point))
    )
    return ids.astype(self.dtype)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the characters of ids."""
    return "".join(self.symbols[i] for i in _as_indices(ids))

  @functools.cached_property
  def _table(self) -> NDArray[np.uint32]:
    return lookup_table.make(self.symbols, length=_LAST_CODE_POINT + 1)


@dataclasses.dataclass(frozen=True)
class WordVocabulary(Vocabulary):
  """Words between white space; `end_of_line` replaces every newline.

  A word outside the vocabulary becomes `unk`; if that is None, it is an error.
  """

  unit = "word"
  lower_case: bool
  end_of_line: str | None
  unk: str | None

  def encode(self, text: str) -> NDArray[Any]:
    """Returns one id per word and per newline, [num_tokens]."""
    text = text.lower() if self.lower_case else text
    end = f" {self.end_of_line} " if self.end_of_line else " "
    words = text.replace("\n", end).split()
    ids: Iterable[Any] = map(self._index.__getitem__, words)
    if self.unk is not None:
      unknown = itertools.repeat(self._index[self.unk])
      ids = map(self._index.get, words, unknown)
    try:
      return np.fromiter(ids, self.dtype, count=len(words))
    except KeyError as error:
      word = error.args[0]
      raise errors.UserError(
        f"the word {word!r} at position {words.index(word)} of the text is not"
        f" among the {self.size} words of the vocabulary, which has no unknown"
        " word; leave it out or use a model with a larger vocabulary."
      ) from None

  def decode(self, ids: Iterable[int]) -> str:
    """Returns words with single spaces; original white space is lost."""
    indices = _as_indices(ids)
    ends = np.flatnonzero(indices == self._index.get(self.end_of_line, -1))
    starts = np.concatenate([[0], ends + 1])
    stops = np.concatenate([ends, [len(indices)]])
    lines = (indices[a:b] for a, b in zip(starts, stops, strict=True))
    return "\n".join(" ".join(self.symbols[i] for i in line) for line in lines)

  @functools.cached_property
  def _index(self) -> dict[str | None, int]:
    return {symbol: i for i, symbol in enumerate(self.symbols)}


@dataclasses.dataclass(frozen=True)
class SubwordVocabulary(Vocabulary):
  """Subwords, by a model of the HuggingFace tokenizers library."""

  unit = "subword"
  model: tokenizers.Tokenizer
  lower_case: bool

  def encode(self, text: str) -> NDArray[Any]:
    """Returns ids [num_tokens] of the subwords, without special tokens."""
    text = text.lower() if self.lower_case else text
    ids = self.model.encode(text, add_special_tokens=False).ids
    return np.array(ids, self.dtype)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; exact for a byte-level model."""
    indices = _as_indices(ids).tolist()
    return self.model.decode(indices, skip_special_tokens=False)


def load(directory: str) -> Vocabulary:
  """Reads the vocabulary of a prepared dataset; UserError if it is damaged."""
  folder = pathlib.Path(directory)
  try:
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    name = meta["vocabulary"]["file"]
    path = folder / pathlib.PurePath(name).name  # Never outside the folder.
    expected = meta["vocabulary"]["sha256"]
    content = path.read_bytes()
  except FileNotFoundError as error:
    raise errors.UserError(
      f"{directory} is not a prepared dataset: {error.filename} is missing;"
      " prepare it with python -m data_prep.main."
    ) from None
  except (ValueError, KeyError, TypeError, RecursionError, OSError):
    raise errors.UserError(
      f"{folder / 'meta.json'} is damaged; delete {directory} and prepare it"
      " again with python -m data_prep.main."
    ) from None
  digest = hashlib.sha256(content).hexdigest()
  if digest != expected:
    raise errors.UserError(
      f"{path} is not the vocabulary of the prepared tokens: it has the SHA-256"
      f" {digest}, expected {expected}; delete {directory} and prepare again."
    )
  try:
    return parse(content, tokenizer=meta["tokenizer"])
  except (ValueError, LookupError, TypeError) as error:
    reason = " ".join(str(error).split())[:200]
    raise errors.UserError(
      f"{path} is not what meta.json describes ({reason}); delete "
      f"{directory} and prepare it again with python -m data_prep.main."
    ) from None


def parse(content: bytes, *, tokenizer: dict[str, Any]) -> Vocabulary:
  """Returns the vocabulary of a file's content and a tokenizer's fields.

  Args:
    content: JSON of the tokenizers library for subwords; otherwise one symbol
      per line, as `escape` writes it.
    tokenizer: as in `meta.json`: kind, lower_case and, for words, end_of_line
      and unk.

  Raises:
    ValueError, LookupError, TypeError: content and fields do not match.
  """
  text = content.decode("utf-8")
  kind, lower_case = tokenizer["kind"], tokenizer["lower_case"]
  if kind == "subword":
    try:
      model = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # The library raises no narrower class.
      raise ValueError(str(error)) from None
    size = 1 + max(model.get_vocab().values())
    if size > len(text):
      raise ValueError(f"an id is {size - 1}")
    symbols = tuple(model.id_to_token(i) or "" for i in range(size))
    return SubwordVocabulary(symbols, model, lower_case)
  symbols = tuple(unescape(s) for s in text.removesuffix("\n").split("\n"))
  if len(set(symbols)) < len(symbols):
    raise ValueError("a symbol is there twice")
  if kind in ("byte", "character"):
    limit = 256 if kind == "byte" else _LAST_CODE_POINT + 1
    if not all(len(s) == 1 and ord(s) < limit for s in symbols):
      raise ValueError(f"not every line is one {kind}")
  if kind == "byte":
    return ByteVocabulary(symbols)
  if kind == "character":
    return CharacterVocabulary(symbols, lower_case)
  if kind != "word":
    raise ValueError(f"kind is {kind!r}")
  end_of_line, unk = tokenizer["end_of_line"], tokenizer["unk"]
  if not {end_of_line, unk} <= {*symbols, None}:
    raise ValueError(f"{end_of_line!r} or {unk!r} is missing")
  return WordVocabulary(symbols, lower_case, end_of_line, unk)


def escape(symbol: str) -> str:
  r"""Returns a symbol as printable text, with \\, \xNN, \uNNNN, \UNNNNNNNN."""
  if symbol.isalnum():  # The common case; every such character is printable.
    return symbol
  return "".join(_escape_character(c) for c in symbol)


def escape_byte(value: str) -> str:
  r"""Returns an ASCII character as `escape` does, another byte as \xNN."""
  return escape(value) if value.isascii() else f"\\x{ord(value):02x}"


def unescape(line: str) -> str:
  """Returns the symbol that `escape` wrote as this line."""
  if "\\" not in line:
    return line
  return re.sub(
    r"\\(?:\\|x(..)|u(....)|U(........))",
    lambda m: chr(int(m[m.lastindex], 16)) if m.lastindex else "\\",
    line,
  )


def _escape_character(character: str) -> str:
  if character == "\\":
    return "\\\\"
  if character.isprintable() and not character.isspace():
    return character
  point = ord(character)
  if point < 0x100:
    return f"\\x{point:02x}"
  return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _as_indices(ids: Iterable[int]) -> NDArray[np.int64]:
  array = ids if hasattr(ids, "dtype") else list(ids)
  return np.asarray(array).astype(np.int64).ravel()
