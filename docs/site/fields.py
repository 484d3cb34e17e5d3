"""Prints the tables of docs/fields.md, from the declarations of the fields.

It needs the package, unlike the rest of the site, so `make site` runs it by
itself.
"""

from transformer_xl.config import fields
from transformer_xl.config import help_text
from transformer_xl.config import schema


def tables() -> str:
  """A section for each group of fields, each with a table."""
  lines = []
  for path, group in help_text.groups(schema.all_fields().values()).items():
    lines += [
      "",
      f"## {f'config.{path}'.rstrip('.')}",
      "",
      group.summary,
      "",
      "| field | default | values | meaning |",
      "|---|---|---|---|",
    ]
    lines += map(_row, group.fields)
  return "\n".join(lines) + "\n"


def _row(field: fields.Field) -> str:
  """A row on one field."""
  default = field.default
  shown = f"`{help_text.shown(default)}`"
  if isinstance(default, fields.SameAs):
    shown = f"that of `{default.leader}`"
  rule = field.rule
  values = "" if rule is None else rule.text
  if rule is not None and rule.choices:
    values = ", ".join(f"`{choice}`" for choice in rule.choices)
  name = field.name.rpartition(".")[2]
  cells = (f"`{name}`", shown, values, field.remark)
  # A bar in a cell would end it, and HTML in a remark is text.
  escaped = (cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells)
  return f"| {' | '.join(escaped)} |"


if __name__ == "__main__":
  print(tables(), end="")
