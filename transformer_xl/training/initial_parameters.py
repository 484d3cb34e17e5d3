"""Parameters that a new run takes over from another one (`train.init_from`)."""

import dataclasses
import functools
import math
import operator
import os

import jax
import jax.numpy as jnp
from absl import logging
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl import storage
from transformer_xl.config import load as load_lib
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import auxiliary_predictions
from transformer_xl.model import lora
from transformer_xl.model import network
from transformer_xl.model import transfer
from transformer_xl.training import programs
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import params_reader
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model

# The new symbols together are at most this likely, relative to the old symbols
# of their cluster.
ODDS = 1e-3


def check(recipe: schema.Recipe, data_dir: str) -> None:
  """Raises the UserErrors of `load`, unless the parameters are damaged."""
  train = recipe.train
  source = train.init_from
  run_record.check_vocabulary(data_dir, source, may_be_extended=True)
  params_reader.restore(
    source,
    which=_which(train),
    target=network.abstract_params(_checked_model(recipe)),
    only_check=True,
  )


def _which(train: schema.TrainConfig) -> params_reader.Which:
  """The parameters that a run starts from."""
  return params_reader.Which(
    train.init_checkpoint,
    is_average=train.init_parameters != "raw",
    fields="train.init_",
  )


def load(
  recipe: schema.Recipe, data_dir: str, mesh: jax.sharding.Mesh
) -> tuple[shapes.PyTree, dict[str, object]]:
  """Reads the parameters that `train.init_from` names.

  They are restored into the shardings of the mesh. If the data have more
  symbols than the source, these are added (`add_symbols`). If the layers are
  others, and `train.init_rest` allows it, each takes what it can (`fitted`).
  With adapters (`train.lora`), nothing is drawn here.

  Returns:
    The parameters, and the record of where they are from.

  Raises:
    UserError: the source has another model or vocabulary, or no such
      checkpoint, or it is damaged, or its parameters are not numbers.
  """
  train = recipe.train
  source = train.init_from
  run_record.check_vocabulary(data_dir, source, may_be_extended=True)
  model = _checked_model(recipe)
  params, saved = params_reader.restore_whole(
    source,
    which=_which(train),
    target=_target(model, mesh),
  )
  trained_model.require_numbers(
    params,
    f"checkpoint {saved.step} of {source}",
    field="train.init_checkpoint",
  )
  count = recipe.model.vocab_size - model.vocab_size
  record = {
    "workdir": storage.absolute(source),
    "checkpoint_step": saved.step,
    "parameters": train.init_parameters,
    "params_sha256": params_reader.sha256(saved),
    "num_layers": model.num_layers,
    "new_symbols": count,
    "drawn": [],
  }
  if count:
    grown = network.abstract_params(recipe.model)
    add = functools.partial(add_symbols, config=model, count=count)
    at = mesh_lib.shardings(mesh, grown, network.splits(recipe.model))
    params = jax.jit(add, out_shardings=at)(params)
  model = dataclasses.replace(model, vocab_size=recipe.model.vocab_size)
  if not _same_shapes(model, recipe.model):
    rest = transfer.missing(model, recipe.model)
    record["drawn"] = rest
    if rest:
      logging.info(
        "Drawn, in whole or in part, as train.init_from has nothing that fits: "
        "%s.",
        ", ".join(rest),
      )
  if lora.settings(train):
    target = _target(recipe.model, mesh)
    return params_reader.base_of(params, model, recipe.model, target), record
  if not _same_shapes(model, recipe.model):
    wanted = network.abstract_params(recipe.model)
    at = mesh_lib.shardings(mesh, wanted, network.splits(recipe.model))
    fit = functools.partial(fitted, old=model, recipe=recipe)
    params = jax.jit(fit, out_shardings=at)(params)
  return params, record


def load_base(
  recipe: schema.Recipe, mesh: jax.sharding.Mesh, record: metrics_log.Json
) -> shapes.PyTree:
  """Reads the base of adapters again, for a run that continues.

  `record` is what `load` returned when the run began.

  Raises:
    UserError: the base is gone, or is another.
  """
  return params_reader.restore_base(
    record,
    recipe.model,
    _target(recipe.model, mesh),
    folder=recipe.train.init_from,
  )


def _target(
  model: schema.ModelConfig, mesh: jax.sharding.Mesh
) -> shapes.PyTree:
  """The shapes of a model's parameters, with their shardings."""
  shape = network.abstract_params(model)
  at = mesh_lib.shardings(mesh, shape, network.splits(model))
  return mesh_lib.with_shardings(shape, at)


def fitted(
  params: shapes.PyTree, *, old: schema.ModelConfig, recipe: schema.Recipe
) -> shapes.PyTree:
  """Parameters for the layers of a recipe from those of another model.

  A layer takes the arrays of the layer with its number that have the same name
  and shape; those of a mixer may come from another mixer. All others are drawn
  as in a new run.
  """
  result = programs.drawn_params(recipe)
  flat = traverse_util.flatten_dict(result, sep="/")
  given = traverse_util.flatten_dict(params, sep="/")
  for name, layers in transfer.sources(old, recipe.model).items():
    for layer, (source, old_layer) in enumerate(layers):
      if source is None:
        continue
      if old_layer is None:
        flat[name] = given[source]
      else:
        flat[name] = flat[name].at[layer].set(given[source][old_layer])
  return traverse_util.unflatten_dict(flat, sep="/")


