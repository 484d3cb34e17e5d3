"""The configuration that a run saved in its workdir."""

import json
import os
from typing import Any

import ml_collections

from transformer_xl import errors
from transformer_xl.config import defaults


def get_config(workdir: str = "") -> ml_collections.ConfigDict:
  """The configuration in a workdir; newer fields have their defaults.

  Raises:
    UserError: no workdir is named, or its `config.json` is missing, damaged or
      of a newer version.
  """
  if not workdir:
    raise errors.UserError(
      "name the workdir of a run: --config=experiments/saved.py:WORKDIR"
    )
  path = os.path.join(workdir, "config.json")
  try:
    with open(path, encoding="utf-8") as file:
      saved = json.load(file)["config"]
    return updated(defaults.get_config(), saved)
  except FileNotFoundError:
    raise errors.UserError(
      f"{workdir} has no config.json; give a folder that a run wrote: "
      "--config=experiments/saved.py:WORKDIR"
    ) from None
  except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
    raise errors.UserError(
      f"{path} is damaged; restore it, or train again in another workdir."
    ) from None


def updated(
  config: ml_collections.ConfigDict, saved: dict[str, Any]
) -> ml_collections.ConfigDict:
  """Replaces defaults by saved values; newer fields keep their defaults."""
  for name, value in saved.items():
    if name not in config:
      raise errors.UserError(
        f"config.json has a field {name!r} that this version does not know; "
        "evaluate with the version that wrote it (its git_commit is there)."
      )
    if isinstance(value, dict):
      updated(config[name], value)
    else:
      config[name] = tuple(value) if isinstance(value, list) else value
  return config
