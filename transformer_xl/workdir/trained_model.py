"""The parameters of a finished run, and nothing else of its checkpoints."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import mesh_axes
from transformer_xl import shapes
from transformer_xl import storage
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.model import network
from transformer_xl.model.encodings import table
from transformer_xl.processes import others
from transformer_xl.workdir import checkpoint_items
from transformer_xl.workdir import checksums
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record

_MOST_BYTES = 4 << 30  # A quarter of the smallest chip.
_MOST_TRIES = 5


class TrainedModel(NamedTuple):
  """A model with the parameters of one checkpoint, placed on a mesh."""

  config: schema.ExperimentConfig
  mesh: jax.sharding.Mesh
  params: shapes.PyTree
  step: int
  # Where the first parameters of its run are from, as in `config.json`.
  initialised_from: metrics_log.Json | None = None


def load(
  config: schema.ExperimentConfig,
  workdir: str,
  *,
  devices: Sequence[jax.Device] | None = None,
) -> TrainedModel:
  """Loads the parameters that `config.eval` names from a run.

  They are placed on `devices`, by default all.

  Raises:
    UserError: there is no such checkpoint, it is damaged or of another model,
      or the mesh does not fit.
  """
  mesh = make_mesh(config.model, config.mesh, devices=devices)
  params = network.abstract_params(config.model)
  at = mesh_lib.parameters(mesh, params, network.splits(config.model))
  with jax.set_mesh(mesh):
    params, step = restore_params(
      workdir,
      which=config.eval.checkpoint,
      average=config.eval.parameters != "raw",
      target=mesh_lib.placed(params, at),
    )
  source = run_record.initialised_from(workdir)
  return TrainedModel(config, mesh, params, step, source)


def make_mesh(
  model: schema.ModelConfig,
  axes: schema.MeshConfig,
  *,
  devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
  """The mesh of all modes but training, which hold nothing but parameters.

  Chosen axes keep parameters whole, to gather none, unless they are very large.

  Raises:
    UserError: the axes that the configuration gives do not suit the devices.
  """
  params = network.abstract_params(model)
  demand = mesh_axes.Demand(
    width=model.model_dim,
    state_bytes=4 * network.num_parameters(params),
    most_bytes=_MOST_BYTES,
  )
  return mesh_lib.make_mesh(axes, demand=demand, devices=devices)


def load_on_one_device(
  config: schema.ExperimentConfig, workdir: str
) -> TrainedModel:
  """Loads onto the first device, whatever mesh the run was trained on.

  Raises:
    UserError: as in `load`, or the parameters are not numbers.
  """
  mesh = schema.MeshConfig(data=1, fsdp=1, tensor=1)
  config = dataclasses.replace(config, mesh=mesh)
  model = load(config, workdir, devices=jax.devices()[:1])
  require_numbers(model.params, f"checkpoint {model.step} of {workdir}")
  return model


def require_numbers(
  params: shapes.PyTree, source: str, *, field: str = "eval.checkpoint"
) -> None:
  """Refuses parameters that are infinite or NaN, as of a run that diverged.

  Evaluation and the report read them, to say so. All processes must call it
  together.

  Raises:
    UserError: an array has such a number; it is named, and the field that
      chooses another checkpoint.
  """
  leaves = checksums.by_path(params)
  for name, is_finite in jax.device_get(_all_finite(leaves)).items():
    if not is_finite:
      raise errors.UserError(
        f"{name} in {source} has numbers that are infinite or NaN: training "
        f"diverged, or the file is damaged; name another checkpoint, --config."
        f"{field}=STEP, or train again with a lower train.learning_rate."
      )


@jax.jit
def _all_finite(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
  return {name: jnp.all(jnp.isfinite(leaf)) for name, leaf in leaves.items()}


def restore_params(
  workdir: str,
  *,
  which: str,
  average: bool,
  target: shapes.PyTree,
  fields: str = "eval.",
  only_check: bool = False,
) -> tuple[shapes.PyTree, int]:
  """Reads the parameters of one checkpoint, or their average; with its step.

  Args:
    workdir: of the run.
    which: "latest", "best" (by validation loss) or a step.
    average: read the average.
    target: the shapes, types and shardings to restore into.
    fields: errors name this, followed by `parameters` or `checkpoint`.
    only_check: read no parameters, so that damage to them is not found; they
      come back as None.

  Raises:
    UserError: there is no such checkpoint, it is damaged, or its shapes differ;
      or its bucket refuses, which is no sign that there are none.
  """
  if not storage.names(checkpoint_items.directory(workdir)):
    raise _no_checkpoints(workdir)
  item = "average" if average else "params"
  failed: int | None = None
  problem = errors.UserError("")
  # A run that is being trained deletes checkpoints. Then the latest or the best
  # is another one when the folder is opened again.
  for _ in range(_MOST_TRIES):
    try:
      with (
        others.on_failure(),
        checkpoint_items.open_manager(
          workdir,
          read_only=True,
          lightweight_initialize=which != "best",  # Reads no validation losses.
        ) as manager,
      ):
        step = _find(manager, which, workdir, f"{fields}checkpoint")
        if step == failed:
          break
        failed = step
        folder = manager.directory / str(step) / item
        if average and not folder.exists():
          problem = errors.UserError(
            f"checkpoint {step} has no average of the parameters; set "
            f"--config.{fields}parameters=raw, or train with train.ema_decay "
            "or train.asgd_start_step."
          )
          continue
        saved = ocp.StandardCheckpointHandler().metadata(folder)
        checkpoint_items.check_shapes(saved.tree, target, step, kind="model")
        if only_check:
          return None, step
        params = _restore_item(manager, step, item, target)
        if which == "best":
          _warn_unless_newest(manager, step, f"{fields}checkpoint")
        return params, step
    except (errors.UserError, errors.LostProcessError):
      raise
    except Exception as error:  # Orbax has no common type for damage.
      reason = str(error).partition("\n")[0][:100]
      damaged = "a checkpoint" if failed is None else f"checkpoint {failed}"
      problem = errors.UserError(
        f"{damaged} in {workdir} cannot be read ({reason}); name another one: "
        f"--config.{fields}checkpoint=STEP."
      )
  raise problem


def warn_of_untrained_segments(
  model: schema.ModelConfig,
  train: schema.TrainConfig,
  *,
  segment_len: int,
  mem_len: int,
) -> None:
  """Warns of reading a model in segments that training did not have.

  Encodings of distances serve longer segments and memories than training's.
  Those that count from the start of a segment do not. Mixers that write once a
  segment read best in segments of one length.
  """
  trained_len = segment_lengths.longest_read(train)
  for name in model.mixers:
    is_writer = registry.mixers[name].writes_segments
    if is_writer and mem_len and segment_len != trained_len:
      logging.warning(
        "The model is read in segments of %d tokens, but %s layers write once "
        "a segment, and training had segments of %d; set that segment_len.",
        segment_len,
        name,
        trained_len,
      )
    if is_writer and 0 < mem_len < segment_len:
      logging.warning(
        "%s layers write what their memory holds of a segment: %d of its %d "
        "tokens; set a mem_len of %d or more.",
        name,
        mem_len,
        segment_len,
        segment_len,
      )
  if not table.of(model).counts_from_segment:
    return
  if segment_len > trained_len:
    logging.warning(
      "The model is read in segments of %d tokens, but model.encoding=%s has "
      "no trained positions beyond the %d of training; set a segment_len of %d "
      "or less.",
      segment_len,
      model.encoding,
      trained_len,
      trained_len,
    )
  if mem_len and not train.mem_len:
    logging.warning(
      "The model is read with a memory of %d tokens, but it was trained "
      "without one, and model.encoding=%s gives them positions of the segment; "
      "set mem_len=0.",
      mem_len,
      model.encoding,
    )


def save_params(workdir: str, params: shapes.PyTree, *, step: int) -> None:
  """Writes a checkpoint of parameters alone, which all modes but train read."""
  item = ocp.args.StandardSave(params)
  with checkpoint_items.open_manager(workdir) as manager:
    manager.save(step, args=ocp.args.Composite(params=item))


def _no_checkpoints(workdir: str) -> errors.UserError:
  return errors.UserError(
    f"there are no checkpoints in {workdir}; train there first, or name a "
    "folder that has some."
  )


def _find(
  manager: ocp.CheckpointManager, which: str, workdir: str, field: str
) -> int:
  steps = sorted(manager.all_steps())
  if not steps:
    raise _no_checkpoints(workdir)
  step = None
  if which == "latest":
    step = manager.latest_step()
  elif which == "best":
    step = manager.best_step()
  elif which.isdecimal():
    step = int(which)
  if which == "best" and step is None:
    gone = [s for s in steps if not (manager.directory / str(s)).exists()]
    if gone:
      # Their losses may have gone before they were read.
      raise FileNotFoundError(f"{gone} were deleted meanwhile")
    raise errors.UserError(
      f"no checkpoint in {workdir} has a validation loss, so none is the best; "
      f"set --config.{field}=latest, or train with train.eval_every_steps."
    )
  if step is None or step not in steps:
    raise errors.UserError(
      f"{field}={which!r} is not in {workdir}, which has the steps {steps}; "
      "name one of them, 'latest' or 'best'."
    )
  return step


def _warn_unless_newest(
  manager: ocp.CheckpointManager, step: int, field: str
) -> None:
  """Says why the best checkpoint is read where it is not the newest.

  A warning, since in Python nothing less is shown.
  """
  newest = manager.latest_step()
  if newest is None or newest == step:
    return
  best_nll = checkpoint_items.validation_loss(manager.metrics(step))
  newest_metrics = manager.metrics(newest)
  if newest_metrics is None:
    reason = "which has not been validated"
  else:
    newest_nll = checkpoint_items.validation_loss(newest_metrics)
    reason = f"whose loss is {newest_nll:.4f}"
  logging.warning(
    "Reading checkpoint %d, which has the lowest validation loss (%.4f nats "
    "per token), not the newest, %d, %s; %s=latest reads that one.",
    step,
    best_nll,
    newest,
    reason,
    field,
  )


def _restore_item(
  manager: ocp.CheckpointManager, step: int, item: str, target: shapes.PyTree
) -> shapes.PyTree:
  """One item, compared with its checksums if it has any."""
  metadata: metrics_log.Json = {}
  if (manager.directory / str(step) / "metadata").exists():
    metadata = checkpoint_items.read_metadata(manager, step)
  args = ocp.args.Composite(**{item: ocp.args.StandardRestore(target)})
  restored = manager.restore(step, args=args)[item]
  saved = metadata.get("fingerprints", {})
  damaged = checksums.differ({item: restored}, saved)
  if damaged:
    raise ValueError(f"{damaged[0]} is not what was saved")
  return restored
