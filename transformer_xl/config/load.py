"""Loading: a `ConfigDict` becomes a checked, frozen configuration."""

import dataclasses
import difflib
import math
import sys
from typing import Any

import ml_collections

from transformer_xl import errors
from transformer_xl.config import fields
from transformer_xl.config import rules
from transformer_xl.config import schema


def from_config_dict(
  config: ml_collections.ConfigDict,
) -> schema.ExperimentConfig:
  """Freezes a configuration and checks it.

  Raises:
    UserError: a field is missing, unknown, of the wrong type or out of range.
  """
  result = _freeze(schema.ExperimentConfig, config.to_dict(), prefix="config")
  rules.check(result)
  return result


def to_dict(config: schema.ExperimentConfig) -> dict[str, Any]:
  """The nested dictionary that `config.json` stores."""
  return dataclasses.asdict(config)


def _freeze(kind: Any, values: Any, *, prefix: str) -> Any:
  """Builds a dataclass from a dictionary with exactly its fields."""
  types = {field.name: field.type for field in dataclasses.fields(kind)}
  for name in values:
    if name not in types:
      near = difflib.get_close_matches(name, types, n=1)
      hint = f"; did you mean {prefix}.{near[0]}?" if near else "."
      raise errors.UserError(f"there is no field {prefix}.{name}{hint}")
  missing = sorted(set(types) - set(values))
  if missing:
    raise errors.UserError(
      f"{prefix} lacks {', '.join(missing)}; start from experiments/base.py."
    )
  return kind(
    **{
      name: _convert(values[name], field_type, f"{prefix}.{name}")
      for name, field_type in types.items()
    }
  )


def _convert(value: Any, kind: Any, name: str) -> Any:
  if fields.is_group(kind):
    return _freeze(kind, value, prefix=name)
  origin = getattr(kind, "__origin__", None)
  if origin is tuple:
    element = kind.__args__[0]
    items = value if isinstance(value, list | tuple) else (value,)
    return tuple(_convert(item, element, name) for item in items)
  if kind is float and isinstance(value, int) and not isinstance(value, bool):
    is_small = abs(value) <= sys.float_info.max
    value = float(value) if is_small else math.inf
  if type(value) is not kind or (kind is float and not math.isfinite(value)):
    raise errors.UserError(f"{name} must be a {kind.__name__}: {value!r}.")
  # Arrays hold signed integers of 32 bits. A random key has 32 bits too: some
  # larger seeds would draw the same parameters.
  limit = 2 ** (32 if name == "config.seed" else 31)
  if kind is int and abs(value) >= limit:
    raise errors.UserError(f"{name} must be below {limit}: it is {value}.")
  return value


def with_vocab_size(
  config: schema.ExperimentConfig, meta: dict[str, Any]
) -> schema.ExperimentConfig:
  """Takes the vocabulary's size from the data, or checks it against it."""
  size, wanted = meta["vocabulary"]["size"], config.model.vocab_size
  if wanted not in (0, size):
    raise errors.UserError(
      f"model.vocab_size={wanted}, but the data in {config.data.dir}/"
      f"{config.data.name} has {size} symbols; set --config.model.vocab_size=0 "
      "or prepare the data again."
    )
  result = replaced(config, {"model.vocab_size": size})
  rules.check(result)
  return result


def replaced(
  config: schema.ExperimentConfig, values: dict[str, Any]
) -> schema.ExperimentConfig:
  """Returns the configuration with new values, `{"train.mem_len": 4}`."""
  for path, value in values.items():
    group, _, name = path.partition(".")
    changed = dataclasses.replace(getattr(config, group), **{name: value})
    config = dataclasses.replace(config, **{group: changed})
  return config
