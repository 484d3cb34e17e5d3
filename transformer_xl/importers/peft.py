"""A run's adapters as PEFT writes them; `--mode=export --format=peft`.

A folder with adapter_config.json and adapter_model.safetensors, which PEFT
loads beside the model that the run started from (docs/specification.md, section
21.5).
"""

import json
import os
import pathlib

import jax
import numpy as np
import safetensors.numpy
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import storage
from transformer_xl.config import schema
from transformer_xl.formats import hub_files
from transformer_xl.importers import decoders
from transformer_xl.importers import import_run
from transformer_xl.importers import mapping
from transformer_xl.model import lora
from transformer_xl.model import network
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import params_reader
from transformer_xl.workdir import run_vocabulary
from transformer_xl.workdir import trained_model

# What PEFT puts in front of the names of a model's modules.
_PREFIX = "base_model.model."
_BASE = "base_model_name_or_path"


def export(workdir: str, target: str, config: schema.ExperimentConfig) -> None:
  """Writes the adapters that `config.eval` names into a new folder.

  Raises:
    UserError: the run has no adapters, or more than these, or they are beside a
      model of which transformers has not the layers, or which has more layers
      than the run.
  """
  config, _ = run_vocabulary.load_for(config, workdir)
  model = config.model
  lengths = mapping.lengths_of(config.score, config.eval)
  if decoders.config_fields(model, lengths) is None:
    raise errors.UserError(
      f"the model of {workdir} is none of {', '.join(decoders.KINDS)}, so that "
      "PEFT cannot load its adapters: export it whole, --format=transformers."
    )
  mesh = mesh_lib.of_one_device(jax.devices()[0])
  shape = network.abstract_params(model)
  at = mesh_lib.shardings(mesh, shape, network.splits(model))
  saved = params_reader.restore_saved(
    workdir,
    which=params_reader.chosen(config.eval),
    target=mesh_lib.with_shardings(shape, at),
  )
  if saved.adapters is None:
    raise errors.UserError(
      f"{workdir} has no adapters, since it was trained with train.lora.rank=0:"
      " export the model, --format=transformers."
    )
  assert saved.source is not None  # Adapters have a base.
  num_layers = saved.source["num_layers"]
  if num_layers != model.num_layers:
    raise errors.UserError(
      f"{workdir} has {model.num_layers} of the {num_layers} layers of "
      f"{saved.source['workdir']}, and PEFT would add the adapters to all of "
      "them: export the model whole, --format=transformers."
    )
  trained_model.require_numbers(
    saved.params, f"checkpoint {saved.step} of {workdir}"
  )
  adapters = traverse_util.flatten_dict(saved.params, sep="/")
  whole = [path for path in adapters if not path.endswith((lora.A, lora.B))]
  if whole:
    raise errors.UserError(
      f"{workdir} has arrays that were trained whole, such as {whole[0]}, and "
      "these are no adapters: export the model, --format=transformers."
    )
  tensors, modules = _tensors(adapters)
  with import_run.new_folder(target) as folder:
    local = storage.local(folder)
    base = config.train.init_from or saved.source["workdir"]
    fields = _fields(saved.adapters, modules) | _base(base)
    text = json.dumps(fields, indent=2)
    pathlib.Path(local, "adapter_config.json").write_text(text, "utf-8")
    path = os.path.join(local, "adapter_model.safetensors")
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def _tensors(
  adapters: lora.Flat,
) -> tuple[dict[str, np.ndarray], list[str]]:
  """The tensors by PEFT's names, and the names of the adapted modules.

  PyTorch's matrices are [outputs, inputs].
  """
  tensors: dict[str, np.ndarray] = {}
  modules: set[str] = set()
  for path, stacked in adapters.items():
    matrix = lora.matrix_of(path).removeprefix(f"{mapping.LAYERS}/")
    theirs = decoders.module(matrix)
    modules.add(theirs.rpartition(".")[2])
    end = "lora_A" if path.endswith(lora.A) else "lora_B"
    for layer, own in enumerate(np.asarray(stacked)):
      name = f"{_PREFIX}model.layers.{layer}.{theirs}.{end}.weight"
      tensors[name] = np.ascontiguousarray(own.T)
  return tensors, sorted(modules)


def _base(workdir: str) -> metrics_log.Json:
  """What the base in a folder was imported from, as PEFT names it.

  That is a model of the Hub with its commit, or a folder on disk. Nothing else
  can transformers read, neither a workdir of ours nor a bucket.
  """
  path = os.path.join(workdir, "results/import.json")
  try:
    address = json.loads(storage.read_text(path))["source"]
  except (FileNotFoundError, ValueError, LookupError):
    return {}
  if address.startswith(hub_files.PREFIX):
    name, _, commit = address.removeprefix(hub_files.PREFIX).partition("@")
    return {_BASE: name, "revision": commit}
  return {} if storage.is_bucket(address) else {_BASE: address}


def _fields(adapters: lora.Settings, modules: list[str]) -> metrics_log.Json:
  """The content of adapter_config.json beside what the base is."""
  return {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": adapters.rank,
    "lora_alpha": adapters.alpha,
    "lora_dropout": 0.0,
    "target_modules": modules,
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
  }
