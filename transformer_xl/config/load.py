"""Loading: a `ConfigDict` becomes a checked, frozen configuration."""

import dataclasses
import functools
import json
import math
import operator
import os
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import ml_collections
from absl import logging

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import extensions
from transformer_xl.config import fields
from transformer_xl.config import rules
from transformer_xl.config import schema
from transformer_xl.config import suggestions

# A message that names fields names no more of them.
_MOST_NAMED = 3

GroupT = TypeVar("GroupT", bound=fields.Group)


def default() -> ml_collections.ConfigDict:
  """The configuration of a small model, which experiments change.

  A default that follows another field does so until it is set itself. A field
  that does not exist cannot be added, so a misspelled one is an error where it
  is set.
  """
  extensions.load_installed()
  return _defaults(schema.config_type())


def _defaults(kind: type[fields.Group]) -> ml_collections.ConfigDict:
  """The defaults of a group, and of those in it."""
  group = ml_collections.ConfigDict()
  for declared in dataclasses.fields(kind):
    if fields.is_group(declared.type):
      group[declared.name] = _defaults(declared.type)
      continue
    value = declared.metadata["default"]
    if isinstance(value, fields.SameAs):
      value = group.get_oneway_ref(value.leader)
    group[declared.name] = value
  group.lock()
  return group


def saved(workdir: str = "") -> ml_collections.ConfigDict:
  """The configuration in a workdir.

  Raises:
    UserError: no workdir is named, or its `config.json` is missing, damaged or
      has a field that does not exist.
  """
  if not workdir:
    raise errors.UserError("name the workdir of a run: --config=saved:WORKDIR")
  config = _read(workdir)
  _forget_code_and_files(config, workdir)
  return config


def require_readable(workdir: str) -> None:
  """Raises a UserError if the `config.json` of a workdir cannot be read."""
  _read(workdir)


def _read(workdir: str) -> ml_collections.ConfigDict:
  """The configuration in a workdir, with all its values."""
  workdir = storage.expanded(workdir)
  if os.path.isfile(workdir):
    raise errors.UserError(
      f"saved:{workdir} is a file; give the folder of the run, as in "
      f"--config=saved:{os.path.dirname(workdir) or '.'}"
    )
  path = os.path.join(storage.local(workdir), "config.json")
  config = default()
  try:
    with open(path, encoding="utf-8") as file:
      content = json.load(file)
    named = os.path.join(workdir, "config.json")
    extensions.require(content.get("extensions", []), named)
    return updated(config, content["config"], named)
  except FileNotFoundError:
    raise errors.UserError(
      f"{workdir} has no config.json; give a folder that a run wrote: "
      "--config=saved:WORKDIR"
    ) from None
  except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
    raise errors.UserError(
      f"{os.path.join(workdir, 'config.json')} is damaged; restore it, or "
      "train or import again in another folder."
    ) from None


def _forget_code_and_files(
  config: ml_collections.ConfigDict, workdir: str
) -> None:
  """Leaves out what a saved configuration would import or read.

  A run's folder may come from somebody else. Which code is imported, and which
  files are read and shown, the command line and configuration files say.
  """
  for name, field in schema.all_fields().items():
    if field.names not in ("code", "file"):
      continue
    group, _, last = name.rpartition(".")
    values = operator.attrgetter(group)(config)
    value = values[last]
    names_code = field.names == "code" and ":" in str(value)
    names_file = field.names == "file" and value != field.default
    if names_code or names_file:
      logging.warning(
        "The configuration in %s has %s=%r, which is left out, since it names "
        "%s to be read; set --config.%s if you trust it.",
        workdir,
        name,
        value,
        "code" if names_code else "files",
        name,
      )
      values[last] = field.default


def updated(
  config: ml_collections.ConfigDict, values: Mapping[str, object], path: str
) -> ml_collections.ConfigDict:
  """Replaces defaults by the values that are saved in the file `path`.

  A field that follows another one still does where both were saved alike.

  Raises:
    UserError: there is no field of that name.
  """
  return _updated(config, values, path, kind=schema.config_type())


def _updated(
  config: ml_collections.ConfigDict,
  values: Mapping[str, object],
  path: str,
  *,
  kind: type[fields.Group],
) -> ml_collections.ConfigDict:
  """Replaces the defaults of one group."""
  declared = {field.name: field for field in dataclasses.fields(kind)}
  for name, value in values.items():
    if name not in config:
      raise errors.UserError(
        f"{path} has a field {name!r}, which does not exist; use the commit "
        "that wrote it (git_commit in that file)."
      )
    usual = declared[name].metadata.get("default")
    if isinstance(value, dict):
      kind_of_group: Any = declared[name].type
      _updated(config[name], value, path, kind=kind_of_group)
    elif not isinstance(usual, fields.SameAs) or (
      value != values.get(usual.leader)
    ):
      config[name] = tuple(value) if isinstance(value, list) else value
  return config


def from_config_dict(
  config: ml_collections.ConfigDict,
) -> schema.ExperimentConfig:
  """Freezes and checks a configuration.

  Raises:
    UserError: a field is missing, unknown, of the wrong type or out of range.
  """
  result = _freeze(schema.config_type(), config.to_dict(), "config")
  rules.check(result)
  return result


def require_fields(config: ml_collections.ConfigDict) -> None:
  """Raises a UserError if fields are missing, unknown or of the wrong type."""
  _freeze(schema.config_type(), config.to_dict(), "config")


