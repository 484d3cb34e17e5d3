"""Every public name says what it takes, what it gives and what it is.

Types stand in the signature. Shapes do, too, as jaxtyping's strings; where an
array is annotated without one, the docstring has the shape in brackets or says
what is special about it.
"""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
BARE = r"jax\.Array|np\.ndarray|NDArray"
TYPED = r"jt\.\w+\[[^'\]]*(\[[^\]]*\])?, '[^']*'\]"
OF_SHAPES = r"Callable|Mapping|dict"  # What is inside has names of its own.
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
  if is_bare(node) and not re.search(
    r"\[.+?\]|scalar|shape", ast.get_docstring(node) or ""
  ):
    yield "the shape of an array"


def is_bare(node):
  annotations = [argument.annotation for argument in arguments(node)]
  for annotation in [*annotations, node.returns]:
    text = re.sub(TYPED, "", ast.unparse(annotation) if annotation else "")
    if re.search(BARE, text) and not re.search(OF_SHAPES, text):
      return True
  return False


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
def norm(array: jax.Array) -> jt.Float[jax.Array, "B T"]:
  '''Without its mean.'''
def shaped(array: jt.Float[NDArray[Any], "B T"]) -> np.ndarray:
  '''Sums [B] of the rows.'''
"""
  assert missing(source) == [
    "line 2: Open lacks a docstring",
    "line 3: read lacks a docstring",
    "line 3: read lacks the type of count",
    "line 3: read lacks the type of its result",
    "line 7: norm lacks the shape of an array",
  ]
