"""Checkpoints through Orbax: when to save, what to keep, what to restore.

One checkpoint has the items `params`, `average` (if there is one), `optimizer`
(with the step), `memory` and `metadata`. Evaluation reads one of the first two
only. Everything else that a run needs is a function of the step. The metadata
have fingerprints of all items: what comes back as something else is damaged.
"""

import copy
import os
import shutil
import time
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import memory as memory_lib
from transformer_xl.workdir import checksums
from transformer_xl.workdir import train_state

DIRECTORY = "checkpoints"
ITEMS = ("params", "average", "optimizer", "memory")


class Restored(NamedTuple):
  """What a checkpoint gives back."""

  state: train_state.TrainState
  memory: memory_lib.Memory | None  # None where its shape has changed.
  metadata: dict[str, Any]


class SavePolicy:
  """Says when a save is due: every so many steps, or minutes.

  The minutes are those of the first process, whose word counts for all.
  """

  def __init__(
    self,
    config: schema.CheckpointConfig,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._config = config
    self._clock = clock
    self._last = clock()

  def is_due(self, step: int) -> bool:
    """Whether to save after `step` updates."""
    minutes = self._config.every_minutes
    by_clock = minutes > 0 and self._clock() - self._last >= minutes * 60
    if minutes > 0 and jax.process_count() > 1:
      shared = multihost_utils.broadcast_one_to_all(np.asarray(by_clock))
      by_clock = bool(shared)
    return by_clock or step % self._config.every_steps == 0

  def saved(self) -> None:
    """Starts the clock again."""
    self._last = self._clock()


class Checkpoints:
  """The checkpoints of one run; saving goes on in the background."""

  def __init__(
    self,
    workdir: str,
    config: schema.CheckpointConfig,
    *,
    keep_regular: int = 0,
  ):
    """Opens the folder.

    Args:
      workdir: of the run.
      config: when to save and what to keep.
      keep_regular: how many to keep, too, of those that are saved by step.
    """
    self._directory = os.path.join(os.path.abspath(workdir), DIRECTORY)
    policies: list[preservation_policy.PreservationPolicy] = [
      preservation_policy.LatestN(config.keep_latest)
    ]
    if keep_regular:
      policies.append(
        preservation_policy.EveryNSteps(
          config.every_steps, max_to_keep=keep_regular
        )
      )
    if config.keep_best:
      policies.append(
        preservation_policy.BestN(
          get_metric_fn=_nll,
          reverse=True,
          n=config.keep_best,
          keep_checkpoints_without_metrics=False,
        )
      )
    self._manager = _manager(
      self._directory,
      preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
      cleanup_tmp_directories=True,
    )

  def save(
    self,
    state: train_state.TrainState,
    memory: memory_lib.Memory,
    *,
    metadata: dict[str, Any],
    nll: float | None,
  ) -> None:
    """Starts to save; an error of the last save is raised here.

    Args:
      state: of training.
      memory: of the training lanes.
      metadata: anything JSON holds exactly.
      nll: the validation loss of this very step, if it was evaluated.
    """
    step = int(state.step)
    if step in self._manager.all_steps():
      return
    items = _items(state, memory)
    arguments = {
      name: ocp.args.StandardSave(item) for name, item in items.items()
    }
    # Written in the background, while the caller may go on changing it.
    metadata = copy.deepcopy(metadata)
    metadata["memory_shape"] = memory.sizes
    metadata["fingerprints"] = checksums.of(items)
    metadata["digest"] = checksums.of_json(metadata)
    self._manager.save(
      step,
      args=ocp.args.Composite(
        metadata=ocp.args.JsonSave(metadata), **arguments
      ),
      metrics=None if nll is None else {"nll": nll},
      force=True,
    )

  def restore_newest(
    self, state: train_state.TrainState, memory: memory_lib.Memory
  ) -> Restored | None:
    """The newest checkpoint that is whole, or None if there is none.

    Args:
      state: shapes, types and shardings to restore into.
      memory: likewise; another shape is no error, the memory is then None.

    Raises:
      UserError: it is of another model or optimizer, or none can be read.
    """
    damaged: list[int] = []
    for step in sorted(self._manager.all_steps(), reverse=True):
      restored = None
      try:
        restored = _restore(self._manager, step, state, memory)
      except errors.UserError:
        raise
      except Exception as error:  # Orbax has no common type for damage.
        logging.warning("Checkpoint %d cannot be read: %s", step, error)
      # Fingerprints are taken by all processes, or by none.
      if _in_all_processes(restored is not None) and _is_intact(restored, step):
        for newer in damaged:
          self._put_aside(newer)
        return restored
      damaged.append(step)
    if damaged:  # Rather a lack of memory or permission than damage.
      raise errors.UserError(
        f"none of the checkpoints {damaged} in {self._directory} can be read "
        "(the log says why); mend that, or start anew in another --workdir."
      )
    return None

  def _put_aside(self, step: int) -> None:
    """Moves a damaged checkpoint out of the way of the next of its step."""
    if jax.process_index() == 0:
      aside = os.path.join(os.path.dirname(self._directory), "damaged")
      os.makedirs(aside, exist_ok=True)
      name = f"{step}.{int(time.time())}"
      source = os.path.join(self._directory, str(step))
      shutil.move(source, os.path.join(aside, name))
      logging.warning("Moved it to %s.", os.path.join(aside, name))
    multihost_utils.sync_global_devices(f"checkpoint {step} is out of the way")
    self._manager.reload()

  def drop_after(self, step: int) -> None:
    """Deletes all that is newer than a step."""
    self._manager.wait_until_finished()
    for newer in self.steps():
      if newer > step:
        self._manager.delete(newer)

  def steps(self) -> list[int]:
    """The steps that are saved, oldest first."""
    return sorted(self._manager.all_steps())

  def close(self) -> None:
    """Waits for the last save; an error of it is raised here."""
    self._manager.wait_until_finished()
    self._manager.close()


def restore_params(
  workdir: str, *, which: str, average: bool, target: shapes.PyTree
) -> tuple[shapes.PyTree, int]:
  """Reads the parameters of one checkpoint and nothing else.

  Args:
    workdir: of the run.
    which: "latest", "best" (by validation loss) or a step.
    average: the average of the parameters instead of the last ones.
    target: shapes, types and shardings to restore into.

  Returns:
    The parameters and the step they are from.

  Raises:
    UserError: there is no such checkpoint, or its shapes differ.
  """
  directory = os.path.join(os.path.abspath(workdir), DIRECTORY)
  if not os.path.isdir(directory):
    raise errors.UserError(
      f"there are no checkpoints in {workdir}; train there first, or set "
      "--config=experiments/saved.py:WORKDIR to a folder that has some."
    )
  with _manager(directory, read_only=True) as manager:
    step = _find(manager, which, workdir)
    item = "average" if average else "params"
    saved = manager.item_metadata(step).get(item)
    if saved is None:
      raise errors.UserError(
        f"checkpoint {step} has no average of the parameters; set "
        "--config.eval.parameters=raw, or train with train.ema_decay or "
        "train.asgd_start_step."
      )
    _check_shapes(saved.tree, target, step, kind="model")
    try:
      params = _restore_item(manager, step, item, target)
    except Exception as error:  # Orbax has no common type for damage.
      reason = str(error).partition("\n")[0][:100]
      raise errors.UserError(
        f"checkpoint {step} in {workdir} cannot be read ({reason}); name "
        "another one: --config.eval.checkpoint=STEP."
      ) from error
  return params, step


def save_params(workdir: str, params: shapes.PyTree, *, step: int) -> None:
  """Writes a checkpoint of parameters alone, which all modes but train read."""
  directory = os.path.join(os.path.abspath(workdir), DIRECTORY)
  with _manager(directory) as manager:
    manager.save(
      step, args=ocp.args.Composite(params=ocp.args.StandardSave(params))
    )


def _manager(directory: str, **options: Any) -> ocp.CheckpointManager:
  handlers: dict[str, Any] = {
    name: ocp.StandardCheckpointHandler() for name in ITEMS
  }
  handlers["metadata"] = ocp.JsonCheckpointHandler()
  return ocp.CheckpointManager(
    directory,
    options=ocp.CheckpointManagerOptions(
      best_fn=_nll, best_mode="min", **options
    ),
    item_handlers=handlers,
  )


def _nll(metrics: dict[str, float]) -> float:
  return metrics["nll"]


def _items(state, memory) -> dict[str, shapes.PyTree]:
  items = {
    "params": state.params,
    "optimizer": {"step": state.step, "opt_state": state.opt_state},
  }
  if memory is not None and not memory.is_empty:  # Orbax saves no empty ones.
    items["memory"] = memory
  if state.average is not None:
    items["average"] = state.average
  return items


def _restore(manager, step, state, memory) -> Restored:
  saved, items = manager.item_metadata(step), _items(state, memory)
  for name, kind in (("params", "model"), ("optimizer", "optimizer")):
    _check_shapes(saved[name].tree, items[name], step, kind=kind)
  metadata = _restore_metadata(manager, step)
  if metadata["memory_shape"] != memory.sizes:
    items.pop("memory", None)
  if "average" in items and saved.get("average") is None:
    items["average"] = None  # It starts from the parameters, below.
  arguments = {
    name: ocp.args.StandardRestore(item)
    for name, item in items.items()
    if item is not None
  }
  restored = manager.restore(step, args=ocp.args.Composite(**arguments))
  average = None
  if "average" in items:
    average = restored.get("average")
    if average is None:
      average = jax.tree.map(lambda leaf: leaf.copy(), restored["params"])
  restored_memory = restored.get("memory")
  if memory.is_empty:
    restored_memory = jax.tree.map(_zeros, memory)
  return Restored(
    train_state.TrainState(
      restored["optimizer"]["step"],
      restored["params"],
      restored["optimizer"]["opt_state"],
      average,
    ),
    restored_memory,
    metadata,
  )


def _restore_item(manager, step, item, target) -> shapes.PyTree:
  """One item, compared with its fingerprints where there are some."""
  metadata: dict[str, Any] = {}
  if (manager.directory / str(step) / "metadata").exists():
    metadata = _restore_metadata(manager, step)
  restored = manager.restore(
    step, args=ocp.args.Composite(**{item: ocp.args.StandardRestore(target)})
  )
  changed = _changed({item: restored[item]}, metadata)
  if changed:
    raise ValueError(f"{changed[0]} is not what was saved")
  return restored[item]


def _restore_metadata(
  manager: ocp.CheckpointManager, step: int
) -> dict[str, Any]:
  metadata = manager.restore(
    step, args=ocp.args.Composite(metadata=ocp.args.JsonRestore())
  )["metadata"]
  digest = metadata.pop("digest", None)  # Older checkpoints have none.
  if digest not in (None, checksums.of_json(metadata)):
    raise ValueError("the metadata are not what was saved")
  return metadata


def _is_intact(restored: Restored | None, step: int) -> bool:
  """Whether arrays have the fingerprints with which they were saved."""
  assert restored is not None
  items = _items(restored.state, restored.memory)
  changed = _changed(items, restored.metadata)
  if changed:
    logging.warning("Checkpoint %d: %s is not what was saved.", step, changed)
  return not changed


def _changed(items: shapes.PyTree, metadata: dict[str, Any]) -> list[str]:
  """Names of arrays that are not what was saved; older ones are not known."""
  return checksums.differ(metadata.get("fingerprints", {}), checksums.of(items))


def _zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
  return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)


