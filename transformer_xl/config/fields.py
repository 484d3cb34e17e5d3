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
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard, TypeVar, dataclass_transform

GroupT = TypeVar("GroupT", bound="Group")
Condition = Callable[[Any], bool]  # Takes a value of a field's type.


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

  group: "type[Group]"  # The class that declares it.
  name: str  # Path below `config`, such as `model.num_layers`.
  type: object  # A type, or `tuple[TYPE, ...]`.
  default: object  # A value, or the field that it follows.
  rule: Rule | None  # What values must satisfy by themselves, if anything.
  names: str  # What its value names, one of NAMED; "" for none.
  transfer: str  # One of TRANSFERS.

  @property
  def remark(self) -> str:
    """The sentence that explains the field to people."""
    declaring: type = self.group
    return _remarks(declaring).get(self.name.rpartition(".")[2], "")


@functools.cache
def _remarks(group: type) -> dict[str, str]:
  """The literals below the fields of a group, read from its source."""
  source = textwrap.dedent(inspect.getsource(group))
  (declaration,) = ast.parse(source).body
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


def _is_between_zero_and_one(value: float) -> bool:
  return 0 < value < 1


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
  return re.fullmatch(r"[a-z][a-z0-9_]*(:[1-9]\d{0,8})?", entry) is not None


# Conditions on one value, by the text that completes "NAME must be ...".
RULES: dict[str, Condition] = {
  "at least 1": _at_least(1),
  "-1 or at least 1": _is_minus_one_or_positive,
  "-1 or more": _at_least(-1),
  "0 or more": _at_least(0),
  "above 0": _is_positive,
  "in [0, 1)": _is_below_one,
  "in (0, 1]": _is_share,
  "in (0, 1)": _is_between_zero_and_one,
  "PATTERN=FACTOR": _is_pattern_and_factor,
  "MIXER or MIXER:LIMIT": _is_mixer_and_limit,
  "in [0, 256]": _within(0, 256),
}


# What the value of a field may name. A run's folder may come from somebody
# else, so its saved configuration never says the first two (`load.saved`).
NAMED = (
  "code",  # MODULE:CLASS, which is imported.
  "file",  # A file or a folder whose content is read and shown.
  "folder",  # Of the prepared data, or of the run to start from.
)
# Which value a field may have in a run that starts from the parameters of
# another one (`train.init_from`).
TRANSFERS = (
  "equal",  # That of the other run: parameters depend on it, or their meaning.
  "same_shapes",  # Any, as long as all parameters keep their shapes.
  "any",
)


def field(
  default: Any,
  rule: str | tuple[str, ...] | Rule | Callable[[], Rule] | None = None,
  *,
  names: str = "",
  transfer: str = "equal",
) -> Any:
  """Declares a field of a group.

  The group itself gets no default: a configuration that is built in code names
  every field, so none is forgotten without a word.

  Args:
    default: a value, or the field that it follows.
    rule: one of RULES, the legal values, a rule of your own, or a function that
      makes the rule when it is needed. For a tuple it holds for each element,
      of which there may be none if the default has none.
    names: what the value names, one of NAMED; "" for none of them.
    transfer: one of TRANSFERS, for fields of the model.
  """
  assert names in ("", *NAMED), names
  assert transfer in TRANSFERS, transfer
  checked: Rule | Callable[[], Rule] | None
  if isinstance(rule, str):
    if rule not in RULES:
      raise ValueError(
        f"there is no rule {rule!r}; give one of {', '.join(RULES)}, a tuple "
        "of the legal values, or a Rule."
      )
    checked = Rule(rule, RULES[rule])
  elif isinstance(rule, tuple) and not isinstance(rule, Rule):
    checked = one_of(rule)
  else:
    checked = rule
  if isinstance(checked, Rule) and type(default) is tuple:
    checked = _for_each(checked, may_be_empty=not default)
  return dataclasses.field(
    metadata={
      "default": default,
      "rule": checked,
      "names": names,
      "transfer": transfer,
    }
  )


def one_of(values: tuple[str, ...]) -> Rule:
  """The rule that a value is one of these."""
  return Rule(f"one of {values}", values.__contains__, values)


def _for_each(rule: Rule, *, may_be_empty: bool) -> Rule:
  """A rule for tuples whose elements satisfy a rule."""
  text = " each" if may_be_empty else ", one or several"

  def holds(values: tuple[object, ...]) -> bool:
    if not values:
      return may_be_empty
    return all(rule.holds(value) for value in values)

  return Rule(rule.text + text, holds)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclasses.dataclass(frozen=True, eq=False)
class Group:
  """A group of declared fields, or of other groups: a frozen dataclass.

  class Fields(fields.Group):
    decay: float = field(0.9, "in (0, 1)")
    '''Share of the old average that a token keeps.'''
  """

  def __init_subclass__(cls) -> None:
    dataclasses.dataclass(frozen=True)(cls)

  def own(self, kind: type[GroupT]) -> GroupT:
    """The group of a class that this one contains.

    What registers itself under a name has its own fields in such a group:
    `config.model.own(Delta.Fields)` has the values of `config.model.delta.*`.
    """
    for declared in dataclasses.fields(self):
      if declared.type is kind:
        return getattr(self, declared.name)
    raise LookupError(f"{type(self).__name__} has no group {kind.__qualname__}")


def is_group(kind: object) -> TypeGuard[type[Group]]:
  """Whether the type of a field is a group of fields."""
  return isinstance(kind, type) and issubclass(kind, Group)


def with_groups(
  kind: type[GroupT], groups: Mapping[str, type[Group]]
) -> type[GroupT]:
  """A subclass of a group that contains others, by name, besides its fields.

  A group takes the place of one that `kind` has by that name.
  """
  namespace = {"__annotations__": dict(groups), "__doc__": kind.__doc__}
  extended: type[GroupT] = type(kind.__name__, (kind,), namespace)
  return extended


def walk(kind: type[Group], prefix: str = "") -> Iterator[Field]:
  """All fields of a configuration and its groups, in order."""
  for declared in dataclasses.fields(kind):
    name = prefix + declared.name
    if is_group(declared.type):
      yield from walk(declared.type, f"{name}.")
    else:
      metadata = dict(declared.metadata)
      rule = metadata.pop("rule")
      if callable(rule):
        rule = rule()
      group = _declaring(kind, declared.name)
      yield Field(group, name, declared.type, rule=rule, **metadata)


def _declaring(kind: type[Group], name: str) -> type[Group]:
  """The class among a group and its bases whose source has a field."""
  for base in kind.__mro__:
    if name in inspect.get_annotations(base):
      return base
  raise LookupError(name)
