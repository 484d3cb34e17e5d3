"""The items of one checkpoint: their folder, shapes and checksums.

A checkpoint has the items `params`, `average` (if there is one), `optimizer`
(with the step), `memory` and `metadata`, with checksums of all arrays.
"""

import contextlib
import glob
import operator
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Self

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import psutil
from absl import logging
from etils import epath
from etils.epath import gpath
from orbax.checkpoint import checkpoint_managers

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl import storage
from transformer_xl.model import network
from transformer_xl.processes import others
from transformer_xl.workdir import checksums
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_state

DIRECTORY = "checkpoints"
_COMMITTED = "commit_success.txt"  # Orbax writes it last.
ITEMS = ("params", "average", "optimizer", "memory")
validation_loss = operator.itemgetter("nll")  # It ranks checkpoints.


def directory(workdir: str) -> str:
  """The folder of a run's checkpoints."""
  return os.path.join(storage.absolute(workdir), DIRECTORY)


def open_manager(
  workdir: str,
  *,
  preservation_policy: checkpoint_managers.PreservationPolicy | None = None,
  cleanup_tmp_directories: bool = False,
  read_only: bool = False,
  lightweight_initialize: bool = False,
  params: ocp.CheckpointHandler | None = None,
) -> ocp.CheckpointManager:
  """Orbax's manager of a run's checkpoints, with options of the same names.

  `params` is a handler of that item in the place of the usual one.

  Raises:
    UserError: it is in a bucket that refuses, or at a path that checkpoints
      cannot have.
  """
  storage.require_checkpoint_path(workdir)
  handlers = {name: ocp.StandardCheckpointHandler() for name in ITEMS}
  if params is not None:
    handlers["params"] = params
  mode = ocp.options.AtomicityMode.AUTO
  if not storage.is_bucket(workdir) and is_mounted_bucket(workdir):
    # Gcsfuse refuses to rename a folder, unless it is told otherwise.
    mode = ocp.options.AtomicityMode.COMMIT_FILE
    _warn_of_uncommitted(directory(workdir))
  with of_bucket("read", workdir):
    return _Manager(
      _Folder(directory(workdir)),
      options=ocp.CheckpointManagerOptions(
        best_fn=validation_loss,
        best_mode="min",
        atomicity_options=ocp.options.AtomicityOptions(mode=mode),
        preservation_policy=preservation_policy,
        cleanup_tmp_directories=cleanup_tmp_directories,
        read_only=read_only,
        lightweight_initialize=lightweight_initialize,
      ),
      item_handlers={**handlers, "metadata": ocp.JsonCheckpointHandler()},
    )


@contextlib.contextmanager
def of_bucket(action: str, path: str) -> Iterator[None]:
  """`errors.of_bucket` for what all processes do together.

  Raises:
    UserError: the bucket refuses.
    LostProcessError: the block fails because another process is gone.
  """
  with errors.of_bucket(action, path), others.on_failure():
    yield


class _Folder(gpath.PosixGPath):
  """A path that is no pattern, whatever is in its name.

  Etils would take the brackets of `runs/run[1]` for a pattern. Orbax, which
  looks for the parts of a checkpoint that way, would find none to put together.
  It leaves a path of Etils, and the paths below it, of the type that they have.
  """

  def glob(self, pattern: str) -> Iterator[Self]:
    """The paths in this folder that match a pattern."""
    escaped = type(self)(glob.escape(os.fspath(self)))
    return super(_Folder, escaped).glob(pattern)


class _Manager(ocp.CheckpointManager):
  """A manager that reads back what it saves, and survives damaged losses."""

  # The step of a save that has begun and was not read back, and its items.
  _begun: tuple[int, set[str]] | None = None

  def save(
    self,
    step: int,
    *,
    args: ocp.args.Composite,
    metrics: shapes.PyTree | None = None,
    force: bool = False,
  ) -> bool:
    """Starts to save; an error of the previous save is raised here."""
    is_saved = super().save(step, args=args, metrics=metrics, force=force)
    if is_saved:
      self._begun = step, {*args} & {*ITEMS}
    return is_saved

  def wait_until_finished(self) -> None:
    """Waits for the last save and reads back what the arrays look like.

    The arrays themselves are left on disk.

    Raises:
      UnreadableError: the checkpoint is there and cannot be read.
    """
    begun, self._begun = self._begun, None
    super().wait_until_finished()
    # Other hosts may not see the files yet; they end with the first one.
    if begun is None or jax.process_index() != 0:
      return
    step, names = begun
    try:
      found = self.item_metadata(step)
      missing = sorted(name for name in names if found.get(name) is None)
      problem = f"it lacks {', '.join(missing)}" if missing else ""
    except Exception as error:  # Orbax has no common type for damage.
      text, _, _ = str(error).partition(" [tensorstore_spec=")
      problem = " ".join(text.split())[:240] or type(error).__name__
    if problem:
      raise errors.UnreadableError(
        f"checkpoint {step} was written to {self.directory} but cannot be read "
        f"back ({problem}): check that storage and run the same command again, "
        "or use a --workdir elsewhere."
      )

  def best_step(self) -> int | None:
    """The step with the lowest validation loss; None if none has one.

    Of the text that the newest of them was validated on: losses of others are
    not comparable.
    """
    ranked: dict[int, metrics_log.Json] = {}
    for step in self.all_steps():
      metrics = self.metrics(step)
      if metrics is not None:
        ranked[step] = metrics
    if not ranked:
      return None
    return best_of_each_text(ranked)[validated_text(ranked[max(ranked)])]

  def metrics(self, step: int) -> shapes.PyTree | None:
    """The validation loss by which checkpoints are ranked; None without one."""
    try:
      metrics = super().metrics(step)
      if metrics is not None:
        validation_loss(metrics)
      return metrics
    except (ValueError, LookupError, TypeError, IsADirectoryError) as error:
      logging.warning(
        "Checkpoint %d counts as not evaluated: its validation loss is damaged "
        "(%s).",
        step,
        error,
      )
      return None


