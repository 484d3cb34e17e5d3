"""The files in experiments/, without loading them."""

import ast
import difflib
import os
import pathlib

_FOLDER = pathlib.Path(__file__).parents[2] / "experiments"


def summaries() -> dict[str, str]:
  """The first line of each experiment's docstring, by path in the checkout."""
  return {
    f"experiments/{path.name}": _summary(path) for path in _files().values()
  }


def nearest(file: str) -> str:
  """The path of the experiment whose name is most like that of a file."""
  paths = _files()
  near = difflib.get_close_matches(pathlib.Path(file).stem, paths, n=1)
  path = paths[near[0]] if near else _FOLDER / "quickstart.py"
  relative = os.path.relpath(path)
  return str(path) if relative.startswith("..") else relative


def _files() -> dict[str, pathlib.Path]:
  return {
    path.stem: path
    for path in sorted(_FOLDER.glob("*.py"))
    if path.stem != "__init__"
  }


def _summary(path: pathlib.Path) -> str:
  text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
  return text.partition("\n")[0]
