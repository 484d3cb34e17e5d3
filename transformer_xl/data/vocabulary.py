"""Vocabularies: text to token ids and back, lossless where possible.

A prepared dataset keeps its vocabulary as plain text or JSON, beside a
`meta.json` that states how text is split into symbols. Nothing is unpickled.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import tokenizers
from numpy.typing import NDArray

from transformer_xl import errors
from transformer_xl import storage

_MISSING = np.iinfo(np.uint32).max
# Beyond this share of unknown tokens a vocabulary does not fit a text.
_MOST_UNKNOWN = 0.2

# Texts that another may follow without a token that has characters of both.
_ANCHORS = ("\n", "-", "0", "a")
# Fields of a tokenizer in `meta.json` that say nothing of how it cuts text.
OF_EXPORTS = ("chat_template", "roles")
# Ids of symbols, in the smallest type that holds every id.
Ids = NDArray[np.unsignedinteger]


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Symbols in the order of their ids; `unit` names their kind.

  A subclass encodes either text (`_encode`) or bytes (`encode_bytes`), and
  decodes ids to either of them; the other two methods call those.
  """

  unit: ClassVar[str]  # byte, character, word or subword.
  symbols: tuple[str, ...]

  @property
  def size(self) -> int:
    """Number of symbols; ids are in [0, size)."""
    return len(self.symbols)

  @property
  def dtype(self) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned integers that hold every id."""
    return np.min_scalar_type(self.size - 1)

  @property
  def unknown(self) -> int | None:
    """The id of all that has no id of its own; None if there is none."""
    return None

  @property
  def special(self) -> dict[int, str]:
    """Names that are single symbols wherever they stand in a text, by id."""
    return {}

  def count_unknown(self, ids: Ids) -> int:
    """Returns how many ids [num_tokens] are those of the unknown."""
    if self.unknown is None:
      return 0
    return int(np.count_nonzero(ids == self.unknown))

  def encode(self, text: str) -> Ids:
    """Returns ids [num_tokens]; a UserError names a symbol without an id.

    Something else than a text is a UserError as well.

    Half of a surrogate pair is an error, too. Python puts such halves in place
    of bytes of a command line that are not UTF-8, and JSON can contain them.
    """
    if not isinstance(text, str):
      raise errors.UserError(
        f"a vocabulary encodes texts, which Python calls str: {text!r:.40} is "
        f"a {type(text).__name__}."
      )
    try:
      text.encode("utf-8")
    except UnicodeEncodeError as error:
      raise errors.UserError(
        f"{text[error.start]!r} at position {error.start} of the text is half "
        "of a surrogate pair and no character; give the text in UTF-8."
      ) from None
    return self._encode(text)

  def encode_after(self, context: str, text: str) -> tuple[Ids, Ids]:
    """Returns the ids of a context, and those of a text that continues it.

    They are the ids of both as one text if a token begins where the text does,
    and the context keeps its tokens; else each is encoded by itself, without a
    space that only the first word of a text has. So no part of the text is lost
    in a token that begins in the context, and the ids of the context are the
    same before every text.
    """
    before = self.encode(context)
    whole = self.encode(context + text)
    if self._begins_token(context, text) and np.array_equal(
      whole[: len(before)], before
    ):
      return before, whole[len(before) :]
    return before, self._encode_cut(before, text, whole)

  def encode_bytes(self, data: bytes) -> Ids:
    """Returns ids [num_tokens] of UTF-8; a byte vocabulary takes any bytes."""
    return self._encode(data.decode("utf-8"))

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; bytes that are not UTF-8 become U+FFFD."""
    return self.decode_bytes(ids).decode("utf-8", "replace")

  def decode_bytes(self, ids: Iterable[int]) -> bytes:
    """Returns the exact bytes of ids."""
    return self.decode(ids).encode("utf-8", "surrogatepass")

  def symbol(self, index: int) -> str:
    """Returns a symbol for display: printable, without white space."""
    return escape(self.symbols[index])

  def _encode(self, text: str) -> Ids:
    """Returns the ids [num_tokens] of a text that is Unicode."""
    return self.encode_bytes(text.encode("utf-8"))

  def _begins_token(self, context: str, text: str) -> bool:
    """Whether no token of `context + text` has characters of both."""
    return True

  def _encode_cut(self, before: Ids, text: str, whole: Ids) -> Ids:
    """Returns the ids of a text that begins inside a token.

    Behind the ids `before` they are decoded as `whole` is, if that can be.
    """
    return self.encode(text)


