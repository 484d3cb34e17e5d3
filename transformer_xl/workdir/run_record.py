"""The record of a run: `config.json`, and its vocabulary."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import subprocess
from collections.abc import Mapping

import jax
from absl import logging
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import extensions
from transformer_xl.config import schema
from transformer_xl.workdir import metrics_log

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
VOCABULARY = "vocabulary"


def record(
  config: schema.ExperimentConfig,
  workdir: str,
  *,
  step: int = 0,
  initialised_from: metrics_log.Json | None = None,
) -> None:
  """Writes `config.json`.

  Its `sessions` keep the time, the `step` after which training started or was
  resumed, and the SHA-256 of each extension's file, of every call.
  `initialised_from` says where the first parameters are from; None if they were
  drawn, or imported.
  """
  path = os.path.join(storage.local(workdir), "config.json")
  current = config.as_saved()
  needed = extensions.needed(config.model, config.train)
  session: metrics_log.Json = {"step": step, "time": _now()}
  if needed:
    session["extensions"] = {one.file: one.sha256 for one in needed}
  sessions: list[metrics_log.Json] = []
  if os.path.exists(path):
    saved = _saved(path)
    if saved is None:
      logging.warning("%s is damaged and will be rewritten.", path)
    else:
      sessions = list(saved.get("sessions", []))
  metrics_log.write_json(
    workdir,
    "config.json",
    {
      "config": current,
      "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
      "git_commit": git_commit(),
      "extensions": [one._asdict() for one in needed],
      "initialised_from": initialised_from,
      "sessions": [*sessions, session],
    },
  )


def write_again_if_gone(
  config: schema.ExperimentConfig,
  workdir: str,
  *,
  step: int,
  initialised_from: metrics_log.Json | None,
) -> None:
  """Writes `config.json` of a run that goes on, if somebody has removed it.

  Without it nothing else in the workdir can be used. The times of earlier
  sessions are lost.
  """
  path = os.path.join(storage.local(workdir), "config.json")
  if jax.process_index() == 0 and not os.path.exists(path):
    logging.warning("%s is gone; it is written again.", path)
    record(config, workdir, step=step, initialised_from=initialised_from)


def log_changes(values: Mapping[str, object], workdir: str) -> None:
  """Logs how values to be saved differ from those of a workdir's last run.

  Also which extensions have another file than then.
  """
  path = os.path.join(storage.local(workdir), "config.json")
  saved = _saved(path) if os.path.exists(path) else None
  if saved is None:
    return
  extensions.warn_of_other_versions(saved.get("extensions", []), path)
  last = flat(saved["config"])
  current = json.loads(json.dumps(values))
  for name, value in flat(current).items():
    old = last.get(name, "absent")
    if old != value:
      logging.warning(
        "Changed since the last run: %s %s -> %s", name, old, value
      )


def initialised_from(workdir: str) -> metrics_log.Json | None:
  """Returns where the first parameters of a run are from; None if unknown."""
  try:
    path = pathlib.Path(storage.local(workdir), "config.json")
    return json.loads(path.read_text("utf-8"))["initialised_from"]
  except (OSError, ValueError, LookupError, TypeError, RecursionError):
    return None


def _now() -> str:
  """The time in UTC, to the second."""
  now = datetime.datetime.now(datetime.UTC)
  return now.isoformat(timespec="seconds")


def _saved(path: str) -> metrics_log.Json | None:
  """What the last run recorded; None if the file is damaged."""
  try:
    content = json.loads(pathlib.Path(path).read_text("utf-8"))
    flat(content["config"])
    list(content.get("sessions", []))
    for extension in content.get("extensions", []):
      _ = extension["provides"], extension["sha256"]
    return content
  except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
    return None


def flat(tree: Mapping[str, object]) -> metrics_log.Json:
  """Values by names such as `config.model.num_layers`."""
  return traverse_util.flatten_dict({"config": dict(tree)}, sep=".")


def keep_vocabulary(data_dir: str, workdir: str) -> None:
  """Copies the vocabulary, so that the workdir alone serves text modes.

  Its folder `vocabulary` gets the `meta.json` and the vocabulary of the
  prepared dataset in `data_dir`.

  Raises:
    UserError: it keeps another vocabulary already, which stays.
  """
  check_vocabulary(data_dir, workdir)
  source = pathlib.Path(storage.local(data_dir))
  target = pathlib.Path(storage.local(workdir), VOCABULARY)
  kept = _vocabulary_hash(target) or _vocabulary_hash(source)
  if jax.process_index() != 0 or kept != _vocabulary_hash(source):
    return
  target.mkdir(parents=True, exist_ok=True)
  meta = json.loads((source / "meta.json").read_text("utf-8"))
  file = pathlib.Path(meta["vocabulary"]["file"]).name
  # `meta.json` last, since a kept vocabulary is known by it. A file that is
  # there stays whole, whatever happens while it is replaced.
  for name in (file, "meta.json"):
    storage.write_bytes(str(target / name), (source / name).read_bytes())


def check_vocabulary(
  data_dir: str, workdir: str, *, may_be_extended: bool = False
) -> None:
  """Compares the vocabulary of a dataset with the one that a run has kept.

  Two vocabularies of one size can give the same ids to other symbols. A workdir
  without a vocabulary, or with a damaged one, agrees with any dataset. Where
  the files differ, their symbols decide: an import may escape other bytes.
  If it `may_be_extended`, the dataset may have more symbols behind the run's.

  Raises:
    UserError: an id means another symbol.
  """
  kept = pathlib.Path(storage.local(workdir), VOCABULARY)
  trained = _vocabulary_hash(kept)
  found = _vocabulary_hash(pathlib.Path(storage.local(data_dir)))
  if trained is None or trained == found:
    return
  # Late: training needs no library of tokenizers.
  from transformer_xl.data import vocabulary

  old = vocabulary.load(str(kept))
  new = vocabulary.load(data_dir)
  if may_be_extended:
    if old.unit == new.unit and old.symbols == new.symbols[: old.size]:
      return
    raise errors.UserError(
      f"the vocabulary of {data_dir} is neither that of {workdir} nor an "
      "extension of it: ids would mean other symbols. Prepare the text with "
      f"transformer-xl-data --vocabulary_file={workdir} under another --name, "
      "with --extend_vocabulary to add its new symbols."
    )
  if old.symbols != new.symbols:
    raise errors.UserError(
      f"the vocabulary of {data_dir} (SHA-256 {str(found)[:12]}) is not the "
      f"one that {workdir} was trained with ({trained[:12]}): ids would mean "
      "other symbols. Prepare the text with transformer-xl-data "
      f"--vocabulary_file={workdir} under another --name, or use another "
      "--workdir."
    )


def _vocabulary_hash(folder: pathlib.Path) -> str | None:
  """SHA-256 of a vocabulary by its `meta.json`; None if that is not there."""
  try:
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    return str(meta["vocabulary"]["sha256"])
  except (OSError, ValueError, LookupError, TypeError, RecursionError):
    return None


def git_commit() -> str | None:
  """The commit of this code, marked as dirty if there are changes.

  None if this file is not under version control. The package may be installed
  in a folder of the user's own repository, whose commits are of other code.
  """
  file = pathlib.Path(__file__)
  commands = (
    ["git", "ls-files", "--error-unmatch", file.name],
    ["git", "describe", "--always", "--dirty", "--abbrev=40"],
  )
  try:
    for command in commands:
      result = subprocess.run(
        command, cwd=file.parent, capture_output=True, text=True, check=True
      )
  except (OSError, subprocess.CalledProcessError):
    return None
  return result.stdout.strip()
