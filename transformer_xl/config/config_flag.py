"""The flag --config=NAME, with --config.FIELD=VALUE for single fields."""

import contextlib
import itertools
import os
import re

import ml_collections
from absl import flags
from ml_collections import config_flags

from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl.config import config_file
from transformer_xl.config import experiments
from transformer_xl.config import extensions
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.config import suggestions

CONFIG = config_flags.DEFINE_config_file(
  "config",
  None,
  "Name of an experiment, or the path of a file like those in experiments/; "
  "--config.FIELD=VALUE sets a field.",
)
EXTENSIONS = flags.DEFINE_string(
  "extensions",
  "",
  "Files (my_memory.py) or modules, separated by commas, that register mixers, "
  "encodings, optimizers, schedules, trackers or tasks (docs/extend.md).",
)
# Fields that say what to continue, of which a command line has one.
_PROMPTS = ("generate.prompt", "generate.prompt_file", "generate.prompt_split")
_OF_PROMPT_SPLIT = ("generate.prompt_start", "generate.prompt_len")
# Saved fields that mean nothing beside a new value of another one, by this one.
_DEPENDENTS = {
  "train.init_from": ("train.init_checkpoint", "train.init_parameters"),
  "generate.prompt": ("generate.prompt_split", *_OF_PROMPT_SPLIT),
  "generate.prompt_file": ("generate.prompt_split", *_OF_PROMPT_SPLIT),
  "generate.prompt_split": _OF_PROMPT_SPLIT,
}


def parse(argv: list[str], *, default: str | None = None) -> list[str]:
  """Parses the flags of a command line and returns its other arguments.

  Args:
    argv: the words of the command line.
    default: the experiment where --config is missing; None to refuse.

  Raises:
    UserError: --config is missing, or there is no such file or field, or an
      extension cannot be imported.
    flags.Error: another flag is wrong.
  """
  load_extensions(argv)
  name, rest = command_line.split(argv, "config")
  name = name or default
  if name is None:
    raise errors.UserError(_missing(argv))
  words = name.split(":")
  for count in range(2, len(words) + 1):
    file = ":".join(words[:count])
    if os.path.isfile(file):
      raise errors.UserError(
        f"--config={file} has a colon in its path, where the argument of a "
        "configuration would begin: rename the file or its folder."
      )
  file, *argument = name.split(":", 1)
  file = _find(file)
  path = ":".join([file, *argument])
  try:
    rest = flags.FLAGS([argv[0], f"--config={path}", *rest])
    CONFIG.value.keys()  # Some errors in the file show on first use only.
    if not isinstance(CONFIG.value, ml_collections.ConfigDict):
      _require_configuration(path)
  except flags.UnrecognizedFlagError as error:
    if "Did you mean" in str(error):
      raise
    hint = suggestions.hint_of_flag(error.flagname)
    raise errors.UserError(
      f"there is no flag --{error.flagname}; {hint}"
    ) from None
  except flags.IllegalFlagValueError as error:
    _refuse_value(argv)
    mismatch = config_file.refused_argument(error)
    if mismatch:
      raise errors.UserError(
        f"--config={name} does not suit its file ({mismatch}); what follows a "
        "colon is the argument of get_config."
      ) from None
    where = config_file.raised_at(file, error)
    if not where:
      raise
    _, _, reason = str(error).strip().rpartition("\n")
    # Behind the kind of exception, unless the message has several lines.
    reason = reason.partition(": ")[2] or reason.strip()
    raise errors.UserError(f"{where}: {reason}") from None
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    with contextlib.suppress(AttributeError, KeyError):
      # A group that the file has replaced lacks what a flag would set.
      load.require_fields(_require_configuration(path))
    where = config_file.raised_at(file, error)
    if not where:  # The file has run, and may have imported extensions.
      _refuse_unknown_fields(rest)
    field = config_file.missing_field(error)
    if not where or not field:
      raise
    raise errors.UserError(
      f"{where}: there is no field {field}{suggestions.hint(field)}"
    ) from error
  except OSError as error:
    raise errors.UserError(f"cannot read {path}: {error}") from error
  given = _given(argv)
  prompts = [f"config.{name}" for name in _PROMPTS if f"config.{name}" in given]
  if len(prompts) > 1:
    raise errors.UserError(
      f"--{prompts[0]} and --{prompts[1]} are both given; leave one of them "
      "out."
    )
  if saved_workdir():
    forget_dependents(CONFIG.value, argv)
  return rest


def _given(argv: list[str]) -> set[str]:
  """The names of the flags in a command line."""
  return {word.partition("=")[0].lstrip("-") for word in argv}


def checked() -> schema.ExperimentConfig:
  """The configuration of the command line, once `parse` has read it.

  Raises:
    UserError: a field is of the wrong type or out of range. The error says
      where the configuration file sets it.
  """
  try:
    return load.from_config_dict(CONFIG.value)
  except errors.UserError as error:
    holder = flags.FLAGS["config"]
    file, _, _ = config_flags.get_config_filename(holder).partition(":")
    given = config_flags.get_override_values(holder)
    places = []
    # Rules, also those of extensions, name the fields that they are about.
    said = "".join(c if c.isalnum() or c in "_." else " " for c in str(error))
    for word in said.split():
      name = word.strip(".").removeprefix("config.")
      if name in schema.all_fields() and name not in given:
        line = config_file.set_at(file, name)
        if line is not None:
          places.append(f"{file}, line {line} sets {name}.")
    if not places:
      raise
    text = " ".join([str(error), *dict.fromkeys(places)])
    raise errors.UserError(text) from None


