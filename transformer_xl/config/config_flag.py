"""The flag --config=NAME, with --config.FIELD=VALUE for single fields; help."""

import ast
import contextlib
import difflib
import itertools
import operator
import os
import pathlib
import re
import textwrap
from collections.abc import Iterable

import ml_collections
from absl import flags
from ml_collections import config_flags

from transformer_xl import errors
from transformer_xl.config import fields
from transformer_xl.config import load
from transformer_xl.config import schema

CONFIG = config_flags.DEFINE_config_file(
  "config",
  None,
  "Name of an experiment, or the path of a file like those in experiments/; "
  "--config.FIELD=VALUE sets a field.",
)
_FOLDER = (pathlib.Path(__file__).parents[1] / "experiments").resolve()
_EXPERIMENTS = sorted(_FOLDER.glob("[!_]*.py"))


def parse(argv: list[str]) -> list[str]:
  """Parses the flags of a command line and returns its other arguments.

  Raises:
    UserError: --config is missing, or there is no such file or field.
    flags.Error: another flag is wrong.
  """
  name, rest = _split(argv)
  if name is None:
    raise errors.UserError("name an experiment: --config=quickstart")
  words = name.split(":")
  for count in range(2, len(words) + 1):
    file = ":".join(words[:count])
    if os.path.isfile(file):
      raise errors.UserError(
        f"--config={file} has a colon in its path, where the argument of a "
        "configuration would begin: rename the file or its folder."
      )
  file, *argument = name.split(":", 1)
  path = ":".join([_find(file), *argument])
  try:
    rest = flags.FLAGS([argv[0], f"--config={path}", *rest])
    CONFIG.value.keys()  # Some errors in the file show on first use only.
    if not isinstance(CONFIG.value, ml_collections.ConfigDict):
      _require_configuration(path)
  except flags.IllegalFlagValueError as error:
    mismatch = re.search(r"get_config\(\) (takes|missing).*", str(error))
    if mismatch is None:
      raise
    raise errors.UserError(
      f"--config={name} does not suit its file ({mismatch[0]}); what follows a "
      "colon is the argument of get_config."
    ) from None
  except (AttributeError, KeyError) as error:
    with contextlib.suppress(AttributeError, KeyError):
      _require_configuration(path)
    # The text is a quoted name, quoted again, and a hint on a second line.
    field, *hint = re.sub(r"[\\']", "", str(error.args[0])).split("nDid", 1)
    raise errors.UserError(
      f"the configuration has no field {field}"
      + "".join(f". Did{text}" for text in hint)
    ) from error
  except OSError as error:
    raise errors.UserError(f"cannot read {path}: {error}") from error
  if saved_workdir():
    start_from_another(CONFIG.value, argv)
  return rest


def start_from_another(
  config: ml_collections.ConfigDict, argv: list[str]
) -> None:
  """Forgets which checkpoint a saved run started from, if another is named.

  `train.init_checkpoint` and `train.init_parameters` are of the saved
  `train.init_from`. Where the command line names another one, they are the
  defaults unless it has them, too.
  """
  given = {word.partition("=")[0].lstrip("-") for word in argv}
  if "config.train.init_from" not in given:
    return
  for name in ("train.init_checkpoint", "train.init_parameters"):
    if f"config.{name}" not in given:
      group, field = name.split(".")
      config[group][field] = schema.FIELDS[name].default


def _require_configuration(path: str) -> None:
  """Loads a file without the flags of its fields.

  Raises:
    UserError: it has no `get_config`, or that returns something else.
    AttributeError, KeyError: the file names a field that there is not.
  """
  values = flags.FlagValues()
  flag = config_flags.DEFINE_config_file(
    "config", None, flag_values=values, sys_argv=[""]
  )
  hint = "write it like those in experiments/, which start from base.py."
  try:
    values(["", f"--config={path}"])
    config = flag.value
  except AttributeError as error:
    if "no attribute 'get_config'" not in str(error):
      raise
    raise errors.UserError(
      f"{path} has no function get_config; {hint}"
    ) from None
  if not isinstance(config, ml_collections.ConfigDict):
    raise errors.UserError(
      f"get_config in {path} returns no ConfigDict but {config!r:.40}; {hint}"
    )


def help_text(
  introduction: str, options: Iterable[flags.Flag], argv: list[str]
) -> str:
  """All that `--help` prints, in lines of at most 80 columns.

  After the introduction and the flags that are not fields come the fields, with
  the values of the command line's --config, or the defaults.
  """
  config = load.default()
  source, _ = _split(argv)
  if source is not None:
    parse(argv)
    config = CONFIG.value
  lines = [introduction.rstrip(), "", "Experiments"]
  for path in _EXPERIMENTS:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    summary, _, _ = docstring.partition("\n")
    lines += [f"  {path.stem}", *_wrap(summary, indent=6)]
  lines += ["", "Flags"]
  for option in options:
    value = "" if option.default is None else f"={option.default}"
    lines += [f"  --{option.name}{value}", *_wrap(option.help or "", indent=6)]
  source = source or "base"
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


def _describe(declared: fields.Field, value: object) -> list[str]:
  line = f"config.{declared.name} = {value!r}"
  default = declared.default
  if isinstance(default, fields.SameAs):
    line += f"  (default: that of {default.leader})"
  elif value != default:
    line += f"  (default: {default!r})"
  remark = declared.remark
  rule = declared.rule
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


def saved_workdir() -> str:
  """WORKDIR in --config=saved:WORKDIR; "" for other experiments."""
  path = config_flags.get_config_filename(flags.FLAGS["config"])
  file, _, workdir = path.partition(":")
  return workdir if os.path.realpath(file) == str(_FOLDER / "saved.py") else ""


def _find(file: str) -> str:
  """The path of a file, or of the experiment that its name is.

  A name alone is an experiment, even if the current folder has a file of that
  name. A path that is not there, such as experiments/quickstart.py from another
  folder, is the experiment of that name.

  Raises:
    UserError: there is neither.
  """
  names = {path.stem: str(path) for path in _EXPERIMENTS}
  if file in names:
    return names[file]
  file = os.path.expanduser(file)
  if os.path.isfile(file):
    return file
  folder, name = os.path.split(file.removesuffix(".py"))
  if name in names and folder in ("", "experiments"):
    return names[name]
  near = [*difflib.get_close_matches(name, names, n=1), "quickstart"][0]
  raise errors.UserError(
    f"cannot read {file}: --config takes the name of an experiment or the path "
    f"of a file, as in --config={near}; --help lists the experiments."
  )


def _split(argv: list[str]) -> tuple[str | None, list[str]]:
  """The value of --config, and the other words after the command's name.

  It is needed before the flags of its fields exist.
  """
  only_config = flags.FlagValues()
  only_config.set_gnu_getopt(True)  # Values of other flags may be words.
  flags.DEFINE_string("config", None, "", flag_values=only_config)
  _, *rest = only_config(argv, known_only=True)
  return only_config.config, rest
