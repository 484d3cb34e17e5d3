"""Reads the parameters of one checkpoint, and nothing else of it.

Adapters are merged with the parameters that they were trained beside, which
another folder has.
"""

import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl import storage
from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.model import lora
from transformer_xl.model import network
from transformer_xl.model import transfer
from transformer_xl.processes import others
from transformer_xl.workdir import checkpoint_items
from transformer_xl.workdir import checksums
from transformer_xl.workdir import metrics_log

_MOST_TRIES = 5
# What to do where the base of adapters has moved; `train.init_from` names it,
# or the run of the adapters itself.
_NAME_IT = "name the folder that has them, --config.train.init_from=FOLDER"
_MERGE = (
  "export the run of the adapters merged (--mode=export "
  "--config.train.init_from=FOLDER), and start from an import of that"
)


class Which(NamedTuple):
  """Which parameters of a run.

  Attributes:
    checkpoint: "latest", "best" (by validation loss) or a step.
    is_average: the average of the parameters.
    fields: errors name this, followed by `parameters` or `checkpoint`.
  """

  checkpoint: str
  is_average: bool = False
  fields: str = "eval."


def chosen(evaluation: schema.EvalConfig) -> Which:
  """The parameters that are evaluated."""
  return Which(evaluation.checkpoint, is_average=evaluation.parameters != "raw")


def restore(
  workdir: str,
  *,
  which: Which,
  target: shapes.PyTree,
  only_check: bool = False,
  base: str = "",
) -> tuple[shapes.PyTree, int]:
  """Reads the parameters of one checkpoint, or their average; with its step.

  Those of adapters are merged with the parameters that they are beside.

  Args:
    workdir: of the run.
    which: which parameters to read.
    target: the shapes, types and shardings to restore into.
    only_check: read no parameters, so that damage to them is not found; they
      come back as None.
    base: folder with the base of adapters, if it has moved.

  Raises:
    UserError: there is no such checkpoint, it is damaged, or its shapes differ;
      or its bucket refuses, which is no sign that there are none; or the base
      of adapters is gone, or another.
  """
  params, saved = restore_whole(
    workdir, which=which, target=target, only_check=only_check, base=base
  )
  return params, saved.step


def restore_whole(
  workdir: str,
  *,
  which: Which,
  target: shapes.PyTree,
  only_check: bool = False,
  base: str = "",
) -> tuple[shapes.PyTree, "Saved"]:
  """The parameters that `restore` reads, and what the checkpoint has of them.

  Arguments and errors are those of `restore`.
  """
  saved = restore_saved(
    workdir,
    which=which,
    target=target,
    only_check=only_check,
  )
  if saved.adapters is None:
    return saved.params, saved
  assert saved.source is not None  # Adapters have a base.
  below = restore_base(
    saved.source,
    load_lib.from_config_dict(load_lib.saved(workdir)).model,
    target,
    folder=base,
    only_check=only_check,
    remedy=_MERGE if which.fields.startswith("train.") else _NAME_IT,
  )
  if only_check:
    return None, saved
  merged = lora.merged(below, saved.params, saved.adapters.scale)
  params = jax.tree.map(
    lambda leaf, like: jax.device_put(leaf, like.sharding), merged, target
  )
  return params, saved


class Saved(NamedTuple):
  """What one checkpoint has of the parameters.

  Attributes:
    params: of the model; with adapters, those that are trained. None if only
      their shapes were checked.
    step: of the checkpoint.
    adapters: what `params` are beside the adapters' base; None without.
    source: where the first parameters of the run are from.
  """

  params: shapes.PyTree
  step: int
  adapters: lora.Settings | None
  source: metrics_log.Json | None


def restore_saved(
  workdir: str,
  *,
  which: Which,
  target: shapes.PyTree,
  only_check: bool = False,
) -> Saved:
  """Reads what a checkpoint has itself; arguments as of `restore`."""
  if not storage.names(checkpoint_items.directory(workdir)):
    raise _no_checkpoints(workdir)
  item = "average" if which.is_average else "params"
  field = f"{which.fields}checkpoint"
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
          # Without "best", reads no validation losses.
          lightweight_initialize=which.checkpoint != "best",
        ) as manager,
      ):
        step = _find(manager, which.checkpoint, workdir, field)
        if step == failed:
          break
        failed = step
        folder = manager.directory / str(step) / item
        if which.is_average and not folder.exists():
          problem = errors.UserError(
            f"checkpoint {step} has no average of the parameters; set "
            f"--config.{which.fields}parameters=raw, or train with "
            "train.ema_decay or train.asgd_start_step."
          )
          continue
        metadata: metrics_log.Json = {}
        if (manager.directory / str(step) / "metadata").exists():
          metadata = checkpoint_items.read_metadata(manager, step)
        adapters = lora.from_json(metadata.get("adapters"))
        tree = ocp.StandardCheckpointHandler().metadata(folder).tree
        if adapters:
          target = _of_adapters(tree, adapters, beside=target)
        checkpoint_items.check_shapes(tree, target, step, kind="model")
        source = metadata.get("initialised_from")
        if only_check:
          return Saved(None, step, adapters, source)
        params = _restore_item(manager, step, item, target, metadata)
        if which.checkpoint == "best":
          _warn_unless_newest(manager, step, field)
        return Saved(params, step, adapters, source)
    except (errors.UserError, errors.LostProcessError):
      raise
    except Exception as error:  # Orbax has no common type for damage.
      reason = str(error).partition("\n")[0][:100]
      damaged = "a checkpoint" if failed is None else f"checkpoint {failed}"
      problem = errors.UserError(
        f"{damaged} in {workdir} cannot be read ({reason}); name another one: "
        f"--config.{field}=STEP."
      )
  raise problem


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
  manager: ocp.CheckpointManager,
  step: int,
  item: str,
  target: shapes.PyTree,
  metadata: metrics_log.Json,
) -> shapes.PyTree:
  """One item, compared with its checksums if the metadata have any."""
  args = ocp.args.Composite(**{item: ocp.args.StandardRestore(target)})
  restored = manager.restore(step, args=args)[item]
  saved = metadata.get("fingerprints", {})
  damaged = checksums.differ({item: restored}, saved)
  if damaged:
    raise ValueError(f"{damaged[0]} is not what was saved")
  return restored


