"""Declares configuration fields: default, remark and rule beside the type.

    num_layers: int = field(4, "Number of layers.", POSITIVE)

The defaults, the checks and the text of `--help` are all made from these
declarations.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import TypeVar
from typing import dataclass_transform

T = TypeVar("T")


class Rule(NamedTuple):
  """A condition on one value.

  Attributes:
    text: completes the sentence "NAME must be ...".
    holds: whether a value of the field's type satisfies it.
    choices: the legal values, if they can be listed.
  """

  text: str
  holds: Callable[[Any], bool]
  choices: tuple[str, ...] = ()


class SameAs(NamedTuple):
  """A default that follows another field of the same group until it is set."""

  leader: str


class Field(NamedTuple):
  """One field as declared.

  Attributes:
    name: path below `config`, such as `model.num_layers`.
    type: of its values.
    default: a value or the field that it follows.
    remark: one sentence for people.
    rule: what values must satisfy by themselves, if anything.
  """

  name: str
  type: Any
  default: Any
  remark: str
  rule: Rule | None


def field(default: Any, remark: str, rule: Rule | None = None) -> Any:
  """Declares a field of a dataclass.

  The dataclass itself gets no default: a configuration that is built in code
  names every field, so none is forgotten without a word.
  """
  metadata = {"default": default, "remark": remark, "rule": rule}
  return dataclasses.field(metadata=metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def group(kind: type[T]) -> type[T]:
  """Makes a class of declared fields a frozen dataclass."""
  return dataclasses.dataclass(frozen=True)(kind)


def is_group(kind: Any) -> bool:
  """Whether a field's type is a class of declared fields."""
  return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def one_of(*choices: str) -> Rule:
  """One of the listed words."""
  return Rule(f"one of {choices}", lambda value: value in choices, choices)


def each(rule: Rule) -> Rule:
  """A tuple, possibly empty, whose elements satisfy the rule."""
  return Rule(f"{rule.text} each", lambda values: all(map(rule.holds, values)))


def several(rule: Rule) -> Rule:
  """A tuple of one or more elements that satisfy the rule."""
  return Rule(
    f"{rule.text}, one or several",
    lambda values: len(values) > 0 and all(map(rule.holds, values)),
  )


POSITIVE = Rule("at least 1", lambda value: value >= 1)
NOT_NEGATIVE = Rule("0 or more", lambda value: value >= 0)
ABOVE_ZERO = Rule("above 0", lambda value: value > 0)
FRACTION = Rule("in [0, 1)", lambda value: 0 <= value < 1)
OPEN_FRACTION = Rule("in (0, 1)", lambda value: 0 < value < 1)
SHARE = Rule("in (0, 1]", lambda value: 0 < value <= 1)


def groups(kind: Any) -> Iterator[tuple[str, Any]]:
  """Names and types of the groups in a group, in order."""
  for declared in dataclasses.fields(kind):
    if is_group(declared.type):
      yield declared.name, declared.type


def walk(kind: Any, prefix: str = "") -> Iterator[Field]:
  """All fields of a configuration in order, those of groups included."""
  for declared in dataclasses.fields(kind):
    name = prefix + declared.name
    if is_group(declared.type):
      yield from walk(declared.type, f"{name}.")
    else:
      yield Field(name, declared.type, **declared.metadata)


def get(config: Any, name: str) -> Any:
  """The value of a field by its path, such as `model.num_layers`."""
  for part in name.split("."):
    config = getattr(config, part)
  return config


def default(config: Any, declared: Field) -> Any:
  """The default of a field, given the fields that it may follow."""
  if not isinstance(declared.default, SameAs):
    return declared.default
  parent, _, _ = declared.name.rpartition(".")
  return get(config, f"{parent}.{declared.default.leader}")
