"""The flag --config=FILE, with --config.NAME=VALUE for single fields."""

import os
import re
from typing import Any

from absl import flags
from ml_collections import config_flags

from transformer_xl import errors
from transformer_xl.config import defaults
from transformer_xl.config import experiments

CONFIG = config_flags.DEFINE_config_file(
  "config", None, "File in experiments/, with --config.NAME=VALUE overrides."
)


def parse(argv: list[str]) -> list[str]:
  """Parses the flags of a command line and returns its other arguments.

  Raises:
    UserError: --config is missing, or there is no such file or field.
    flags.Error: another flag is wrong.
  """
  path = _path(argv)
  if path is None:
    raise errors.UserError(
      "name an experiment: --config=experiments/quickstart.py"
    )
  file, _, _ = path.partition(":")
  if not os.path.isfile(file):
    raise errors.UserError(
      f"cannot read {file}: --config takes the path of a file, as in "
      f"--config={experiments.nearest(file)}"
    )
  try:
    rest = flags.FLAGS(argv)
    CONFIG.value.keys()  # Some errors in the file show on first use only.
    return rest
  except (AttributeError, KeyError) as error:
    # The text is a quoted name, quoted again, and a hint on a second line.
    name, *hint = re.sub(r"[\\']", "", str(error.args[0])).split("nDid", 1)
    raise errors.UserError(
      f"the configuration has no field {name}"
      + "".join(f". Did{text}" for text in hint)
    ) from error
  except OSError as error:
    raise errors.UserError(f"cannot read {path}: {error}") from error


def values(argv: list[str]) -> tuple[dict[str, Any], str]:
  """The values that a command line gives to fields, and the file they are from.

  Without --config these are the defaults.
  """
  path = _path(argv)
  if path is None:
    return defaults.get_config().to_dict(), "experiments/base.py"
  parse(argv)
  return CONFIG.value.to_dict(), path


def saved_workdir() -> str:
  """WORKDIR in --config=experiments/saved.py:WORKDIR; "" for other files."""
  path = config_flags.get_config_filename(flags.FLAGS["config"])
  _, _, workdir = path.partition("saved.py:")
  return workdir


def _path(argv: list[str]) -> str | None:
  """The value of --config, found before the flags of its fields exist."""
  only_config = flags.FlagValues()
  flags.DEFINE_string("config", None, "", flag_values=only_config)
  only_config(argv, known_only=True)
  return only_config.config
