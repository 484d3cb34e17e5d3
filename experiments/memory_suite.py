"""What remembers what: mechanisms on a synthetic task, a table a command.

Paper: no such study. Two layers of 64 read texts of a synthetic task in
segments of 8 and learn from the answers alone. What stores states stores 8 of
them in each layer; `none` and `full` show where a task begins and ends.
Measured: rows and pictures are in docs/measurements/memories.md.
Cost: about one minute of one x86-64 core for 1,000 updates of a trial, of which
there are seven to ten for each mechanism, beside compiling and the times of all
rows at the end; jax 0.10.2, 25 November 2026.
Run: python -m transformer_xl.main --mode=study --workdir=/tmp/mqar \
  --config=experiments/memory_suite.py:mqar
"""

from typing import Any

import ml_collections

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.experiments import base

SEGMENT_LEN = 8


def longest(task: str) -> int:
  """Tokens that `full` remembers: all that an answer depends on."""
  distance = registry.tasks[task].options["max_distance"].default
  return SEGMENT_LEN * (distance // SEGMENT_LEN + 1)


def _memory(mem_len: int) -> dict[str, Any]:
  return {"train.mem_len": mem_len, "eval.mem_len": (mem_len,)}


def _layers(*names: str, mem_len: int = 1) -> dict[str, Any]:
  return {"model.layers": names, **_memory(mem_len)}


def mechanisms(task: str) -> dict[str, dict[str, Any]]:
  """What is compared on a task; the first is compared with the others."""
  return {
    "transformer_xl": {},
    "full": _memory(longest(task)),
    "none": _memory(0),
    "lstm": _layers("lstm"),
    "lstm_attention": _layers("lstm", "attention", mem_len=SEGMENT_LEN),
    "delta": {
      **_layers("delta"),
      "model.delta.key_dim": 16,
      "model.delta.value_dim": 16,
    },
    # As wide as the published ones, twice `model_dim`.
    "mamba2": {
      **_layers("mamba2"),
      "model.mamba2.state_dim": 8,
      "model.mamba2.value_dim": 32,
    },
    # As many numbers as `delta`, half of them momentum.
    "titans": {
      **_layers("titans"),
      "model.titans.key_dim": 8,
      "model.titans.value_dim": 8,
      "model.titans.hidden_dim": 8,
    },
    # Retrieves four of all the tokens that `full` attends to.
    "memorizing": {
      **_layers("memorizing", mem_len=longest(task)),
      "model.memorizing.window": SEGMENT_LEN,
      "model.memorizing.top_k": 4,
    },
    # These are all that it hands on.
    "memory_tokens": {**_memory(0), "model.num_memory_tokens": 8},
    # What stores outputs stores inputs as well.
    "same_layer": _layers("same_layer", mem_len=SEGMENT_LEN),
    "block_recurrent": {
      **_layers("block_recurrent", mem_len=SEGMENT_LEN),
      "model.block_recurrent.num_vectors": 8,
    },
    "qrnn": _layers("qrnn"),
    "window": {"train.same_length": True, "eval.same_length": True},
    # Four states, and four slots of four states each.
    "compressive": {
      **_layers("compressive", mem_len=4),
      "model.compressive.function": "conv",
      "model.compressive.rate": 4,
      "model.compressive.slots": 4,
    },
    # No gradient crosses the memory, as published. As many tokens an update.
    "stopped_gradient": {
      "train.gradient_segments": 1,
      "train.batch_size": 256,
    },
  }


def get_config(task: str = "mqar") -> ml_collections.ConfigDict:
  if task not in registry.tasks:
    raise errors.UserError(
      f"experiments/memory_suite.py has no task {task!r}; it has "
      f"{', '.join(registry.tasks)}."
    )
  kind = registry.tasks[task]
  config = base.get_config()
  config.data.update(
    {
      "name": task,
      "prepare": True,
      "targets": "answers",
      "reset_at_documents": kind.has_documents,
    }
  )
  config.model.update(
    {
      "num_layers": 2,
      "model_dim": 64,
      "num_heads": 4,
      "head_dim": 16,
      "ff_dim": 128,
      "pre_norm": True,
      "dropout_rate": 0.0,
      "init_std": 0.06,
    }
  )
  config.train.update(
    {
      "num_steps": kind.suite_updates,
      "batch_size": 64,
      "segment_len": SEGMENT_LEN,
      "mem_len": SEGMENT_LEN,
      "gradient_segments": 4,
      "learning_rate": 6e-3,
      "warmup_steps": 50,
      "adam_b2": 0.98,
      "segments_per_call": 25,
      "log_every_steps": 100,
      "eval_every_steps": 0,
    }
  )
  config.eval.update({"segment_len": SEGMENT_LEN, "mem_len": (SEGMENT_LEN,)})
  config.checkpoint.every_steps = kind.suite_updates
  config.analysis.variants = tuple(
    f"{name}: " + "; ".join(f"{path}={value}" for path, value in each.items())
    for name, each in mechanisms(task).items()
  )
  config.analysis.split = "test"
  config.analysis.seeds = (0, 1, 2, 3, 4)
  config.analysis.learning_rates = (2e-3, 6e-3, 1.8e-2)
  config.analysis.max_learning_rates = 6
  return config