def changed(
  config: schema.ExperimentConfig, values: Mapping[str, object]
) -> schema.ExperimentConfig:
  """Returns a configuration with values that a person gave, once checked.

  Unlike `replaced`, it checks names, types and rules. A field that
  follows another one, and has its value, continues to follow it.

  Raises:
    UserError: a field is unknown, of the wrong type or out of range.
  """
  tree = dataclasses.asdict(config)
  for path, declared in schema.all_fields().items():
    if path not in values and isinstance(declared.default, fields.SameAs):
      prefix, _, name = path.rpartition(".")
      group = functools.reduce(operator.getitem, prefix.split("."), tree)
      leader = declared.default.leader
      if group[name] == group[leader]:
        group[name] = values.get(f"{prefix}.{leader}", group[leader])
  for path, value in values.items():
    *groups, name = path.split(".")
    functools.reduce(operator.getitem, groups, tree)[name] = value
  result = _freeze(schema.config_type(), tree, "config")
  rules.check(result)
  return result


def _freeze(
  kind: type[GroupT], values: Mapping[str, object], prefix: str
) -> GroupT:
  """Builds a dataclass from a dictionary with exactly its fields."""
  if not isinstance(values, Mapping):
    raise errors.UserError(
      f"{prefix} must be a group of fields: it is {values!r}."
    )
  declared = {field.name: field for field in dataclasses.fields(kind)}
  for name in values:
    if name not in declared:
      path = f"{prefix}.{name}".removeprefix("config.")
      raise errors.UserError(
        f"there is no field {prefix}.{name}{suggestions.hint(path)}"
      )
  missing = [name for name in declared if name not in values]
  if missing:
    names = ", ".join(missing[:_MOST_NAMED])
    if len(missing) > _MOST_NAMED:
      names += f" and {len(missing) - _MOST_NAMED} other fields"
    raise errors.UserError(
      f"{prefix} lacks {names}; start from experiments/base.py, and set fields "
      f"with {prefix}.update(NAME=VALUE), not a new dictionary."
    )
  converted = {}
  for name, field in declared.items():
    value = _convert(values[name], field.type, f"{prefix}.{name}")
    if field.metadata.get("names") in ("file", "folder"):
      value = _with_home(value)
    converted[name] = value
  return kind(**converted)


def words_of_type(kind: Any) -> str:
  """The values of a type of a field, as in "must be a whole number"."""
  words = {int: "a whole number", float: "a number", bool: "True or False"}
  if getattr(kind, "__origin__", None) is tuple:
    item = kind.__args__[0]
    if item is str:
      return "a text or several, such as \"('a','b')\""
    return f"{words.get(item, 'a value')} or several, such as '(1,2)'"
  return words.get(kind, "a text")


def _convert(
  value: Any, kind: Any, name: str, *, said: str | None = None
) -> object:
  """A value as the type of its field has it.

  Args:
    value: as it is given.
    kind: the type.
    name: of the field, for messages.
    said: the type in words; None for those of `kind`.
  """
  if fields.is_group(kind):
    return _freeze(kind, value, name)
  if getattr(kind, "__origin__", None) is tuple:
    items = value if isinstance(value, list | tuple) else (value,)
    item_kind = kind.__args__[0]
    said = words_of_type(kind)
    return tuple(_convert(item, item_kind, name, said=said) for item in items)
  if kind is float and type(value) is int:
    value = float(value) if abs(value) <= sys.float_info.max else math.inf
  if type(value) is not kind or (kind is float and not math.isfinite(value)):
    raise errors.UserError(
      f"{name} must be {said or words_of_type(kind)}: it is {_shown(value)}."
    )
  # Arrays hold signed integers of 32 bits. A random key has 32 bits too: some
  # larger seeds would draw the same parameters.
  limit = 2 ** (32 if name == "config.seed" else 31)
  if kind is int and abs(value) >= limit:
    raise errors.UserError(
      f"{name} must be below {limit}: it is {_shown(value)}."
    )
  return value


def _shown(value: object) -> str:
  """A value as messages have it."""
  try:
    return repr(value)
  except ValueError:  # Python refuses to write numbers of thousands of digits.
    return "a number of thousands of digits"


def _with_home(value: Any) -> Any:
  """A path, or several, with the user's home in the place of `~`.

  No shell expands it behind "=".
  """
  if isinstance(value, tuple):
    return tuple(storage.expanded(path) for path in value)
  return storage.expanded(value)


def with_vocab_size(
  config: schema.ExperimentConfig, meta: Mapping[str, Any]
) -> schema.ExperimentConfig:
  """Takes the vocabulary's size from the data, or checks it against it."""
  size = meta["vocabulary"]["size"]
  wanted = config.model.vocab_size
  if wanted not in (0, size):
    raise errors.UserError(
      f"model.vocab_size={wanted}, but the data in {config.data.dataset_dir} "
      f"has {size} symbols; set --config.model.vocab_size=0 or prepare the "
      "data again."
    )
  result = replaced(config, {"model.vocab_size": size})
  rules.check(result)
  return result


def replaced(
  config: schema.ExperimentConfig, values: Mapping[str, object]
) -> schema.ExperimentConfig:
  """Returns the configuration with new values, `{"train.mem_len": 4}`."""
  for path, value in values.items():
    config = _replaced(config, path.split("."), value)
  return config


def _replaced(group: GroupT, path: list[str], value: object) -> GroupT:
  """A group of settings with a new value at a path below it."""
  name, *rest = path
  if rest:
    value = _replaced(getattr(group, name), rest, value)
  return dataclasses.replace(group, **{name: value})