class _PointVocabulary(Vocabulary):
  """One id for each code point, or byte, found in a table."""

  limit: ClassVar[int]  # Every code point is below it.

  @functools.cached_property
  def _table(self) -> NDArray[np.uint32]:
    table = np.full(self.limit, _MISSING, np.uint32)
    table[[ord(symbol) for symbol in self.symbols]] = np.arange(self.size)
    return table

  def _find(self, points: NDArray[np.unsignedinteger]) -> Ids:
    """Returns ids [num_points]; a UserError names a point without one."""
    ids = self._table[points]
    missing = ids == _MISSING
    if missing.any():
      at = int(np.argmax(missing))
      point = int(points[at])
      is_byte = self.unit == "byte"
      name = f"the byte 0x{point:02x}" if is_byte else repr(chr(point))
      raise errors.UserError(
        f"{name} at position {at} of the text is not in the vocabulary; leave"
        " it out or use a model with a larger vocabulary."
      )
    return ids.astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class ByteVocabulary(_PointVocabulary):
  """Bytes, each stored as the character of that code point.

  By default the symbols are all 256 bytes in order, so an id is a byte's value.
  """

  unit = "byte"
  limit = 256
  symbols: tuple[str, ...] = tuple(map(chr, range(256)))

  def encode_bytes(self, data: bytes) -> Ids:
    """Returns ids [num_bytes] of any bytes."""
    return self._find(np.frombuffer(data, np.uint8))

  def decode_bytes(self, ids: Iterable[int]) -> bytes:
    """Returns the bytes of ids."""
    values = np.array([ord(s) for s in self.symbols], np.uint8)
    return values[_as_indices(ids)].tobytes()

  def symbol(self, index: int) -> str:
    """Returns an ASCII character, or the byte as an escape."""
    return escape_byte(self.symbols[index])


@dataclasses.dataclass(frozen=True)
class CharacterVocabulary(_PointVocabulary):
  """Unicode characters."""

  unit = "character"
  limit = 0x110000
  lower_case: bool

  def _encode(self, text: str) -> Ids:
    """Returns one id per character, [num_characters]."""
    text = text.lower() if self.lower_case else text
    data = text.encode("utf-32-le")
    return self._find(np.frombuffer(data, "<u4"))

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the characters of ids."""
    return "".join(self.symbols[i] for i in _as_indices(ids))


@dataclasses.dataclass(frozen=True)
class WordVocabulary(Vocabulary):
  """Words between white space; `end_of_line` replaces every newline.

  A word outside the vocabulary becomes `unk`; if that is None, it is an error.
  """

  unit = "word"
  lower_case: bool
  end_of_line: str | None
  unk: str | None

  @property
  def unknown(self) -> int | None:
    """The id of words outside the vocabulary."""
    return None if self.unk is None else self._index[self.unk]

  def _encode(self, text: str) -> Ids:
    """Returns one id per word and per newline, [num_tokens]."""
    text = text.lower() if self.lower_case else text
    end = f" {self.end_of_line} " if self.end_of_line else " "
    words = text.replace("\n", end).split()
    ids: Iterable[int] = map(self._index.__getitem__, words)
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

  def _begins_token(self, context: str, text: str) -> bool:
    # Ids do not tell: a word and its beginning may both be unknown.
    return (
      context[-1:].isspace() or text[:1].isspace() or not (context and text)
    )

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
  # An import has these for its export. The template makes text of messages, and
  # roles are names such as `eos_token` with the special tokens that have them.
  chat_template: str | None = None
  roles: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

  @functools.cached_property
  def unknown(self) -> int | None:
    """The id of what its subwords do not spell; none if bytes are subwords."""
    model = json.loads(self.model.to_str())["model"]
    if model.get("unk_id") is not None:  # A unigram model.
      return int(model["unk_id"])
    name = model.get("unk_token")
    return self.model.token_to_id(name) if name else None

  @functools.cached_property
  def special(self) -> dict[int, str]:
    """The special tokens of the file, such as <|endoftext|>, by id."""
    added = self.model.get_added_tokens_decoder()
    names = {i: token.content for i, token in added.items() if token.special}
    return {i: name for i, name in names.items() if i != self.unknown}

  def _encode(self, text: str) -> Ids:
    """Returns ids [num_tokens] of the subwords, without special tokens."""
    return np.array(self._subwords(text).ids, self.dtype)

  def _begins_token(self, context: str, text: str) -> bool:
    # Unknown tokens may join, so that ids do not tell.
    end = len(context.lower() if self.lower_case else context)
    places = self._subwords(context + text).offsets
    return all(stop <= end or start >= end for start, stop in places)

  def _encode_cut(self, before: Ids, text: str, whole: Ids) -> Ids:
    decoded = self.decode(whole)
    # Some put a space before a text, but not before what is behind an anchor.
    for anchor in ("", *_ANCHORS):
      start = self.encode(anchor)
      ids = self.encode(anchor + text)
      if (
        self._begins_token(anchor, text)
        and np.array_equal(ids[: len(start)], start)
        and self.decode(np.concatenate([before, ids[len(start) :]])) == decoded
      ):
        return ids[len(start) :]
    return self.encode(text)

  def _subwords(self, text: str) -> tokenizers.Encoding:
    text = text.lower() if self.lower_case else text
    return self.model.encode(text, add_special_tokens=False)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; exact for a byte-level model."""
    indices = _as_indices(ids).tolist()
    return self.model.decode(indices, skip_special_tokens=False)


