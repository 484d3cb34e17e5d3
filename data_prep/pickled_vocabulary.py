"""The words in `cache.pkl`, the corpus pickled by the published TF code.

These vocabularies cannot be made again from the text: words of equal counts
are in the arbitrary order of Python 2. A pickle is a program that can call
anything, so this reader gives it nothing to call: every name it asks for is
replaced by an inert class that keeps what it is given.
"""

import pathlib
import pickle
from typing import Any

from transformer_xl import errors


class _Inert:
  """What stands for any class or function that the file names."""

  def __init__(self, *args: Any, **fields: Any):
    self.args = args
    self.fields = fields

  def __setstate__(self, state: Any) -> None:
    self.fields = state

  def __setitem__(self, key: Any, value: Any) -> None:
    """Takes the entries of what was a dictionary."""

  def append(self, value: Any) -> None:
    """Takes the entries of what was a list."""

  def extend(self, values: Any) -> None:
    """Takes the entries of what was a list."""


class _Reader(pickle.Unpickler):
  """An unpickler that finds nothing but inert classes."""

  def find_class(self, module: str, name: str) -> Any:
    """Returns the inert class, whatever is asked for."""
    return _Inert

  def persistent_load(self, pid: Any) -> Any:
    """Refuses what needs code of its own."""
    raise pickle.UnpicklingError("it refers to objects outside of it")


def read(path: pathlib.Path) -> list[str]:
  """Returns the symbols in the order of their ids; UserError if it has none."""
  try:
    with open(path, "rb") as file:
      # Python 2 wrote text as bytes; latin1 keeps each of them.
      corpus = _Reader(file, encoding="latin1").load()
    symbols = corpus.fields["vocab"].fields["idx2sym"]
    return [_as_text(symbol) for symbol in symbols]
  except OSError:
    raise
  except Exception as error:
    # A file that is no pickle, or one made to break readers, raises anything.
    raise errors.UserError(
      f"{path} is not a corpus pickled by the published code"
      f" ({type(error).__name__}: {error}); give its cache.pkl."
    ) from None


def _as_text(symbol: Any) -> str:
  if not isinstance(symbol, str):
    raise TypeError(f"{symbol!r} is no word")
  try:
    return symbol.encode("latin1").decode("utf-8")
  except UnicodeError:
    return symbol  # Written by Python 3 as text.
