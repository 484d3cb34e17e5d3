"""Declares configuration fields: default and rule beside the type, then remark.

    num_layers: int = field(4, "at least 1")
    '''Number of layers.'''

The defaults, the checks and the text of `--help` are all made from these
declarations.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import (
  Any,
  ClassVar,
  NamedTuple,
  Protocol,
  TypeGuard,
  TypeVar,
  dataclass_transform,
)

T = TypeVar("T")
Condition = Callable[[Any], bool]  # Takes a value of a field's type.


class Group(Protocol):
  """A dataclass of declared fields, or of groups of them."""

  __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]


class Rule(NamedTuple):
  """A condition on one value."""

  text: str  # Completes the sentence "NAME must be ...".
  holds: Condition
  choices: tuple[str, ...] = ()  # The legal values, if they can be listed.


class SameAs(NamedTuple):
  """A default that follows another field of the same group until it is set."""

  leader: str


class Field(NamedTuple):
  """One field as declared."""

  group: type[Group]  # The class that declares it.
  name: str  # Path below `config`, such as `model.num_layers`.
  type: object  # A type, or `tuple[TYPE, ...]`.
  default: object  # A value, or the field that it follows.
  rule: Rule | None  # What values must satisfy by themselves, if anything.

  @property
  def remark(self) -> str:
    """The sentence that explains the field to people."""
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


def _at_least(least: int) -> Condition:
  """The condition that a number is `least` or more."""

  def holds(value: float) -> bool:
    return value >= least

  return holds


def _within(least: int, most: int) -> Condition:
  """The condition that a number is from `least` to `most`."""

  def holds(value: float) -> bool:
    return least <= value <= most

  return holds


def _is_minus_one_or_positive(value: int) -> bool:
  return value == -1 or value >= 1


def _is_positive(value: float) -> bool:
  return value > 0


def _is_below_one(value: float) -> bool:
  return 0 <= value < 1


def _is_share(value: float) -> bool:
  return 0 < value <= 1


def _is_pattern_and_factor(text: str) -> bool:
  """Whether a text is a regular expression, "=" and a number of 0 or more."""
  pattern, _, factor = text.rpartition("=")
  try:
    re.compile(pattern)
    return bool(pattern) and 0 <= float(factor) < math.inf
  except (re.error, ValueError):
    return False


def _is_mixer_and_limit(entry: str) -> bool:
  """Whether an entry names a mixer, and maybe a number of positions."""
  return re.fullmatch(r"[a-z_]+(:[1-9]\d{0,8})?", entry) is not None


def _is_tracker(text: str) -> bool:
  """Whether a text names a tracker, or a class by its import path."""
  if text in ("none", "wandb"):
    return True
  module, _, name = text.partition(":")
  parts = [*module.split("."), name]
  return all(part.isidentifier() for part in parts)


# Conditions on one value, by the text that completes "NAME must be ...".
RULES: dict[str, Condition] = {
  "at least 1": _at_least(1),
  "-1 or at least 1": _is_minus_one_or_positive,
  "-1 or more": _at_least(-1),
  "0 or more": _at_least(0),
  "above 0": _is_positive,
  "in [0, 1)": _is_below_one,
  "in (0, 1]": _is_share,
  "PATTERN=FACTOR": _is_pattern_and_factor,
  "none, wandb or MODULE:CLASS": _is_tracker,
  "MIXER or MIXER:LIMIT": _is_mixer_and_limit,
  "in [0, 256]": _within(0, 256),
}


def field(default: Any, rule: str | tuple[str, ...] | None = None) -> Any:
  """Declares a field of a dataclass.

  The dataclass itself gets no default: a configuration that is built in code
  names every field, so none is forgotten without a word.

  Args:
    default: a value, or the field that it follows.
    rule: one of RULES, or the legal values. For a tuple it holds for each
      element, of which there may be none if the default has none.
  """
  if rule is None:
    checked = None
  elif isinstance(rule, tuple):
    checked = Rule(f"one of {rule}", rule.__contains__, rule)
  else:
    checked = Rule(rule, RULES[rule])
  if checked is not None and type(default) is tuple:
    checked = _for_each(checked, may_be_empty=not default)
  return dataclasses.field(metadata={"default": default, "rule": checked})


def _for_each(rule: Rule, *, may_be_empty: bool) -> Rule:
  """A rule for tuples whose elements satisfy a rule."""
  text = " each" if may_be_empty else ", one or several"

  def holds(values: tuple[object, ...]) -> bool:
    if not values:
      return may_be_empty
    return all(rule.holds(value) for value in values)

  return Rule(rule.text + text, holds)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def group(kind: type[T]) -> type[T]:
  """Makes a class of declared fields a frozen dataclass."""
  return dataclasses.dataclass(frozen=True)(kind)


def is_group(kind: object) -> TypeGuard[type[Group]]:
  """Whether the type of a field is a group of fields."""
  return dataclasses.is_dataclass(kind)


def walk(kind: type[Group], prefix: str = "") -> Iterator[Field]:
  """All fields of a configuration and its groups, in order."""
  for declared in dataclasses.fields(kind):
    name = prefix + declared.name
    if is_group(declared.type):
      yield from walk(declared.type, f"{name}.")
    else:
      yield Field(kind, name, declared.type, **declared.metadata)