def _checked_model(recipe: schema.Recipe) -> schema.ModelConfig:
  """The configuration of the source's model, if this run can start from it.

  Raises:
    UserError: its parameters do not fit, or mean something else.
  """
  train = recipe.train
  source = train.init_from
  folder = storage.local(source)
  if not os.path.exists(os.path.join(folder, "config.json")):
    raise errors.UserError(
      f"train.init_from={source} has no config.json; name the workdir of a run "
      "or of an import."
    )
  whole = load_lib.from_config_dict(load_lib.saved(source))
  saved = whole.model
  model = recipe.model
  wanted = train.init_parameters
  kept = whole.train.average_kind
  if wanted != "raw" and kept and wanted != kept:
    raise errors.UserError(
      f"train.init_parameters={wanted}, but train.init_from={source} kept "
      f"{kept}; set --config.train.init_parameters={kept} or raw."
    )
  known = os.path.join(folder, run_record.VOCABULARY, "meta.json")
  may_grow = os.path.exists(known)  # The vocabulary, by new symbols.
  # Fields of mixers and encodings that neither model has say nothing.
  used = {*saved.mixers, *model.mixers}
  used |= {saved.encoding, model.encoding}
  own = {*registry.mixers.groups(), *registry.encodings.groups()}
  unused = tuple(f"model.{name}." for name in own - used)
  different = [
    name
    for name, field in schema.all_fields().items()
    if name.startswith("model.")
    and field.transfer != "any"
    and not (name == "model.vocab_size" and may_grow)
    and not name.startswith(unused)
    and _field(saved, name) != _field(model, name)
  ]
  has_same_shapes = all(
    schema.all_fields()[name].transfer == "same_shapes" for name in different
  ) and _same_shapes(saved, model)
  if train.init_rest == "draw":
    of_layers = tuple(f"model.{name}." for name in registry.mixers.groups())
    free = ("model.layers", "model.num_layers", "model.num_memory_tokens")
    different = [
      name
      for name in different
      if name not in free and not name.startswith(of_layers)
    ]
  if different and not has_same_shapes:
    name = different[0]
    value = _field(saved, name)
    raise errors.UserError(
      f"{name} is {value} in train.init_from={source} and "
      f"{_field(model, name)} in this run: set --config.{name}={value}, or "
      f"start from its configuration, --config=experiments/saved.py:{source}."
    )
  count = model.vocab_size - saved.vocab_size
  if count > 0 and not saved.softmax_bias:
    raise errors.UserError(
      f"the data have {count} symbols more than train.init_from={source}, and "
      "their probabilities are set by a bias that model.softmax_bias=False "
      "leaves out: prepare the data with the vocabulary of the source."
    )
  if count > 0 and auxiliary_predictions.is_used(saved):
    raise errors.UserError(
      f"the data have {count} symbols more than train.init_from={source}, and "
      "its model.auxiliary has softmaxes that cannot grow: prepare the data "
      "with the vocabulary of the source."
    )
  if count and train.lora.rank:
    raise errors.UserError(
      f"the data have {count} symbols more than train.init_from={source}, and "
      "adapters leave the vectors of symbols as they are: prepare the data "
      "with the vocabulary of the source, or set --config.train.lora.rank=0."
    )
  return saved


def _field(model: schema.ModelConfig, name: str) -> object:
  """The value of a field by its whole name, `model.…`."""
  return operator.attrgetter(name.removeprefix("model."))(model)


def _same_shapes(one: schema.ModelConfig, other: schema.ModelConfig) -> bool:
  """Whether the layers of two models have parameters of the same shapes."""
  shapes_of_layers = [
    jax.tree.map(lambda leaf: leaf.shape, network.abstract_params(each))
    for each in (one, dataclasses.replace(other, vocab_size=one.vocab_size))
  ]
  return shapes_of_layers[0] == shapes_of_layers[1]


def add_symbols(
  params: shapes.PyTree, config: schema.ModelConfig, count: int
) -> shapes.PyTree:
  """Adds `count` symbols to the parameters of the model `config`.

  They have the ids after the old ones, so they join the last cluster, or the
  whole vocabulary if there are no clusters. docs/specification.md, section 12,
  says what happens to the probabilities of old symbols.

  Old rows and biases keep their values. A new symbol's vectors are the means of
  those in its cluster. Its bias is the cluster's mean bias plus
  log(ODDS V_c / count) for V_c old symbols in the cluster; then, by Jensen's
  inequality, `ODDS` holds after every text.
  """
  first = (0, *config.cutoffs)[-1]  # Lowest id of the last cluster.
  last = len(config.cutoffs)
  num_old = config.vocab_size - first
  softmax = dict(params["softmax"])
  embedding = dict(params["embedding"])
  shift = math.log(ODDS * num_old / count)
  softmax["bias"] = _with_means(softmax["bias"], first, count, shift=shift)
  if not config.tie_weights:
    name = f"kernel_{last}"
    softmax[name] = _with_means(softmax[name], 0, count)
  if config.div_val == 1:  # All clusters share one table.
    name = "table_0"
    row = first
  else:
    name = f"table_{last}"
    row = 0
  embedding[name] = _with_means(embedding[name], row, count)
  return {**params, "softmax": softmax, "embedding": embedding}


def _with_means(
  rows: jax.Array, first: int, count: int, *, shift: float = 0.0
) -> jax.Array:
  """Appends `count` times the mean of the rows from `first` on, shifted.

  The rows are concatenated, because with jaxlib 0.10.2 on CPUs an update of a
  slice of a sharded array also changes the last row of each shard.
  """
  mean = jnp.mean(rows[first:], axis=0, keepdims=True) + shift
  return jnp.concatenate([rows, jnp.repeat(mean, count, axis=0)])
