"""The text of `--help`: experiments, flags and every configuration field."""

import textwrap
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from absl import flags

from transformer_xl.config import experiments
from transformer_xl.config import fields
from transformer_xl.config import schema


def text(
  introduction: str,
  options: Iterable[flags.FlagHolder],
  values: dict[str, Any],
  source: str,
) -> str:
  """All that `--help` prints, in lines of at most 80 columns.

  Args:
    introduction: what the command does, with examples.
    options: the flags that are not fields.
    values: of the configuration, as nested dictionaries.
    source: the file that the values come from.
  """
  lines = [introduction.rstrip(), "", "Experiments"]
  for path, summary in experiments.summaries().items():
    lines += [f"  {path}", *_wrap(summary, indent=6)]
  lines += ["", "Flags"]
  for option in options:
    value = "" if option.default is None else f"={option.default}"
    remark = flags.FLAGS[option.name].help or ""
    lines += [f"  --{option.name}{value}", *_wrap(remark, indent=6)]
  lines += ["", f"Fields with the values of {source}"]
  return "\n".join([*lines, *_group(schema.ExperimentConfig, values, "config")])


def _group(kind: Any, values: dict[str, Any], prefix: str) -> Iterator[str]:
  """Heading and fields of a group, then the groups in it."""
  yield from ("", prefix, *_wrap(kind.__doc__, indent=2), "")
  for declared in fields.walk(kind):
    if declared.name in values:
      yield from _field(declared, values[declared.name], prefix)
  for name, inner in fields.groups(kind):
    yield from _group(inner, values[name], f"{prefix}.{name}")


def _field(declared: fields.Field, value: Any, prefix: str) -> Iterator[str]:
  line, default = f"{prefix}.{declared.name} = {value!r}", declared.default
  if isinstance(default, fields.SameAs):
    line += f"  (default: that of {default.leader})"
  elif value != default:
    line += f"  (default: {default!r})"
  yield from _wrap(line, indent=2)
  remark, rule = declared.remark, declared.rule
  if rule is not None and rule.choices:
    remark += f" One of {', '.join(rule.choices)}."
  elif rule is not None:
    remark += f" Must be {rule.text}."
  yield from _wrap(remark, indent=6)


def _wrap(line: str, *, indent: int) -> list[str]:
  return textwrap.wrap(
    line,
    width=80,
    initial_indent=" " * indent,
    subsequent_indent=" " * indent,
    break_on_hyphens=False,
  )
