"""The text of `--help`, and of `--help=TOPIC`."""

import operator
import textwrap
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import ml_collections
from absl import flags

from transformer_xl import errors
from transformer_xl.config import experiments
from transformer_xl.config import fields
from transformer_xl.config import schema
from transformer_xl.config import suggestions


class Mode(Protocol):
  """A value of --mode, as help describes it."""

  @property
  def summary(self) -> str:
    """One sentence."""

  @property
  def group(self) -> str:
    """The group of fields that are its own; "" for none."""


class Group(NamedTuple):
  """A group of fields."""

  summary: str
  fields: list[fields.Field]


def overview(
  introduction: str, modes: Mapping[str, Mode], options: Iterable[flags.Flag]
) -> str:
  """The text of `--help`: modes, experiments, flags and groups of fields."""
  lines = [introduction.rstrip(), "", "Modes (--mode=NAME)"]
  for name, mode in modes.items():
    lines += _entry(name, mode.summary)
  lines += ["", "Experiments (--config=NAME)"]
  for name in experiments.PATHS:
    lines += _entry(name, experiments.summary(name))
  lines += ["", "Flags"]
  for option in options:
    value = "" if option.default is None else f"={option.default}"
    _, _, remark = (option.help or "").rpartition(">: ")  # Behind the choices.
    lines += _entry(f"--{option.name}{value}", remark)
  lines += ["", "Fields of a configuration (--config.GROUP.FIELD=VALUE)"]
  for name, group in groups(schema.common_fields()).items():
    first = group.fields[0]
    lines += _entry(name or first.name, group.summary if name else first.remark)
  for section, parts in schema.OWN_GROUPS.items():
    # Which of them have fields, only their files say.
    names = ", ".join(name for kind in parts for name in kind)
    kinds = " or ".join(kind.kind for kind in parts)
    lines += _entry(
      f"{section}.NAME", f"Fields of one {kinds}, if it has some: {names}."
    )
  lines += ["", "Read on"]
  lines += _entry("--help=train", "The fields of a group, with their defaults.")
  lines += _entry("--help=generate", "A mode, and the fields that are its own.")
  lines += _entry("--help=learning_rate", "One field.")
  lines += _entry("--help=all", "All fields.")
  lines += _entry(
    "--config=quickstart --help=train", "The values of an experiment, instead."
  )
  return "\n".join(lines)


def describe(
  topic: str,
  modes: Mapping[str, Mode],
  config: ml_collections.ConfigDict,
  source: str,
) -> str:
  """The text of `--help=TOPIC`.

  Args:
    topic: `all`, a mode, a group or a field.
    modes: the modes by name.
    config: whose values are shown.
    source: the name of that configuration.

  Raises:
    UserError: it is no topic.
  """
  path = topic.removeprefix("--").removeprefix("config.")
  by_path = groups(schema.all_fields().values())
  lines = []
  mode = modes.get(path)
  if mode is not None:
    lines += [*_wrap(f"--mode={path}: {mode.summary}", indent=0), ""]
    path = mode.group
    if not path:
      return "\n".join(lines[:-1])

  wanted = [name for name in by_path if f"{name}.".startswith(f"{path}.")]
  if path == "all":
    wanted = [*by_path]
  found = [] if wanted else suggestions.called(path)
  # The last part of a group's path is enough, as that of a field's is.
  wanted += [name for name in found if name in by_path]
  if wanted:
    lines.append(f"Fields with the values of {source}")
    for name in wanted:
      lines += ["", f"config.{name}".rstrip(".")]
      lines += [*_wrap(by_path[name].summary, indent=2), ""]
      for field in by_path[name].fields:
        lines += _describe(field, config)
    return "\n".join(lines)

  if not found:
    near = suggestions.meant(path)
    hint = f"did you mean --help={near[0]}? " if near else ""
    raise errors.UserError(
      f"there is no help about {topic}; {hint}--help=TOPIC takes a mode, a "
      "group of fields, a field or all, and --help lists them."
    )
  lines.append(f"Fields with the values of {source}")
  for name in found:
    lines += ["", *_describe(schema.all_fields()[name], config)]
  return "\n".join(lines)


def groups(declared: Iterable[fields.Field]) -> dict[str, Group]:
  """The groups by their path below `config`, each with its own fields."""
  found: dict[str, Group] = {}
  for field in declared:
    path = field.name.rpartition(".")[0]
    if path not in found:
      summary = " ".join((field.group.__doc__ or "").split())
      found[path] = Group(summary, [])
    found[path].fields.append(field)
  return found


def _describe(
  declared: fields.Field, config: ml_collections.ConfigDict
) -> list[str]:
  """A field with its value, and below it what it means."""
  value = operator.attrgetter(declared.name)(config)
  line = f"config.{declared.name} = {shown(value)}"
  default = declared.default
  if isinstance(default, fields.SameAs):
    line += f"  (default: that of {default.leader})"
  elif value != default:
    line += f"  (default: {shown(default)})"
  remark = declared.remark
  rule = declared.rule
  if rule is not None and rule.choices:
    remark += f" One of {', '.join(rule.choices)}."
  elif rule is not None:
    remark += f" Must be {rule.text}."
  return [*_wrap(line, indent=2), *_wrap(remark, indent=6)]


def shown(value: object) -> str:
  """A value as a shell takes it: bash reads escapes in $'' only."""
  is_escaped = isinstance(value, str) and not value.isprintable()
  return f"${value!r}" if is_escaped else repr(value)


def _entry(name: str, text: str) -> list[str]:
  """A name, and what it means beside it; below it if it is long."""
  column = 24
  lines = textwrap.wrap(
    text,
    width=80,
    initial_indent=" " * column,
    subsequent_indent=" " * column,
    break_on_hyphens=False,
  )
  if not lines or len(name) > column - 4:
    return [f"  {name}", *lines]
  return [f"  {name:<{column - 2}}{lines[0].lstrip()}", *lines[1:]]


def _wrap(line: str, *, indent: int) -> list[str]:
  margin = " " * indent
  return textwrap.wrap(
    line,
    width=80,
    initial_indent=margin,
    subsequent_indent=margin,
    break_on_hyphens=False,
  )