def unknown_warning(share: float, *, of: str) -> str | None:
  """Returns a line if a large share of a text is unknown tokens, else None.

  `of` names the text.
  """
  if share <= _MOST_UNKNOWN:
    return None
  return (
    f"{share:.1%} of the tokens of {of} are unknown to the vocabulary, and are"
    " one symbol that is easy to predict: a low loss says little of the text;"
    " use a vocabulary that is made from such text, subwords or bytes."
  )


def load(
  directory: str,
  *,
  fix: str = "prepare it again with transformer-xl-data",
) -> Vocabulary:
  """Reads the vocabulary of a prepared dataset, or of a run.

  Raises:
    UserError: it is missing or damaged; the text ends in `fix`.
  """
  folder = pathlib.Path(storage.local(directory))
  try:
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    name = meta["vocabulary"]["file"]
    path = folder / pathlib.PurePath(name).name  # Never outside the folder.
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != (expected := meta["vocabulary"]["sha256"]):
      raise ValueError(f"{name} has the SHA-256 {digest}, expected {expected}")
    return parse(content, tokenizer=meta["tokenizer"])
  except FileNotFoundError as error:
    missing = os.path.join(directory, os.path.basename(error.filename))
    raise errors.UserError(
      f"{directory} has no vocabulary: {missing} is missing; {fix}."
    ) from None
  except (ValueError, LookupError, TypeError, RecursionError, OSError) as error:
    reason = " ".join(str(error).split())[:400]
    raise errors.UserError(
      f"{os.path.join(directory, 'meta.json')} or its vocabulary is damaged "
      f"({reason}); {fix}."
    ) from None


def parse(content: bytes, *, tokenizer: dict[str, Any]) -> Vocabulary:
  """Returns the vocabulary of a file's content and a tokenizer of `meta.json`.

  The content is JSON of the tokenizers library for subwords, otherwise a symbol
  per line, as `escape` writes it. ValueError, LookupError or TypeError if it
  does not match the tokenizer.
  """
  text = content.decode("utf-8")
  kind = tokenizer["kind"]
  lower_case = tokenizer["lower_case"]
  if kind == "subword":
    try:
      model = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # The library raises no narrower class.
      raise ValueError(str(error)) from None
    # A file keeps how a tokenizer was called last, and would cut all text.
    model.no_truncation()
    model.no_padding()
    # With it the same text would have other tokens each time.
    if getattr(model.model, "dropout", None) is not None:
      model.model.dropout = None
    size = 1 + max(model.get_vocab().values())
    if size > len(text):
      raise ValueError(f"an id is {size - 1}")
    symbols = tuple(model.id_to_token(i) or "" for i in range(size))
    template = tokenizer.get("chat_template")
    roles = dict(tokenizer.get("roles", {}))
    return SubwordVocabulary(symbols, model, lower_case, template, roles)
  symbols = tuple(map(unescape, text.removesuffix("\n").split("\n")))
  if len(set(symbols)) < len(symbols):
    [(twice, _)] = collections.Counter(symbols).most_common(1)
    raise ValueError(f"{twice!r} is there twice")
  if kind == "word":
    end_of_line = tokenizer["end_of_line"]
    unk = tokenizer["unk"]
    if missing := {end_of_line, unk} - {*symbols, None}:
      raise ValueError(f"{missing.pop()!r} is missing")
    return WordVocabulary(symbols, lower_case, end_of_line, unk)
  limit = {"byte": ByteVocabulary.limit, "character": CharacterVocabulary.limit}
  if not all(len(s) == 1 and ord(s) < limit[kind] for s in symbols):
    raise ValueError(f"not every line is one {kind}")
  if kind == "byte":
    return ByteVocabulary(symbols)
  return CharacterVocabulary(symbols, lower_case)


def escape(symbol: str) -> str:
  r"""Returns a symbol as printable text, with \\, \xNN, \uNNNN, \UNNNNNNNN."""
  if symbol.isalnum():  # The common case; every such character is printable.
    return symbol
  return "".join(_escape_character(c) for c in symbol)


def escape_byte(value: str) -> str:
  r"""Returns an ASCII character as `escape` does, another byte as \xNN."""
  return escape(value) if value.isascii() else f"\\x{ord(value):02x}"


def unescape(line: str) -> str:
  """Returns the symbol that `escape` wrote as this line.

  Raises:
    ValueError: an escape is no character.
  """
  if "\\" not in line:
    return line
  return re.sub(
    r"\\(?:\\|x(..)|u(....)|U(........))", _unescape_character, line
  )


def printable(text: str) -> str:
  """Returns text with its control characters escaped, which a terminal obeys.

  Tabs and newlines stay.
  """
  return "".join(
    _escape_character(c)
    if unicodedata.category(c) == "Cc" and c not in "\n\t"
    else c
    for c in text
  )


def _unescape_character(match: re.Match[str]) -> str:
  if not match.lastindex:
    return "\\"
  point = int(match[match.lastindex], 16)
  if point > sys.maxunicode:  # For some of these `chr` has another error.
    raise ValueError(f"{match[0]} is no character")
  return chr(point)


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
  ids = ids if hasattr(ids, "dtype") else list(ids)
  return np.asarray(ids).astype(np.int64).ravel()