def validated_text(metrics: metrics_log.Json) -> str:
  """Identifies the text, and the tokens of it, that a loss is of."""
  return metrics.get("text", "")


def best_of_each_text(ranked: Mapping[int, metrics_log.Json]) -> dict[str, int]:
  """The step with the lowest loss on each text; the newest of equal ones."""
  best: dict[str, int] = {}
  for step, metrics in sorted(ranked.items()):
    text = validated_text(metrics)
    loss = validation_loss(metrics)
    if text not in best or loss <= validation_loss(ranked[best[text]]):
      best[text] = step
  return best


def is_mounted_bucket(folder: str) -> bool:
  """Whether a folder is in a bucket that is mounted with gcsfuse."""
  folder = os.path.join(os.path.realpath(folder), "")
  around = [
    mount
    for mount in psutil.disk_partitions(all=True)
    if folder.startswith(os.path.join(mount.mountpoint, ""))
  ]
  if not around:
    return False
  return max(around, key=lambda m: len(m.mountpoint)).fstype == "fuse.gcsfuse"


def _warn_of_uncommitted(folder: str) -> None:
  """Names the checkpoints that the mode of mounted buckets does not see."""
  steps = sorted(
    path.parent.name
    for path in pathlib.Path(folder).glob("[0-9]*/*")
    if path.name == "_CHECKPOINT_METADATA"
    and not (path.parent / _COMMITTED).exists()
  )
  if steps:
    logging.warning(
      "The checkpoints %s in the mounted bucket %s are left out: they are "
      "incomplete, or were copied from elsewhere. An empty file %s in the "
      "folder of a complete one makes it count.",
      ", ".join(steps),
      folder,
      _COMMITTED,
    )


def of(
  state: run_state.TrainState, memory: network.State | None
) -> dict[str, shapes.PyTree]:
  """The arrays of each item, or the shapes to restore into."""
  items = {
    "params": state.params,
    "optimizer": {"step": state.step, "opt_state": state.opt_state},
  }
  if memory is not None:
    arrays = memory_arrays(memory)
    if arrays:
      items["memory"] = arrays
  if state.average is not None:
    items["average"] = state.average
  return items


def memory_arrays(memory: network.State) -> dict[str, jax.Array]:
  """The arrays of a memory by name, without empty ones, which Orbax refuses."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): leaf
    for path, leaf in jax.tree.leaves_with_path(memory)
    if leaf.size
  }


def memory_shapes(memory: network.State) -> dict[str, list[int]]:
  """The shapes of all arrays of a memory, empty ones included, by name."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): list(leaf.shape)
    for path, leaf in jax.tree.leaves_with_path(memory)
  }


def with_arrays(
  memory: network.State, arrays: Mapping[str, jax.Array]
) -> network.State:
  """Returns a memory with these arrays, and the empty ones that were left out.

  `memory` gives shapes and shardings; `memory_arrays` names the arrays.
  """

  def find(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    if leaf.size:
      return arrays[name]
    return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)

  return jax.tree.map_with_path(find, memory)


def read_metadata(
  manager: ocp.CheckpointManager, step: int
) -> metrics_log.Json:
  """The metadata of a checkpoint.

  Raises:
    ValueError: they are damaged.
  """
  metadata = manager.restore(
    step, args=ocp.args.Composite(metadata=ocp.args.JsonRestore())
  )["metadata"]
  if metadata.pop("digest") != checksums.of_json(metadata):
    raise ValueError("the metadata are not what was saved")
  return metadata


def check_trains(folder: epath.Path, step: int) -> None:
  """Refuses a checkpoint of parameters alone, such as an import makes.

  Raises:
    UserError: neither optimizer nor metadata were saved.
  """
  saved = [path.name for path in (folder / str(step)).iterdir()]
  if "params" in saved and not {"optimizer", "metadata"} & {*saved}:
    workdir = os.path.dirname(str(folder))
    raise errors.UserError(
      f"checkpoint {step} in {workdir} has parameters alone, as an import "
      "has, so there is no run to continue: start a new one from them with "
      f"--config.train.init_from={workdir} and another --workdir."
    )


def check_shapes(
  saved: shapes.PyTree, target: shapes.PyTree, step: int, *, kind: str
) -> None:
  """Compares shapes before Orbax does, whose message has hundreds of lines.

  Raises:
    UserError: a shape differs; names the first one.
  """
  have, want = (
    {name: tuple(leaf.shape) for name, leaf in checksums.by_path(tree).items()}
    for tree in (saved, target)
  )
  for name in sorted({*have, *want}):
    if have.get(name) != want.get(name):
      raise errors.UserError(
        f"checkpoint {step} is of another {kind}: {name} has shape "
        f"{have.get(name, 'none')} there and {want.get(name, 'none')} in this "
        "configuration; use another --workdir, or the configuration it was "
        "trained with (--config=saved:WORKDIR)."
      )
