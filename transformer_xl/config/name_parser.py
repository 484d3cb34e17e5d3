"""A flag whose value is one of several names."""

import difflib
import re
from collections.abc import Mapping, Sequence

from absl import flags


def letters(name: str) -> str:
  """The letters and digits of a name, in lower case, by which names compare."""
  return re.sub(r"[^a-z0-9]", "", name.lower())


class NameParser(flags.ArgumentParser):
  """Reads one of several names, also with other hyphens or capitals."""

  def __init__(
    self,
    names: Sequence[str],
    *,
    others: Mapping[str, str] | None = None,
    hints: Mapping[str, str] | None = None,
  ):
    """Takes the names, and words for them.

    Args:
      names: what `parse` returns one of.
      others: the names that other words stand for.
      hints: the names that an error suggests for words that are refused.
    """
    self._names = names
    self._meanings = {letters(name): name for name in names}
    self._meanings.update(others or {})
    self._suggestions = {**self._meanings, **(hints or {})}

  def parse(self, argument: str) -> str:
    """The name; a ValueError, whose text absl prints, if it is none."""
    word = letters(argument)
    if word in self._meanings:
      return self._meanings[word]
    near = difflib.get_close_matches(word, self._suggestions, n=1)
    hint = f"; did you mean {self._suggestions[near[0]]}?" if near else ""
    raise ValueError(f"value should be one of <{'|'.join(self._names)}>{hint}")
