"""The checkpoints of one training run, through Orbax.

A checkpoint holds a `RunState`; everything else that a run needs is a function
of the step. A checkpoint that cannot be read is moved aside, never deleted, and
the run continues from the one before it.
"""

import copy
import json
import os
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import schema
from transformer_xl.model import network
from transformer_xl.processes import others
from transformer_xl.workdir import checkpoint_items
from transformer_xl.workdir import checksums
from transformer_xl.workdir import goodput
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_state

# A checkpoint that cannot be read is tried once more after this.
RETRY_AFTER_SECONDS = 5.0


class _BestOfEachText(preservation_policy.PreservationPolicy):
  """Keeps the checkpoint with the lowest validation loss on each text."""

  def should_preserve(
    self,
    checkpoints: Sequence[preservation_policy.PolicyCheckpointInfo],
    *,
    context: preservation_policy.PreservationContext,
  ) -> Sequence[bool]:
    """Whether to keep each of these checkpoints."""
    del context
    ranked = {
      each.step: each.metrics
      for each in checkpoints
      if each.metrics is not None
    }
    best = {*checkpoint_items.best_of_each_text(ranked).values()}
    return [each.step in best for each in checkpoints]


class Checkpoints:
  """Saves in the background and restores the newest readable checkpoint."""

  def __init__(
    self,
    workdir: str,
    config: schema.CheckpointConfig,
    *,
    keep_regular: int = 0,
  ):
    """Opens the folder of checkpoints.

    Besides those that `config` names, `keep_regular` of the checkpoints at
    multiples of `config.every_steps` are kept.
    """
    self._workdir = workdir
    self._directory = checkpoint_items.directory(workdir)
    kept: list[preservation_policy.PreservationPolicy] = [
      preservation_policy.LatestN(config.keep_latest),
      _BestOfEachText(),
    ]
    if keep_regular:
      every = config.every_steps
      kept.append(
        preservation_policy.EveryNSteps(every, max_to_keep=keep_regular)
      )
    self._manager = checkpoint_items.open_manager(
      workdir,
      preservation_policy=preservation_policy.AnyPreservationPolicy(kept),
      cleanup_tmp_directories=True,
    )

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    # A process that is gone would be waited for, with its part of a save.
    if kind is not errors.LostProcessError:
      self.close()

  def save(self, run: run_state.RunState) -> None:
    """Starts to save; an error of the previous save is raised here."""
    step = int(run.state.step)
    if step in self._manager.all_steps():
      return
    items = checkpoint_items.of(run.state, run.memory)
    assert run.memory is not None
    # Copied, since the caller may change it while it is being written.
    metadata = copy.deepcopy(run_state.to_json(run))
    metadata["memory_shapes"] = checkpoint_items.memory_shapes(run.memory)
    metadata["fingerprints"] = checksums.of(items)
    metadata["digest"] = checksums.of_json(metadata)
    is_validated = run.validation_loss is not None
    arguments = {
      name: ocp.args.StandardSave(item) for name, item in items.items()
    }
    self._publish_logs()
    with checkpoint_items.of_bucket("write to", self._directory):
      self._manager.save(
        step,
        args=ocp.args.Composite(
          metadata=ocp.args.JsonSave(metadata), **arguments
        ),
        metrics=_ranked_by(run) if is_validated else None,
        force=True,
      )

  def add_evaluation(self, run: run_state.RunState) -> None:
    """Adds the validation loss of a state to its checkpoint, if it is saved.

    The checkpoint then is what it would have been, had the evaluation come
    before the save: its rank, and all that an evaluation changes in a run. The
    metadata are replaced last. If the process is killed before that, the
    checkpoint still owes its evaluation.
    """
    self.wait()
    step = int(run.state.step)
    if step not in self._manager.all_steps():  # Before the first update.
      return
    self._publish_logs()
    if jax.process_index() == 0:
      folder = os.path.join(self._directory, str(step))
      path = os.path.join(folder, "metadata", "metadata")
      metadata = json.loads(storage.read_text(path))
      metadata["owes_evaluation"] = run.metadata.owes_evaluation
      del metadata["digest"]
      metadata["digest"] = checksums.of_json(metadata)
      metrics = os.path.join(folder, "metrics", "metrics")
      storage.write_text(metrics, json.dumps(_ranked_by(run)))
      storage.write_text(path, json.dumps(metadata))
    multihost_utils.sync_global_devices(f"checkpoint {step} is evaluated")
    self._reload()

  def _publish_logs(self) -> None:
    """Makes the logs last before the checkpoint does, and uploads them.

    A run that resumes drops lines after its checkpoint, but could not make up
    for missing ones, such as after a power cut.
    """
    for name in (metrics_log.FILE, goodput.FILE):
      storage.settle(self._workdir, name)
    try:
      storage.publish(self._workdir)
    except errors.UserError as error:
      logging.warning("The logs follow with the next checkpoint: %s", error)

  def restore_newest(
    self,
    state: run_state.TrainState,
    memory: network.State,
    *,
    check: Callable[[run_state.Metadata], None] = lambda metadata: None,
  ) -> run_state.RunState | None:
    """Restores the newest readable checkpoint; None if there are none at all.

    Args:
      state: shapes, types and shardings to restore into.
      memory: the same. If its shape differs, it is restored as None.
      check: raises a UserError where this run cannot go on from a checkpoint
        of such metadata; asked before the arrays are looked at.

    Raises:
      UserError: it is of another model or optimizer, or none can be read.
    """
    unreadable: list[int] = []
    for step in reversed(self.steps()):
      run = self._try_to_restore(step, state, memory, check)
      if run is not None:
        for newer in unreadable:
          self._put_aside(newer)
        return run
      unreadable.append(step)
    if unreadable:  # A lack of memory or permission is likelier than damage.
      raise errors.UserError(
        f"none of the checkpoints {unreadable} in {self._directory} can be "
        "read (the log says why); fix that, or start over in another --workdir."
      )
    return None

  def _try_to_restore(
    self,
    step: int,
    state: run_state.TrainState,
    memory: network.State,
    check: Callable[[run_state.Metadata], None],
  ) -> run_state.RunState | None:
    """Reads a checkpoint; None in all processes if one of them cannot.

    Raises:
      UserError: it is of another model or optimizer.
    """
    for is_last in (False, True):
      restored = None
      try:
        with others.on_failure():
          restored = _restore(self._manager, step, state, memory, check)
      except (errors.UserError, errors.LostProcessError):
        raise
      except Exception as error:  # Orbax has no common type for damage.
        logging.warning("Checkpoint %d cannot be read: %s", step, error)
      if _in_all_processes(restored is not None):
        assert restored is not None
        run, fingerprints = restored
        items = checkpoint_items.of(run.state, run.memory)
        damaged = checksums.differ(items, fingerprints)
        if not damaged:
          return run
        logging.warning(
          "Checkpoint %d: %s is not what was saved.", step, damaged
        )
        return None
      if not is_last:  # The storage may not have answered.
        logging.warning("Trying again in %g s.", RETRY_AFTER_SECONDS)
        time.sleep(RETRY_AFTER_SECONDS)
    return None

  def _put_aside(self, step: int) -> None:
    """Moves a checkpoint away, so that its step can be saved again."""
    if jax.process_index() == 0:
      folder = os.path.join(os.path.dirname(self._directory), "damaged")
      aside = os.path.join(folder, f"{step}.{int(time.time())}")
      storage.move(os.path.join(self._directory, str(step)), aside)
      logging.warning("Moved it to %s.", aside)
    multihost_utils.sync_global_devices(f"checkpoint {step} is out of the way")
    self._reload()

  def drop_after(self, step: int) -> None:
    """Deletes all checkpoints that are newer than a step."""
    self.wait()
    with checkpoint_items.of_bucket("delete checkpoints of", self._workdir):
      for newer in self.steps():
        if newer > step:
          self._manager.delete(newer)

  def steps(self) -> list[int]:
    """The saved steps, oldest first."""
    return sorted(self._manager.all_steps())

  def best_step(self) -> int | None:
    """The step with the lowest validation loss; None if none has one."""
    return self._manager.best_step()

  def is_validated(self, step: int) -> bool:
    """Whether the checkpoint of `step` has a validation loss."""
    return self._manager.metrics(step) is not None

  def wait(self) -> None:
    """Waits for the last save; its error is raised here."""
    with checkpoint_items.of_bucket("write to", self._directory):
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits for the last save; nothing can be saved afterwards."""
    with checkpoint_items.of_bucket("write to", self._directory):
      self._manager.close()

  def _reload(self) -> None:
    with checkpoint_items.of_bucket("read", self._directory):
      self._manager.reload()


def _restore(
  manager: ocp.CheckpointManager,
  step: int,
  state: run_state.TrainState,
  memory: network.State,
  check: Callable[[run_state.Metadata], None],
) -> tuple[run_state.RunState, dict[str, str]]:
  """The run of a checkpoint, and the fingerprints with which it was saved."""
  checkpoint_items.check_trains(manager.directory, step)
  stored = checkpoint_items.read_metadata(manager, step)
  check(run_state.from_json(stored))
  saved = manager.item_metadata(step)
  items = checkpoint_items.of(state, memory)
  for name, kind in (("params", "model"), ("optimizer", "optimizer")):
    checkpoint_items.check_shapes(
      saved[name].tree, items[name], step, kind=kind
    )
  same_memory = stored["memory_shapes"] == checkpoint_items.memory_shapes(
    memory
  )
  if not same_memory:
    items.pop("memory", None)
  if "average" in items and saved.get("average") is None:
    del items["average"]  # It starts from the parameters, below.
  arguments = {
    name: ocp.args.StandardRestore(item) for name, item in items.items()
  }
  restored = manager.restore(step, args=ocp.args.Composite(**arguments))
  average = restored.get("average")
  if average is None and state.average is not None:
    average = jax.tree.map(lambda leaf: leaf.copy(), restored["params"])
  restored_memory = None
  if same_memory:
    arrays = restored.get("memory") or {}
    restored_memory = checkpoint_items.with_arrays(memory, arrays)
  restored_state = run_state.TrainState(
    **restored["optimizer"], params=restored["params"], average=average
  )
  run = run_state.RunState(
    restored_state, restored_memory, run_state.from_json(stored)
  )
  return run, stored["fingerprints"]


def _in_all_processes(holds: bool) -> bool:
  return bool(np.all(multihost_utils.process_allgather(np.asarray(holds))))


def _ranked_by(run: run_state.RunState) -> metrics_log.Json:
  """The validation loss of a run, and which text and tokens it is of."""
  return {"nll": run.validation_loss, "text": run.validation_text}
