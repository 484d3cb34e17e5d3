"""Reads the vocabularies of the published programs.

Ids are positions in a pickled or plain list and cannot be rebuilt from the text
(docs/specification.md, section 18). Pickles are read as data; see
`inert_pickle`.
"""

import zipfile
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl.formats import inert_pickle
from transformer_xl.formats import torch_file

PICKLE_START = b"\x80"  # First byte of protocol 2 and later.


class Symbols(NamedTuple):
  """Symbols in the order of their ids."""

  symbols: tuple[str, ...]
  lower_case: bool


def read(path: str) -> Symbols:
  """Reads the symbols of a file of any published kind.

  Raises:
    UserError: the file is missing, damaged or of another kind.
  """
  try:
    with open(path, "rb") as file:
      start = file.read(1)
      file.seek(0)
      if zipfile.is_zipfile(path):
        root = torch_file.read(path).root
      elif start == PICKLE_START:
        root = inert_pickle.load(file, path)
      else:  # One symbol a line; counts may follow, as in 1b_word_vocab.txt.
        # A mark at its start (BOM) would belong to the first symbol.
        text = file.read().decode("utf-8-sig")
        lines = text.removesuffix("\n").split("\n")
        return Symbols(tuple(line.split()[0] for line in lines), False)
    if root == torch_file.LEGACY_MAGIC:
      root = torch_file.read(path).root
    # A vocabulary, its attributes, or a corpus with a `vocab`.
    fields = inert_pickle.mapping(root)
    fields = inert_pickle.mapping(fields.get("vocab", root))
    symbols = tuple(inert_pickle.text(symbol) for symbol in fields["idx2sym"])
    if not symbols or not all(isinstance(each, str) for each in symbols):
      raise TypeError
    return Symbols(symbols, bool(fields["lower_case"]))
  except FileNotFoundError:
    raise errors.UserError(f"{path} is missing; check --vocabulary.") from None
  except inert_pickle.FAILURES:
    raise errors.UserError(
      f"{path} is not a vocabulary: neither a pickled one with idx2sym nor one "
      "symbol a line; name another with --vocabulary=PATH."
    ) from None
