"""Every public name says what it takes, what it gives and what it is."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = [
  path.relative_to(ROOT)
  for package in ("transformer_xl", "data_prep")
  for path in sorted((ROOT / package).rglob("*.py"))
]


def definitions(body):
  """Public classes and functions, methods and `__special__` ones included."""
  for node in body:
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
      yield node
      yield from definitions(node.body)
    if isinstance(node, ast.FunctionDef) and (
      not node.name.startswith("_") or node.name.endswith("__")
    ):
      yield node


def arguments(node):
  of = node.args
  every = [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]
  return [one for one in every if one and one.arg not in ("self", "cls")]


def lacks(node):
  """What a reader of the definition has to guess."""
  if not node.name.startswith("__") and not ast.get_docstring(node):
    yield "a docstring"
  if isinstance(node, ast.ClassDef):
    return
  for argument in arguments(node):
    if argument.annotation is None:
      yield f"the type of {argument.arg}"
  if not node.returns and node.name not in ("__init__", "__post_init__"):
    yield "the type of its result"


def missing(source):
  return [
    f"line {node.lineno}: {node.name} lacks {what}"
    for node in definitions(ast.parse(source).body)
    for what in lacks(node)
  ]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_public_names_are_typed_and_documented(path):
  assert not missing((ROOT / path).read_text("utf-8"))


def test_what_lacks_is_found():
  assert len(FILES) > 80
  source = """
class Open:
  def read(self, count, *, by: int): ...
  def _hidden(self, count): ...
def typed(count: int) -> int:
  '''Doubled.'''
"""
  assert missing(source) == [
    "line 2: Open lacks a docstring",
    "line 3: read lacks a docstring",
    "line 3: read lacks the type of count",
    "line 3: read lacks the type of its result",
  ]
