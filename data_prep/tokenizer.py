"""Tokenizers: how text is cut into symbols, and which get ids."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from transformer_xl import errors

# What can be chosen for each kind of symbol.
_OPTIONS = {
  "byte": (),
  "character": ("lower_case",),
  "word": ("lower_case", "min_freq", "max_size"),
  "subword": ("lower_case", "max_size"),
}
KINDS = tuple(_OPTIONS)
Meta = dict[str, Any]  # What meta.json states of a tokenizer.
# Any text can be encoded because each byte is a subword.
_FEWEST_SUBWORDS = 256
_MOST_SUBWORDS = 2**24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer:
  """How text becomes symbols, and how their ids are given out."""

  kind: str  # One of KINDS.
  lower_case: bool = False
  # Words only: the symbols of a newline and of words outside the vocabulary,
  # which have the first ids.
  end_of_line: str = "<eos>"
  unk: str | None = None
  min_freq: int = 0  # Words only: rarer ones are left out.
  max_size: int | None = None  # Words and subwords: limit on all symbols.
  all_bytes: bool = True  # Bytes only: all 256, or those that occur.

  @property
  def counts_symbols(self) -> bool:
    """Whether the vocabulary is made from the symbols of the text."""
    return {"byte": not self.all_bytes, "subword": False}.get(self.kind, True)

  def meta(self) -> Meta:
    """Returns the fields that `vocabulary.parse` needs to encode new text."""
    meta: Meta = {"kind": self.kind, "lower_case": self.lower_case}
    if self.kind == "word":
      meta |= {"end_of_line": self.end_of_line, "unk": self.unk}
    return meta


def of_text(kind: str) -> Tokenizer:
  """Returns the usual tokenizer of text that nobody else has prepared."""
  return Tokenizer(kind=kind, unk="<unk>" if kind == "word" else None)


def refine(
  tokenizer: Tokenizer,
  *,
  trained: bool,
  lower_case: bool | None = None,
  min_freq: int | None = None,
  max_size: int | None = None,
) -> Tokenizer:
  """Returns a tokenizer with what the user chose of _OPTIONS, None elsewhere.

  UserError if one does not fit, or the number of subwords is not known.
  """
  kind = tokenizer.kind
  chosen: dict[str, Any] = {
    "lower_case": lower_case,
    "min_freq": min_freq,
    "max_size": max_size,
  }
  changes = {name: value for name, value in chosen.items() if value is not None}
  wanted = [name for name in changes if changes[name]]
  refuse_others(wanted, _OPTIONS, "tokenizer", kind)
  default = _FEWEST_SUBWORDS if trained else tokenizer.max_size or 0
  size = changes.get("max_size", default)
  if kind == "subword" and size < _FEWEST_SUBWORDS:
    raise errors.UserError(
      "--tokenizer=subword needs the number of subwords, such as"
      f" --max_size=16384, at least {_FEWEST_SUBWORDS} (each byte is one), or"
      " a trained --vocabulary_file=tokenizer.json."
    )
  if kind == "subword" and size > _MOST_SUBWORDS:
    raise errors.UserError(
      f"--max_size={size} is too large for --tokenizer=subword, which keeps a"
      f" table of all subwords: at most {_MOST_SUBWORDS}."
    )
  leaves_out = "min_freq" in changes or "max_size" in changes
  if kind == "word" and leaves_out and tokenizer.unk is None:
    # The words that are left out need an id.
    changes["unk"] = "<unk>"
  refined = dataclasses.replace(tokenizer, **changes)
  if kind == "word" and refined.max_size is not None and not trained:
    special = [s for s in (refined.end_of_line, refined.unk) if s is not None]
    if refined.max_size <= len(special):
      raise errors.UserError(
        f"--max_size={refined.max_size} is for all symbols, also for"
        f" {' and '.join(special)}; set at least {len(special) + 1}."
      )
  return refined


def refuse_others(
  names: list[str],
  options: Mapping[str, Collection[str]],
  flag: str,
  value: str,
) -> None:
  """Raises UserError if one of the names is no option of the flag's value."""
  for name in names:
    if name not in options[value]:
      others = " or ".join(v for v in options if name in options[v])
      raise errors.UserError(f"--{name} is for --{flag}={others}, not {value}.")
