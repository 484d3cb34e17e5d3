"""Where a configuration file, the value of --config, sets a field."""

import ast
import os
import pathlib
import traceback
import types

import ml_collections
from ml_collections.config_flags import config_flags

_ML_COLLECTIONS = os.path.dirname(ml_collections.__file__)


def raised_at(file: str, error: BaseException) -> str:
  """`FILE, line N` of a statement that a configuration file failed in.

  It may be in another file that this one calls. "" if the error comes from
  elsewhere.
  """
  cause: BaseException | None = error
  while cause is not None:
    frames = traceback.extract_tb(cause.__traceback__)
    paths = [os.path.abspath(frame.filename) for frame in frames]
    if os.path.abspath(file) in paths:
      break
    cause = cause.__context__  # Parsers raise an error of their own for it.
  else:
    return ""
  inside = [
    frame
    for path, frame in zip(paths, frames, strict=True)
    if not path.startswith(_ML_COLLECTIONS)
  ]
  return f"{inside[-1].filename}, line {inside[-1].lineno}"


def _origin(error: BaseException) -> tuple[BaseException, types.FrameType]:
  """The error for which the others were raised, and the call that raised it."""
  while error.__context__ is not None:
    error = error.__context__
  *_, (frame, _) = traceback.walk_tb(error.__traceback__)
  return error, frame


def refused_argument(error: BaseException) -> str:
  """What Python says where `get_config` does not take what follows a colon.

  "" if the error is another one.
  """
  origin, frame = _origin(error)
  is_of_call = frame.f_code is config_flags.ConfigFileFlagParser.parse.__code__
  return str(origin) if is_of_call and isinstance(origin, TypeError) else ""


def missing_field(error: BaseException) -> str:
  """The field that a statement names and no group has; "" for other errors."""
  origin, frame = _origin(error)
  is_of_group = frame.f_code.co_filename.startswith(_ML_COLLECTIONS)
  if not (is_of_group and isinstance(origin, KeyError)):
    return ""
  return str(frame.f_locals.get("key", ""))  # What the group was asked for.


def set_at(file: str, field: str) -> int | None:
  """The last line of a configuration file that sets a field.

  It is found in the file's text: an assignment to `config.train.batch_size`, or
  an entry of what `config.train.update` takes. None if there is none.
  """
  group, _, name = field.rpartition(".")
  found = []
  for node in ast.walk(ast.parse(pathlib.Path(file).read_text("utf-8"))):
    if isinstance(node, ast.Attribute | ast.Subscript) and (
      isinstance(node.ctx, ast.Store) and _is_path(node, field)
    ):
      found.append(node.lineno)
    elif isinstance(node, ast.Call) and (
      _is_path(node.func, f"{group}.update".lstrip("."))
    ):
      entries = [word for word in node.keywords if word.arg == name]
      found += [entry.value.lineno for entry in entries]
      for argument in node.args:
        if isinstance(argument, ast.Dict):
          found += [
            key.lineno
            for key in argument.keys
            if isinstance(key, ast.Constant) and key.value == name
          ]
  return max(found, default=None)


def _is_path(node: ast.expr, path: str) -> bool:
  """Whether an expression is a path of some configuration.

  `config.train.seed` and `config["train"].seed` are the path `train.seed`.
  """
  written = ast.unparse(node).replace("['", ".").replace("']", "")
  return f".{written}".endswith(f".{path}")
