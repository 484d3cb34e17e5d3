"""The flag --config=FILE, with --config.NAME=VALUE for single fields."""

import ast
import difflib
import os
import pathlib
import re

import ml_collections
from absl import flags
from ml_collections import config_flags

from transformer_xl import errors
from transformer_xl.config import load

CONFIG = config_flags.DEFINE_config_file(
  "config", None, "File in experiments/, with --config.NAME=VALUE overrides."
)
_FOLDER = pathlib.Path(__file__).parents[2] / "experiments"
_EXPERIMENTS = sorted(_FOLDER.glob("[!_]*.py"))


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
      f"--config={_nearest(file)}"
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


def values(argv: list[str]) -> tuple[ml_collections.ConfigDict, str]:
  """The configuration of a command line, and the file that it is from.

  Without --config these are the defaults.
  """
  path = _path(argv)
  if path is None:
    return load.default(), "experiments/base.py"
  parse(argv)
  return CONFIG.value, path


def saved_workdir() -> str:
  """WORKDIR in --config=experiments/saved.py:WORKDIR; "" for other files."""
  path = config_flags.get_config_filename(flags.FLAGS["config"])
  _, _, workdir = path.partition("saved.py:")
  return workdir


def summaries() -> dict[str, str]:
  """The first line of each experiment's docstring, by path in the checkout."""
  trees = [ast.parse(path.read_text("utf-8")) for path in _EXPERIMENTS]
  return {
    f"experiments/{path.name}": (ast.get_docstring(tree) or "").split("\n")[0]
    for path, tree in zip(_EXPERIMENTS, trees, strict=True)
  }


def _nearest(file: str) -> str:
  """The path of the experiment whose name is most like that of a file."""
  names = [path.stem for path in _EXPERIMENTS]
  near = difflib.get_close_matches(pathlib.Path(file).stem, names, n=1)
  path = _FOLDER / f"{near[0] if near else 'quickstart'}.py"
  relative = os.path.relpath(path)
  return str(path) if relative.startswith("..") else relative


def _path(argv: list[str]) -> str | None:
  """The value of --config, found before the flags of its fields exist."""
  only_config = flags.FlagValues()
  flags.DEFINE_string("config", None, "", flag_values=only_config)
  only_config(argv, known_only=True)
  return only_config.config
