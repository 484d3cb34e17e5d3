"""Small mistakes in a source file, one in each mutant."""

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple


class Mutant(NamedTuple):
  """A source file with one change."""

  line: int  # From 1.
  column: int  # From 1, in bytes of UTF-8.
  change: str  # What was there, and what is there now.
  source: str

  @property
  def name(self) -> str:
    """Place and change; a line can have the same change twice."""
    return f"{self.line}:{self.column}  {self.change}"


_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
  ast.Lt: ast.LtE,
  ast.LtE: ast.Lt,
  ast.Gt: ast.GtE,
  ast.GtE: ast.Gt,
  ast.Eq: ast.NotEq,
  ast.NotEq: ast.Eq,
  ast.Is: ast.IsNot,
  ast.IsNot: ast.Is,
  ast.In: ast.NotIn,
  ast.NotIn: ast.In,
  ast.Add: ast.Sub,
  ast.Sub: ast.Add,
  ast.Mult: ast.Div,
  ast.Div: ast.Mult,
  ast.FloorDiv: ast.Mult,
  ast.Mod: ast.FloorDiv,
  ast.Pow: ast.Mult,
  ast.LShift: ast.RShift,
  ast.RShift: ast.LShift,
  ast.BitAnd: ast.BitOr,
  ast.BitOr: ast.BitAnd,
  ast.And: ast.Or,
  ast.Or: ast.And,
}
_FUNCTIONS = {
  "all": "any",
  "any": "all",
  "ceil": "floor",
  "cos": "sin",
  "cummax": "cummin",
  "floor": "ceil",
  "max": "min",
  "maximum": "minimum",
  "min": "max",
  "minimum": "maximum",
  "ones": "zeros",
  "sin": "cos",
  "zeros": "ones",
  "zeros_like": "ones_like",
}
# Calls that concern messages or the compiler, or that state types.
_NOT_MUTATED = {
  "checkpoint_name",
  "debug",
  "error",
  "info",
  "named_scope",
  "warning",
  "UserError",
}


def mutants(source: str) -> list[Mutant]:
  """All mutants of a source file.

  Docstrings, messages, assertions, annotations, decorators and aliases of types
  stay as they are.
  """
  lines = source.encode().splitlines(keepends=True)
  starts = [0]
  for line in lines:
    starts.append(starts[-1] + len(line))
  result = []
  for node, changed in _changes_in(ast.parse(source)):
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    text = ast.unparse(changed)
    if isinstance(node, ast.expr):  # Later lines keep their numbers.
      text = f"({text}{chr(10) * (node.end_lineno - node.lineno)})"
    code = source.encode()
    code = code[:start] + text.encode() + code[end:]
    change = f"{ast.unparse(node)}  ->  {ast.unparse(changed)}"
    column = node.col_offset + 1
    result.append(Mutant(node.lineno, column, change, code.decode()))
  return sorted(result)


def _changes_in(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
  """Yields nodes, and what to put in their place."""
  for node in _arithmetic(tree):
    for changed in _changes(node):
      yield node, changed
    if isinstance(node, (ast.If, ast.IfExp)) and isinstance(
      node.test, (ast.Name, ast.Attribute, ast.Call)
    ):
      yield node.test, ast.UnaryOp(ast.Not(), node.test)


def _arithmetic(node: ast.AST, *, in_function: bool = False) -> Iterator:
  """Yields the expressions and statements that may be mutated."""
  if isinstance(node, (ast.Assert, ast.Raise, ast.JoinedStr)):
    return
  if isinstance(node, ast.Call) and _name(node.func) in _NOT_MUTATED:
    return
  is_type = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
  if is_type and not in_function:
    return
  yield node
  if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
    return  # A negative number is one number.
  in_function |= isinstance(node, ast.FunctionDef)
  for field, value in ast.iter_fields(node):
    if field in ("annotation", "returns", "decorator_list"):
      continue
    for child in value if isinstance(value, list) else [value]:
      if isinstance(child, ast.AST):
        yield from _arithmetic(child, in_function=in_function)


def _name(function: ast.expr) -> str:
  """The last part of a function's name."""
  if isinstance(function, ast.Attribute):
    return function.attr
  return getattr(function, "id", "")


def _changes(node: ast.AST) -> Iterator[ast.AST]:
  """Yields the node with one mistake each."""
  match node:
    case ast.BinOp() | ast.BoolOp() | ast.AugAssign():
      if type(node.op) in _OPERATORS:
        yield _copy(node, op=_OPERATORS[type(node.op)]())
    case ast.Compare():
      for index, operator in enumerate(node.ops):
        ops = list(node.ops)
        ops[index] = _OPERATORS[type(operator)]()
        yield _copy(node, ops=ops)
    case ast.UnaryOp(operand=ast.Constant(value=int(value))):
      yield ast.Constant(1 - value)
      yield ast.Constant(-1 - value)
    case ast.UnaryOp():
      yield node.operand
    case ast.Constant(value=bool(value)):
      yield ast.Constant(not value)
    case ast.Constant(value=int(value)):
      yield ast.Constant(value + 1)
      yield ast.Constant(value - 1)
    case ast.Constant(value=float(value)):
      yield ast.Constant(2 * value + 1)
    case ast.Call():
      yield from _changed_calls(node)


def _changed_calls(node: ast.Call) -> Iterator[ast.AST]:
  """Yields other functions, and calls of the same with swapped arguments."""
  name = _name(node.func)
  if name == "where" and len(node.args) == 3:
    condition, true, false = node.args
    yield _copy(node, args=[condition, false, true])
  if name == "stop_gradient":
    yield node.args[0]
  if name in _FUNCTIONS:
    other = copy.deepcopy(node.func)
    field = "attr" if isinstance(other, ast.Attribute) else "id"
    setattr(other, field, _FUNCTIONS[name])
    yield _copy(node, func=other)


def _copy(node: ast.AST, **fields) -> ast.AST:
  """The node with other fields."""
  return type(node)(**{**dict(ast.iter_fields(node)), **fields})
