"""Tokenizers: how text is cut into symbols, and the order of their ids."""

import collections
import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import tokenizers

from data_prep import piece
from transformer_xl import errors
from transformer_xl.data import vocabulary

KINDS = ("byte", "character", "word", "subword")
# Any text can be encoded because each byte is a subword.
_FEWEST_SUBWORDS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer:
  """How text becomes symbols, and how their ids are given out."""

  kind: str  # One of KINDS.
  lower_case: bool = False
  # Words only: symbols with the first ids, in this order; the symbol of a
  # newline; the symbol of words outside the vocabulary.
  special: tuple[str, ...] = ("<eos>",)
  end_of_line: str = "<eos>"
  unk: str | None = None
  min_freq: int = 0  # Words only: rarer ones are left out.
  max_size: int | None = None  # Words and subwords: limit on all symbols.
  all_bytes: bool = True  # Bytes only: all 256, or those that occur.

  @property
  def counts_symbols(self) -> bool:
    """Whether the vocabulary is made from the symbols of the text."""
    if self.kind == "byte":
      return not self.all_bytes
    return self.kind != "subword"

  def meta(self) -> dict[str, Any]:
    """Returns the fields that `vocabulary.parse` needs to encode new text."""
    meta: dict[str, Any] = {"kind": self.kind, "lower_case": self.lower_case}
    if self.kind == "word":
      meta |= {"end_of_line": self.end_of_line, "unk": self.unk}
    return meta


def of_text(kind: str) -> Tokenizer:
  """Returns the usual tokenizer of text that nobody else has prepared."""
  if kind == "word":
    special = ("<eos>", "<unk>")
    return Tokenizer(kind=kind, special=special, unk="<unk>")
  return Tokenizer(kind=kind)


def refine(
  tokenizer: Tokenizer,
  *,
  lower_case: bool | None,
  min_freq: int | None,
  max_size: int | None,
  trained: bool,
) -> Tokenizer:
  """Returns the tokenizer with the changes that the user wants.

  Args:
    tokenizer: The usual one.
    lower_case: None, here and below, keeps the usual value.
    min_freq: Minimum count of a word.
    max_size: Maximum number of symbols.
    trained: Whether the user gives a vocabulary.
  """
  if tokenizer.kind == "subword" and max_size is None and not trained:
    raise errors.UserError(
      "--tokenizer=subword needs the number of subwords, such as"
      " --max_size=16384, or a trained --vocabulary_file=tokenizer.json."
    )
  if (
    tokenizer.kind == "subword"
    and max_size is not None
    and max_size < _FEWEST_SUBWORDS
  ):
    raise errors.UserError(
      f"--max_size={max_size} is too small for subwords: each of the 256 bytes"
      f" is one, so give at least {_FEWEST_SUBWORDS}."
    )
  if lower_case and tokenizer.kind == "byte":
    raise errors.UserError("bytes have no case; lower_case is for other units.")
  if min_freq is not None and tokenizer.kind != "word":
    raise errors.UserError("min_freq is for --tokenizer=word only.")
  if max_size is not None and tokenizer.kind not in ("word", "subword"):
    raise errors.UserError("max_size is for words and subwords only.")
  if lower_case is not None:
    tokenizer = dataclasses.replace(tokenizer, lower_case=lower_case)
  if min_freq is None and max_size is None:
    return tokenizer
  if tokenizer.kind == "word" and tokenizer.unk is None:
    # The words that are left out need an id.
    special = (*tokenizer.special, "<unk>")
    tokenizer = dataclasses.replace(tokenizer, special=special, unk="<unk>")
  return dataclasses.replace(
    tokenizer, min_freq=min_freq or 0, max_size=max_size
  )


def pieces_of(
  split: Callable[[], Iterator[piece.Piece]], tokenizer: Tokenizer
) -> Iterator[piece.Piece]:
  """Returns a split's text as it is encoded.

  A newline is added between documents where it is missing. Text of words also
  ends in one, so that its last line has an end marker like the others.
  """
  return piece.separated(split(), final_newline=tokenizer.kind == "word")


def order(counts: collections.Counter[str], tokenizer: Tokenizer) -> list[str]:
  """Returns the symbols in the order of their ids.

  Special symbols come first, then the others by decreasing count. Ties are
  broken by first occurrence.
  """
  special = list(tokenizer.special) if tokenizer.kind == "word" else []
  taken = set(special)
  ranked = [
    symbol
    for symbol, count in counts.most_common()
    if count >= tokenizer.min_freq and symbol not in taken
  ]
  return (special + ranked)[: tokenizer.max_size]


def content(symbols: Iterable[str], *, kind: str) -> bytes:
  """Returns the vocabulary file of the symbols, one per line, escaped."""
  symbols = tuple(symbols)
  if kind == "byte":
    shown = vocabulary.ByteVocabulary(symbols).symbol
    lines = [shown(i) for i in range(len(symbols))]
  else:
    lines = [vocabulary.escape(symbol) for symbol in symbols]
  return "".join(line + "\n" for line in lines).encode("utf-8")


def train_subwords(texts: Iterator[str], *, size: int) -> bytes:
  """Returns the JSON of a byte-level BPE trained on the texts.

  Every byte is a symbol, so any text can be encoded and is restored exactly.
  """
  model = tokenizers.Tokenizer(tokenizers.models.BPE())
  model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
  model.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=size,
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  model.train_from_iterator(texts, trainer)
  return model.to_str().encode("utf-8")
