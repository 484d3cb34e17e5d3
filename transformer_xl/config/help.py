"""The text of `--help`: experiments, flags and every configuration field."""

import itertools
import operator
import textwrap
from collections.abc import Iterable
from typing import Any

import ml_collections
from absl import flags

from transformer_xl.config import config_flag
from transformer_xl.config import fields
from transformer_xl.config import schema


def text(
  introduction: str,
  options: Iterable[flags.Flag],
  config: ml_collections.ConfigDict,
  source: str,
) -> str:
  """All that `--help` prints, in lines of at most 80 columns.

  Args:
    introduction: what the command does, with examples.
    options: the flags that are not fields.
    config: gives the values of the fields.
    source: the file that it comes from.
  """
  lines = [introduction.rstrip(), "", "Experiments"]
  for path, summary in config_flag.summaries().items():
    lines += [f"  {path}", *_wrap(summary, indent=6)]
  lines += ["", "Flags"]
  for option in options:
    value = "" if option.default is None else f"={option.default}"
    lines += [f"  --{option.name}{value}", *_wrap(option.help or "", indent=6)]
  lines += ["", f"Fields with the values of {source}"]
  for group, members in itertools.groupby(
    schema.FIELDS.values(), lambda field: field.group
  ):
    declared = list(members)
    prefix, _, _ = f"config.{declared[0].name}".rpartition(".")
    lines += ["", prefix, *_wrap(group.__doc__, indent=2), ""]
    for field in declared:
      lines += _describe(field, operator.attrgetter(field.name)(config))
  return "\n".join(lines)


def _describe(declared: fields.Field, value: Any) -> list[str]:
  line, default = f"config.{declared.name} = {value!r}", declared.default
  if isinstance(default, fields.SameAs):
    line += f"  (default: that of {default.leader})"
  elif value != default:
    line += f"  (default: {default!r})"
  remark, rule = declared.remark, declared.rule
  if rule is not None and rule.choices:
    remark += f" One of {', '.join(rule.choices)}."
  elif rule is not None:
    remark += f" Must be {rule.text}."
  return [*_wrap(line, indent=2), *_wrap(remark, indent=6)]


def _wrap(line: str, *, indent: int) -> list[str]:
  margin = " " * indent
  return textwrap.wrap(
    line,
    width=80,
    initial_indent=margin,
    subsequent_indent=margin,
    break_on_hyphens=False,
  )
