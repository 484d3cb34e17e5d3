"""Runs of adapters beside an import, with random numbers in them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl.config import load
from transformer_xl.importers import import_run
from transformer_xl.model import lora
from transformer_xl.training import programs
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import params_reader
from transformer_xl.workdir import run_record
from transformer_xl.workdir import run_state
from transformer_xl.workdir import trained_model

STEP = 4


def write(source, folder, targets, *, rank=3, alpha=7.0) -> str:
  """Imports `source`, and writes a run beside it; returns its workdir."""
  base, workdir = str(folder / "base"), str(folder / "run")
  import_run.make(import_run.Request("huggingface", str(source)), base)
  config = load.replaced(
    load.from_config_dict(load.saved(base)),
    {
      "train.init_from": base,
      "train.lora.rank": rank,
      "train.lora.alpha": alpha,
      "train.lora.targets": targets,
      "train.batch_size": 1,
      "train.mem_len": 2,
    },
  )
  params = trained_model.load_on_one_device(config, base).params
  create = functools.partial(programs.init_state, config.recipe)
  shapes = jax.eval_shape(create, params)
  state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  draw = np.random.default_rng(5).normal
  state = state._replace(
    step=jnp.int32(STEP),
    params=jax.tree.map(
      lambda leaf: jnp.asarray(draw(0, 0.2, leaf.shape), leaf.dtype),
      shapes.params,
    ),
  )
  adapters = lora.settings(config.train)
  saved = params_reader.Saved(params, 0, adapters=None, source=None)
  metadata = run_state.Metadata(
    adapters=adapters._asdict(),
    initialised_from={
      "workdir": base,
      "checkpoint_step": 0,
      "parameters": "raw",
      "params_sha256": params_reader.sha256(saved),
      "num_layers": config.model.num_layers,
    },
  )
  memory = programs.init_memory(config.recipe)
  checkpoints = checkpoint.Checkpoints(workdir, config.checkpoint)
  checkpoints.save(run_state.RunState(state, memory, metadata))
  checkpoints.close()
  run_record.record(config, workdir)
  run_record.keep_vocabulary(f"{base}/{run_record.VOCABULARY}", workdir)
  return workdir
