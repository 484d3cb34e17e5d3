"""Declares configuration fields: default and rule beside the type, then remark.

    num_layers: int = field(4, POSITIVE)
    '''Number of layers.'''

The defaults, the checks and the text of `--help` are all made from these
declarations.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import TypeVar
from typing import dataclass_transform

T = TypeVar("T")


class Rule(NamedTuple):
  """A condition on one value."""

  text: str  # Completes the sentence "NAME must be ...".
  holds: Callable[[Any], bool]  # Takes a value of the field's type.
  choices: tuple[str, ...] = ()  # The legal values, if they can be listed.


class SameAs(NamedTuple):
  """A default that follows another field of the same group until it is set."""

  leader: str


class Field(NamedTuple):
  """One field as declared."""

  group: Any  # The class that declares it.
  name: str  # Path below `config`, such as `model.num_layers`.
  type: Any
  default: Any  # A value, or the field that it follows.
  rule: Rule | None  # What values must satisfy by themselves, if anything.

  @property
  def remark(self) -> str:
    """One sentence for people."""
    return _remarks(self.group)[self.name.rpartition(".")[2]]


@functools.cache
def _remarks(group: type) -> dict[str, str]:
  """The literals below the fields of a group, read from its source."""
  (declaration,) = ast.parse(inspect.getsource(group)).body
  assert isinstance(declaration, ast.ClassDef)
  return {
    ast.unparse(above.target): " ".join(ast.literal_eval(below.value).split())
    for above, below in itertools.pairwise(declaration.body)
    if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr)
  }


def field(default: Any, rule: Rule | None = None) -> Any:
  """Declares a field of a dataclass.

  The dataclass itself gets no default: a configuration that is built in code
  names every field, so none is forgotten without a word.
  """
  return dataclasses.field(metadata={"default": default, "rule": rule})


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def group(kind: type[T]) -> type[T]:
  """Makes a class of declared fields a frozen dataclass."""
  return dataclasses.dataclass(frozen=True)(kind)


def one_of(*choices: str) -> Rule:
  """One of the listed words."""
  return Rule(f"one of {choices}", lambda value: value in choices, choices)


def each(rule: Rule) -> Rule:
  """A tuple, possibly empty, whose elements satisfy the rule."""
  return Rule(f"{rule.text} each", lambda values: all(map(rule.holds, values)))


def several(rule: Rule) -> Rule:
  """A tuple of one or more elements that satisfy the rule."""
  holds = each(rule).holds
  return Rule(
    f"{rule.text}, one or several",
    lambda values: values != () and holds(values),
  )


POSITIVE = Rule("at least 1", lambda value: value >= 1)
NOT_NEGATIVE = Rule("0 or more", lambda value: value >= 0)
ABOVE_ZERO = Rule("above 0", lambda value: value > 0)
FRACTION = Rule("in [0, 1)", lambda value: 0 <= value < 1)
OPEN_FRACTION = Rule("in (0, 1)", lambda value: 0 < value < 1)
SHARE = Rule("in (0, 1]", lambda value: 0 < value <= 1)


def walk(kind: Any, prefix: str = "") -> Iterator[Field]:
  """All fields of a configuration in order, those of groups included."""
  for declared in dataclasses.fields(kind):
    name = prefix + declared.name
    if dataclasses.is_dataclass(declared.type):
      yield from walk(declared.type, f"{name}.")
    else:
      yield Field(kind, name, declared.type, **declared.metadata)
