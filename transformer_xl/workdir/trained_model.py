"""A finished run as it is used: its model with the parameters on a mesh."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from absl import logging

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import mesh_axes
from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.model import network
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.workdir import checksums
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import params_reader
from transformer_xl.workdir import run_record

_MOST_BYTES = 4 << 30  # A quarter of the smallest chip.


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
  at = mesh_lib.shardings(mesh, params, network.splits(config.model))
  with jax.set_mesh(mesh):
    params, step = params_reader.restore(
      workdir,
      which=params_reader.chosen(config.eval),
      target=mesh_lib.with_shardings(params, at),
      base=config.train.init_from,
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

  Chosen axes keep parameters whole, to gather none, unless they are very large,
  or the given ones leave them devices.

  Raises:
    UserError: the axes that the configuration gives do not suit the devices.
  """
  params = network.abstract_params(model)
  demand = mesh_axes.Demand(
    lanes=len(devices or jax.devices()),  # Enough: no two share one.
    width=model.model_dim,
    heads=model.most_tensor_parts,
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


def warn_of_untrained_segments(
  model: schema.ModelConfig,
  train: schema.TrainConfig,
  *,
  segment_len: int,
  mem_len: int,
) -> None:
  """Warns of reading a model in segments that training did not have.

  Encodings of distances serve longer segments and memories than training's.
  Those that count from the start of a segment do not. What is written once a
  segment reads best in segments of one length.
  """
  trained_len = segment_lengths.longest_read(train)
  writers = [
    name for name in model.mixers if registry.mixers[name].writes_segments
  ]
  writing = [f"{name} layers write" for name in writers if mem_len]
  if model.num_memory_tokens:
    writing.append("memory tokens are written")
  if segment_len != trained_len:
    for what in writing:
      logging.warning(
        "The model is read in segments of %d tokens, but %s once a segment, "
        "and training had segments of %d; set that segment_len.",
        segment_len,
        what,
        trained_len,
      )
  for name in writers:
    if 0 < mem_len < segment_len:
      logging.warning(
        "%s layers write what their memory holds of a segment: %d of its %d "
        "tokens; set a mem_len of %d or more.",
        name,
        mem_len,
        segment_len,
        segment_len,
      )
  if not encodings.of(model).counts_from_segment:
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
