"""Files and packages of other people, which register what they define.

    transformer-xl --extensions=my_memory.py,their_package.memories ...

An extension is Python code, so only a command line, a program or an installed
package names one. A run records which it needs, and nothing is ever imported
from a workdir.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import registry
from transformer_xl.config import schema

ENTRY_POINTS = "transformer_xl.extensions"  # The group of installed packages.
_PREFIX = "extension_"  # Of the names of modules that are loaded from a path.
_REGISTRIES: Mapping[str, registry.Registry[Any]] = {
  parts.kind: parts
  for parts in (
    registry.mixers,
    registry.encodings,
    registry.optimizers,
    registry.schedules,
    registry.trackers,
    registry.datasets,
    registry.tasks,
  )
}


class Extension(NamedTuple):
  """A module from outside of the package that registered something.

  Attributes:
    name: what `--extensions` takes: the name of a file, or of a module.
    file: the name of its file, without the folder.
    sha256: of the file.
    provides: what a run uses of it, such as "mixer ema".
  """

  name: str
  file: str
  sha256: str
  provides: tuple[str, ...]


def split(text: str) -> list[str]:
  """The paths and modules in the value of `--extensions`."""
  return [part.strip() for part in text.split(",") if part.strip()]


def load(names: Iterable[str]) -> None:
  """Imports extensions: paths of `.py` files, or modules that Python finds.

  What was imported before is left as it is, unless its file has changed.

  Raises:
    UserError: there is no such file or module, or it fails.
  """
  for name in names:
    if name.endswith(".py"):
      _load_file(name)
    else:
      _load_module(name)


@functools.cache  # Once for a process.
def load_installed() -> None:
  """Imports the extensions that installed packages name as entry points."""
  for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
    try:
      entry.load()
    except Exception as error:
      logging.warning(
        "The extension %s of an installed package is left out: %s.",
        entry.value,
        reason(error),
      )


def _load_file(path: str) -> None:
  """Imports a file under a name of its own, which its folder is part of."""
  file = pathlib.Path(storage.expanded(path)).resolve()
  if not file.is_file():
    raise errors.UserError(
      f"--extensions={path}: there is no such file; name the path of a .py "
      "file, or a module that Python can import."
    )
  place = hashlib.sha256(str(file.parent).encode()).hexdigest()
  name = f"{_PREFIX}{file.stem}_{place[:8]}"
  sha256 = _sha256(str(file))
  there = sys.modules.get(name)
  # A copy in another folder is the same file.
  for module in _loaded_files():
    is_named_so = pathlib.Path(vars(module)["__file__"]).name == file.name
    if is_named_so and vars(module)["_sha256"] == sha256:
      return
  spec = importlib.util.spec_from_file_location(name, file)
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  vars(module)["_sha256"] = sha256
  sys.modules[name] = module
  try:
    spec.loader.exec_module(module)
  except (Exception, SystemExit) as error:
    del sys.modules[name]
    if there is not None:  # What it registered is still there.
      sys.modules[name] = there
    raise errors.UserError(f"--extensions={path}: {reason(error)}") from error


def _load_module(name: str) -> None:
  """Imports a module that Python finds."""
  try:
    importlib.import_module(name)
  except (Exception, SystemExit) as error:
    raise errors.UserError(
      f"--extensions={name}: {reason(error)}; name a module that Python can "
      "import, or the path of a .py file."
    ) from error


def reason(error: BaseException) -> str:
  """What went wrong, after the place in the extension where it did."""
  if isinstance(error, errors.UserError):
    return str(error)
  frames = traceback.extract_tb(error.__traceback__)
  ours = (os.path.dirname(__file__), os.path.dirname(importlib.__file__))
  theirs = [
    frame
    for frame in frames
    if not frame.filename.startswith((*ours, "<frozen"))
  ]
  said = " ".join(f"{type(error).__name__}: {error}".split())
  if isinstance(error, SyntaxError):
    return f"{error.filename}, line {error.lineno}: {said}"
  if not theirs:
    return said
  # Libraries that the extension called stand below its own last line.
  files = {vars(module).get("__file__") for module in _loaded_files()}
  inside = [frame for frame in theirs if frame.filename in files]
  last = (inside or theirs)[-1]
  return f"{last.filename}, line {last.lineno}: {said}"


def _loaded_files() -> list[types.ModuleType]:
  """The modules that were loaded from the paths of files."""
  return [
    module
    for name, module in [*sys.modules.items()]
    if name.startswith(_PREFIX) and "_sha256" in vars(module)
  ]


def needed(
  model: schema.ModelConfig, train: schema.TrainConfig
) -> list[Extension]:
  """The extensions without which a run cannot go on."""
  return _of_parts(schema.parts(model, train))


def needed_by_model(model: schema.ModelConfig) -> list[Extension]:
  """The extensions without which a model cannot be read."""
  return _of_parts(schema.parts_of_model(model))


def version_of_dataset(name: str) -> str | None:
  """SHA-256 of the file from outside that makes a text; None for ours."""
  parts = [schema.Part("dataset", name), schema.Part("task", name)]
  found = _of_parts(parts)
  return found[0].sha256 if found else None


def _of_parts(parts: Iterable[schema.Part]) -> list[Extension]:
  """The modules from outside that registered some parts."""
  provided: dict[str, list[str]] = {}
  for kind, name in parts:
    found = _REGISTRIES[kind]
    if found.is_foreign(name):
      module = found[name].__module__
      provided.setdefault(module, []).append(f"{kind} {name}")
  return [
    _describe(module, tuple(sorted(names)))
    for module, names in sorted(provided.items())
  ]


def _describe(module_name: str, provides: tuple[str, ...]) -> Extension:
  """A module that was imported; a notebook has no file."""
  module = sys.modules[module_name]
  path = getattr(module, "__file__", None) or ""
  file = os.path.basename(path)
  is_file = "_sha256" in vars(module)
  sha256 = vars(module).get("_sha256") or _sha256(path)
  name = file if is_file else module_name
  return Extension(name, file, sha256, provides)


def require(recorded: Sequence[Mapping[str, Any]], config_path: str) -> None:
  """Compares what is loaded with what a run has recorded that it needs.

  Warns of another file than the recorded one.

  Args:
    recorded: the entry `extensions` of a `config.json`.
    config_path: that file, for messages.

  Raises:
    UserError: something that the run uses is not registered.
  """
  for one in recorded:
    missing = []
    for text in one["provides"]:
      kind, _, name = text.partition(" ")
      if name not in _REGISTRIES[kind]:
        missing.append(f"{kind} {name!r}")
    if missing:
      raise errors.UserError(
        f"{config_path} needs the {' and the '.join(missing)} of "
        f"{one['file'] or one['name']}: add --extensions={one['name']}, with "
        "the path of that file (in Python: extensions=[...])."
      )
  warn_of_other_versions(recorded, config_path)


def warn_of_other_versions(
  recorded: Sequence[Mapping[str, Any]], config_path: str
) -> None:
  """Warns of other files than those that a `config.json` has recorded."""
  for one in recorded:
    parts = [schema.Part(*text.split(" ", 1)) for text in one["provides"]]
    for loaded in _of_parts(parts):
      if loaded.sha256 != one["sha256"]:
        logging.warning(
          "%s was written with another version of %s (SHA-256 %s, now %s).",
          config_path,
          loaded.file,
          one["sha256"][:12],
          loaded.sha256[:12],
        )


def _sha256(path: str) -> str:
  """SHA-256 of a file; "" where there is none."""
  if not os.path.isfile(path):
    return ""
  return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
