"""Vocabularies of the published codes, as a folder that this package reads.

Ids are the order of a pickled or plain list, which cannot be made again from
the text (facts 3.1). Pickles are read as data, see `inert_pickle`.
"""

import collections
import hashlib
import json
import os
import zipfile
from typing import Any
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl import provenance
from transformer_xl import vocabulary as vocabulary_lib
from transformer_xl.importers import inert_pickle
from transformer_xl.importers import torch_file

NAME = "vocabulary.txt"
PICKLE_START = b"\x80"  # Of protocol 2 and later.
ENDS_OF_LINE = ("<eos>", "<S>")
UNKNOWN = ("<unk>", "<UNK>")


class Symbols(NamedTuple):
  """Symbols in the order of their ids."""

  symbols: tuple[str, ...]
  lower_case: bool


def copy(path: str, folder: str, *, size: int) -> dict[str, Any]:
  """Writes the vocabulary of a source into a folder.

  Args:
    path: vocab.pkl, vocab.bin, vocab.txt, cache.pkl, cache.pt, or the folder
      of a prepared dataset.
    folder: of the run; gets a folder `vocabulary` as prepared datasets have.
    size: of the model's vocabulary.

  Returns:
    What the certificate says of it.

  Raises:
    UserError: the file is damaged, or has another number of symbols.
  """
  if os.path.isdir(path):
    vocabulary_lib.load(path)  # Checks it.
    provenance.keep_vocabulary(path, folder)
  else:
    _write(read(path), os.path.join(folder, provenance.VOCABULARY))
  loaded = vocabulary_lib.load(os.path.join(folder, provenance.VOCABULARY))
  if loaded.size != size:
    raise errors.UserError(
      f"{path} has {loaded.size} symbols, but the model has {size}; name the "
      "model's own with --vocabulary=PATH."
    )
  return {"path": path, "unit": loaded.unit, "size": loaded.size}


def read(path: str) -> Symbols:
  """The symbols of a file of any of the published kinds."""
  try:
    with open(path, "rb") as file:
      start = file.read(1)
      file.seek(0)
      if zipfile.is_zipfile(path):
        root = torch_file.read(path).root
      elif start == PICKLE_START:
        root = inert_pickle.load(file, path)
      else:
        return _read_text(file.read())
    if root == torch_file.LEGACY_MAGIC:
      root = torch_file.read(path).root
    return _from_pickle(root)
  except FileNotFoundError:
    raise errors.UserError(f"{path} is missing; check --vocabulary.") from None
  except inert_pickle.FAILURES:
    raise errors.UserError(
      f"{path} is no vocabulary: neither a pickled one with idx2sym nor one "
      "symbol a line; name another with --vocabulary=PATH."
    ) from None


def _from_pickle(root: Any) -> Symbols:
  """Of a vocabulary, its attributes, or the corpus that has it as `vocab`."""
  fields = inert_pickle.mapping(root)
  if "vocab" in fields:
    fields = inert_pickle.mapping(fields["vocab"])
  symbols = tuple(inert_pickle.text(symbol) for symbol in fields["idx2sym"])
  if not all(isinstance(symbol, str) for symbol in symbols):
    raise TypeError
  return Symbols(symbols, bool(fields["lower_case"]))


def _read_text(content: bytes) -> Symbols:
  """One symbol a line; counts may follow, as in 1b_word_vocab.txt."""
  lines = content.decode("utf-8").removesuffix("\n").split("\n")
  return Symbols(tuple(line.split()[0] for line in lines), lower_case=False)


def _write(read: Symbols, folder: str) -> None:
  kind, symbols = _kind(read.symbols)
  [(most_common, count)] = collections.Counter(symbols).most_common(1)
  if count > 1:
    raise errors.UserError(
      f"the vocabulary has {most_common!r} {count} times; each symbol has one "
      "id: name another with --vocabulary=PATH."
    )
  # It was set for enwik8 too, without effect: its symbols are numbers there.
  lower_case = read.lower_case and kind != "byte"
  tokenizer: dict[str, Any] = {"kind": kind, "lower_case": lower_case}
  if kind == "word":
    tokenizer["end_of_line"] = _first(ENDS_OF_LINE, symbols)
    tokenizer["unk"] = _first(UNKNOWN, symbols)
  lines = [f"{vocabulary_lib.escape(symbol)}\n" for symbol in symbols]
  content = "".join(lines).encode()
  os.makedirs(folder)
  with open(os.path.join(folder, NAME), "wb") as file:
    file.write(content)
  meta = {
    "unit": kind,
    "tokenizer": tokenizer,
    "vocabulary": {
      "file": NAME,
      "size": len(symbols),
      "sha256": hashlib.sha256(content).hexdigest(),
    },
  }
  with open(os.path.join(folder, "meta.json"), "w", encoding="utf-8") as file:
    json.dump(meta, file, indent=2)


def _kind(symbols: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
  """What the symbols are, and how this package spells them.

  enwik8 has bytes as decimal numbers, text8 an underscore for each space.
  """
  if all(symbol.isdecimal() and int(symbol) < 256 for symbol in symbols):
    return "byte", tuple(chr(int(symbol)) for symbol in symbols)
  if all(len(symbol) == 1 for symbol in symbols):
    if " " not in symbols:
      symbols = tuple(s if s != "_" else " " for s in symbols)
    return "character", symbols
  return "word", symbols


def _first(names: tuple[str, ...], symbols: tuple[str, ...]) -> str | None:
  return next((name for name in names if name in symbols), None)
