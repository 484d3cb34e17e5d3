"""The tracker that `train.tracker` names; it neither stops nor slows training.

It is a registered name, such as that of `wandb_run.py`, or a class by its
import path, `module:Class`, with the methods of `tracker.Tracker`.
"""

import copy
import importlib
import queue
import threading
from typing import Protocol, cast

from absl import logging

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.workdir import tracker as tracker_lib

_CLOSING_SECONDS = 10.0  # A preempted host has about 30.


class Factory(Protocol):
  """The class of a tracker, or a function that returns one."""

  def __call__(self, workdir: str, *, name: str) -> tracker_lib.Tracker:
    """Starts or continues the record of the run in a workdir.

    Args:
      workdir: the run's folder on disk. `config.json` in it has the
        configuration.
      name: the folder's last part.
    """


def find(path: str) -> Factory | None:
  """Returns the class of a tracker, or None for `none`.

  Raises:
    UserError: the class or its package cannot be imported.
  """
  if path == "none":
    return None
  if path in registry.trackers:
    kind = registry.trackers[path]
    if hasattr(kind, "require_installed"):
      kind.require_installed()
    return cast(Factory, kind)
  module_name, _, class_name = path.partition(":")
  try:
    found = getattr(importlib.import_module(module_name), class_name, None)
  except ImportError as error:
    raise errors.UserError(
      f"train.tracker={path} cannot be imported ({error}); install what is "
      "missing, or put the folder of the module on PYTHONPATH."
    ) from None
  except (Exception, SystemExit) as error:  # The module runs when imported.
    raise errors.UserError(
      f"train.tracker={path} cannot be imported, since {module_name} fails "
      f"({_one_line(error)}); try python -c 'import {module_name}'."
    ) from error
  if not callable(found):
    raise errors.UserError(
      f"train.tracker={path}: the module {module_name} has no class "
      f"{class_name}; name one with the methods record and close "
      "(docs/training_log.md)."
    )
  return found


class InBackground:
  """Runs a tracker in a thread of its own.

  Training waits for it at the end only, and not for long. If it fails, the log
  has a warning.
  """

  def __init__(self, make: Factory, *, path: str, workdir: str, name: str):
    """Starts the tracker; `path` is what warnings call it."""
    self._path = path
    self._records = queue.SimpleQueue[tracker_lib.Record | None]()
    self._thread = threading.Thread(
      target=self._report, args=(make, workdir, name), daemon=True
    )
    self._thread.start()

  def record(self, record: tracker_lib.Record) -> None:
    """Passes a copy of a record on, which the tracker may change."""
    self._records.put(copy.deepcopy(record))

  def close(self) -> None:
    """Ends the tracker; gives up on an upload that takes long."""
    self._records.put(None)
    self._thread.join(_CLOSING_SECONDS)
    if self._thread.is_alive():
      logging.warning(
        "%s did not finish in %g s; metrics.jsonl has all records.",
        self._path,
        _CLOSING_SECONDS,
      )

  def _report(self, make: Factory, workdir: str, name: str) -> None:
    try:
      tracker = make(workdir, name=name)
      while (record := self._records.get()) is not None:
        tracker.record(record)
      tracker.close()
    except (Exception, SystemExit) as error:  # An exit would end the thread.
      logging.warning(
        "%s failed (%s); training continues without it.",
        self._path,
        _one_line(error),
      )


def _one_line(error: BaseException) -> str:
  """The kind of an error, and what it says."""
  message = " ".join(str(error).split())[:200]
  return f"{type(error).__name__}: {message}"