def _check_shapes(
  saved: Any, target: shapes.PyTree, step: int, *, kind: str
) -> None:
  """Compares before Orbax does, whose message fills hundreds of lines."""
  have = _flat_shapes(saved)
  want = _flat_shapes(target)
  for name in sorted({*have, *want}):
    if have.get(name) != want.get(name):
      raise errors.UserError(
        f"checkpoint {step} is of another {kind}: {name} has shape "
        f"{have.get(name, 'none')} there and {want.get(name, 'none')} in this "
        "configuration; use another --workdir, or the configuration it was "
        "trained with (--config=experiments/saved.py:WORKDIR)."
      )


def _in_all_processes(holds: bool) -> bool:
  return bool(np.all(multihost_utils.process_allgather(np.asarray(holds))))


def _flat_shapes(tree: shapes.PyTree) -> dict[str, tuple[int, ...]]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
    for path, leaf in leaves
  }


def _find(manager: ocp.CheckpointManager, which: str, workdir: str) -> int:
  steps = sorted(manager.all_steps())
  step = {"latest": manager.latest_step, "best": manager.best_step}.get(
    which, lambda: int(which) if which.isdigit() else None
  )()
  if step is None or step not in steps:
    raise errors.UserError(
      f"eval.checkpoint={which!r} is not in {workdir}, which has the steps "
      f"{steps}; name one of them, 'latest' or 'best'."
    )
  return step
