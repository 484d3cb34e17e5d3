"""The experiments of this project by name: files, summaries, suggestions."""

import ast
import difflib
import pathlib

from transformer_xl.config import name_parser

FOLDER = (pathlib.Path(__file__).parents[1] / "experiments").resolve()
PATHS = {path.stem: path for path in sorted(FOLDER.glob("[!_]*.py"))}
_MOST_SUGGESTIONS = 3


def summary(name: str) -> str:
  """The first line of an experiment's docstring."""
  tree = ast.parse(PATHS[name].read_text("utf-8"))
  line, _, _ = (ast.get_docstring(tree) or "").partition("\n")
  return line


def meant(wrong: str) -> list[str]:
  """Experiments that a wrong name may stand for: the likeliest few, or none.

  It may be a misspelling, the start of a name, or a dataset that an experiment
  has in its summary, such as `wikitext103`.
  """
  word = name_parser.letters(wrong)
  if not word:
    return []
  found = [name for name in PATHS if word in name_parser.letters(name)]
  found += [
    name for name in PATHS if word in name_parser.letters(summary(name))
  ]
  found = found or difflib.get_close_matches(wrong, PATHS, n=1)
  return [*dict.fromkeys(found)][:_MOST_SUGGESTIONS]