def _of_adapters(
  saved: shapes.PyTree, adapters: lora.Settings, *, beside: shapes.PyTree
) -> shapes.PyTree:
  """The shapes to restore adapters into, in the structure that was saved.

  Args:
    saved: the shapes in the checkpoint.
    adapters: their settings.
    beside: the shapes of the whole model.
  """
  model = traverse_util.flatten_dict(beside, sep="/")

  def wanted(path: jax.tree_util.KeyPath, leaf: shapes.PyTree) -> shapes.PyTree:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if name in model:  # Trained in whole.
      return model[name]
    matrix = model.get(lora.matrix_of(name))
    if matrix is None:
      return None  # Its shape is missed.
    shape = lora.shape_of(name, matrix.shape, adapters.rank)
    sharding = matrix.sharding
    if sharding is not None:
      sharding = mesh_lib.replicated(sharding.mesh)
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

  return jax.tree.map_with_path(wanted, saved)


def restore_base(
  source: metrics_log.Json,
  model: schema.ModelConfig,
  target: shapes.PyTree,
  *,
  folder: str = "",
  only_check: bool = False,
  remedy: str = _NAME_IT,
) -> shapes.PyTree:
  """Reads the parameters that adapters were trained beside.

  Args:
    source: where they are from, the `initialised_from` of the run.
    model: of the run.
    target: the shapes and shardings of the whole model.
    folder: where they are now, if that is elsewhere.
    only_check: read none, and return None.
    remedy: what errors say that can be done.

  Raises:
    UserError: they are gone, or are others.
  """
  step = source["checkpoint_step"]
  known = [folder, source["workdir"]]
  there = [one for one in known if one and _has_checkpoint(one, step)]
  if not there:
    raise errors.UserError(
      f"the adapters were trained beside the parameters of {source['workdir']} "
      f"at step {step}, and these are gone: put them back, or {remedy}."
    )
  base = load_lib.from_config_dict(load_lib.saved(there[0])).model
  abstract = network.abstract_params(base)
  if not only_check:
    mesh = jax.tree.leaves(target)[0].sharding.mesh
    at = mesh_lib.shardings(mesh, abstract, network.splits(base))
    abstract = mesh_lib.with_shardings(abstract, at)
  params, saved = restore_whole(
    there[0],
    which=Which(
      str(step),
      is_average=source["parameters"] != "raw",
      fields="train.init_",
    ),
    target=abstract,
    only_check=only_check,
  )
  if only_check:
    return None
  found = sha256(saved)
  if found != source["params_sha256"]:
    raise errors.UserError(
      f"the parameters of {there[0]} at step {step} (SHA-256 {found[:12]}) are "
      f"not those that the adapters were trained beside "
      f"({source['params_sha256'][:12]}): put these back, or {remedy}."
    )
  return base_of(params, base, model, target)


def sha256(saved: Saved) -> str:
  """The hash of parameters by which a run knows what it started from.

  Of adapters and of their base, not of both merged: other devices round the
  product of adapters otherwise.
  """
  arrays = checksums.of(saved.params)
  if saved.adapters is None:
    return checksums.of_json(arrays)
  assert saved.source is not None  # Adapters have a base.
  return checksums.of_json(
    {
      "adapters": arrays,
      "settings": saved.adapters._asdict(),
      "base": saved.source["params_sha256"],
    }
  )


def base_of(
  params: shapes.PyTree,
  old: schema.ModelConfig,
  new: schema.ModelConfig,
  target: shapes.PyTree,
) -> shapes.PyTree:
  """The arrays of a model that come whole from the parameters of another.

  Args:
    params: of the other model.
    old: the other model.
    new: the model.
    target: its shapes and shardings.
  """
  at = traverse_util.flatten_dict(target, sep="/")
  leaves = {
    name: jax.device_put(leaf, at[name].sharding)
    for name, leaf in transfer.taken(params, old, new).items()
  }
  return traverse_util.unflatten_dict(leaves, sep="/")


def _has_checkpoint(workdir: str, step: int) -> bool:
  """Whether a folder has a configuration and this checkpoint."""
  config = os.path.join(storage.local(workdir), "config.json")
  folder = checkpoint_items.directory(workdir)
  return os.path.exists(config) and str(step) in storage.names(folder)