def _refuse_unknown_fields(words: list[str]) -> None:
  """Raises a UserError for --config.FIELD where there is no such field."""
  for word in words:
    match = re.match(r"--?config\.([\w.-]+)", word)
    if match is None or match[1] in schema.all_fields():
      continue
    if not any(name.startswith(f"{match[1]}.") for name in schema.all_fields()):
      raise errors.UserError(
        f"there is no field config.{match[1]}{suggestions.hint(match[1])}"
      )


def _missing(argv: list[str]) -> str:
  """What to do on a command line without --config."""
  workdir, _ = command_line.split(argv, "workdir")
  if workdir and _is_of_run(workdir):
    return (
      "the configuration is missing; for that of the run in the workdir: "
      f"--config=saved:{workdir}"
    )
  return (
    "name an experiment, as in --config=quickstart --workdir=runs/quickstart; "
    "--help lists experiments, modes and flags."
  )


def _is_of_run(folder: str) -> bool:
  """Whether a run, or an import, has written to a folder on this machine."""
  return os.path.isfile(os.path.join(os.path.expanduser(folder), "config.json"))


def _refuse_value(argv: list[str]) -> None:
  """Raises a UserError for the first value that the parser of a field refuses.

  The parsers speak of Python's functions, such as `int()`.
  """
  fields = {f"config.{name}": one for name, one in schema.all_fields().items()}
  for word, next_word in itertools.pairwise([*argv, ""]):
    flag, equals, value = word.lstrip("-").partition("=")
    if flag not in fields or flag not in flags.FLAGS:
      continue
    if not equals:
      if flags.FLAGS[flag].boolean:
        continue
      value = next_word
    try:
      flags.FLAGS[flag].parser.parse(value)
    except (TypeError, ValueError, OverflowError):
      what = load.words_of_type(fields[flag].type)
      raise errors.UserError(
        f"{flag} must be {what}: it is {value!r}."
      ) from None


def forget_dependents(
  config: ml_collections.ConfigDict, argv: list[str]
) -> None:
  """Forgets saved fields that belong to one that the command line changes.

  `train.init_checkpoint` and `train.init_parameters` are of the saved
  `train.init_from`, and a prompt of one kind takes the place of another. They
  are the defaults unless the command line has them, too.
  """
  given = _given(argv)
  for leader, dependents in _DEPENDENTS.items():
    if f"config.{leader}" not in given:
      continue
    for name in dependents:
      if f"config.{name}" not in given:
        group, field = name.split(".")
        config[group][field] = schema.all_fields()[name].default


def _require_configuration(path: str) -> ml_collections.ConfigDict:
  """The configuration of a file, without the flags of its fields.

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
  return config


def load_extensions(argv: list[str]) -> None:
  """Imports extensions of installed packages, and those of a command line.

  Raises:
    UserError: what --extensions names cannot be imported.
  """
  extensions.load_installed()
  names, _ = command_line.split(argv, "extensions")
  extensions.load(extensions.split(names or ""))


def require_readable(argv: list[str]) -> None:
  """Raises a UserError for a command line whose --config cannot be read."""
  load_extensions(argv)
  name, _ = command_line.split(argv, "config")
  if name is not None:
    parse(argv)


def source(argv: list[str]) -> tuple[str, ml_collections.ConfigDict]:
  """The configuration that --help shows, and its name: by default `base`."""
  load_extensions(argv)
  name, _ = command_line.split(argv, "config")
  if name is None:
    return "base", load.default()
  parse(argv)
  return name, CONFIG.value


def saved_workdir() -> str:
  """WORKDIR in --config=saved:WORKDIR; "" for other experiments."""
  path = config_flags.get_config_filename(flags.FLAGS["config"])
  file, _, workdir = path.partition(":")
  saved = str(experiments.PATHS["saved"])
  return workdir if os.path.realpath(file) == saved else ""


def _find(file: str) -> str:
  """The path of a file, or of the experiment that its name is.

  A name alone is an experiment, even if the current folder has a file of that
  name. A path that is not there, such as experiments/quickstart.py from another
  folder, is the experiment of that name.

  Raises:
    UserError: there is neither.
  """
  if file in experiments.PATHS:
    return str(experiments.PATHS[file])
  file = os.path.expanduser(file)
  if os.path.isfile(file):
    return file
  if _is_of_run(file):
    raise errors.UserError(
      f"--config={file} is the folder of a run; for its configuration: "
      f"--config=saved:{file}"
    )
  folder, name = os.path.split(file.removesuffix(".py"))
  if name in experiments.PATHS and folder in ("", "experiments"):
    return str(experiments.PATHS[name])
  near = [f"--config={other}" for other in experiments.meant(name)]
  hint = f"; did you mean {' or '.join(near)}?"
  if not near:
    hint = ", as in --config=quickstart."
  raise errors.UserError(
    f"cannot read {file}: --config takes the name of an experiment or the path "
    f"of a file{hint} --help lists the experiments."
  )
