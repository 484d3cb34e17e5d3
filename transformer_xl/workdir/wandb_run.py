"""Weights & Biases as a tracker."""

import contextlib
import importlib.util
import json
import os
import pathlib
import secrets
from typing import TYPE_CHECKING, Any

from absl import logging

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.workdir import tracker

if TYPE_CHECKING:
  import wandb

# wandb sends what is left in the time that closing a tracker may take.
_CLOSING_SECONDS = 10.0


@registry.trackers.register("wandb")
class WandbRun:
  """A run of wandb, whose id is kept in the workdir and continued.

  Its own steps may not go backwards, which those of a resumed or rewound run
  do. So `step` is a metric, which is the x-axis of all others, and repeated
  steps are drawn twice.
  """

  @staticmethod
  def require_installed() -> None:
    """Raises a UserError if wandb cannot be imported."""
    found = importlib.util.find_spec("wandb")
    # A folder that wandb has written has the same name, and no origin.
    if found is None or found.origin is None:
      raise errors.UserError(
        "train.tracker=wandb needs the package wandb: "
        f"{errors.install('wandb')}, or set --config.train.tracker=none."
      )

  def __init__(self, workdir: str, *, name: str):
    """Starts or continues the run; its configuration is `config.json`."""
    self._run = _start(pathlib.Path(workdir), name)

  def record(self, record: tracker.Record) -> None:
    """Reports the numbers of a record."""
    self._run.log({"step": record["step"], **tracker.scalars(record)})

  def close(self) -> None:
    """Ends the run."""
    self._run.finish()


def _start(workdir: pathlib.Path, name: str) -> "wandb.Run":
  import wandb  # An optional dependency.

  mode: Any = os.environ.get("WANDB_MODE", "online")
  if mode == "online" and not wandb.login(prompt=False):
    logging.warning(
      "wandb is not logged in, so this run is kept offline; `wandb login` and "
      "`wandb sync` upload it."
    )
    mode = "offline"
  run = wandb.init(
    id=_run_id(workdir / "wandb_id.txt"),
    resume="allow",
    reinit="create_new",  # Leaves other runs of the process alone.
    mode=mode,
    dir=os.environ.get("WANDB_DIR", workdir),
    project=os.environ.get("WANDB_PROJECT", "transformer-xl"),
    name=os.environ.get("WANDB_NAME", name),
    config=json.loads((workdir / "config.json").read_text("utf-8")),
    settings=wandb.Settings(console="off", finish_timeout=_CLOSING_SECONDS),
  )
  run.define_metric("*", step_metric="step")
  return run


def _run_id(path: pathlib.Path) -> str:
  """The id in a file, or a new one that is kept there."""
  with contextlib.suppress(FileNotFoundError):
    if kept := path.read_text("utf-8").strip():
      return kept
  new = secrets.token_hex(4)
  path.write_text(f"{new}\n", "utf-8")
  return new
