"""Text with equal bytes of state: mechanisms by the position in a document.

Paper: no such study. Four layers of 256 read documents in segments of 128. Each
mechanism hands on as many bytes a lane as Transformer-XL, which remembers 128
states in each layer; `none` hands on nothing. Memory is empty where a document
starts, and perplexity is told by the position in it.
Measured: rows and pictures are in docs/measurements/memories.md.
Cost: 15 to 50 minutes of one x86-64 core for a trial, of which there are seven
to ten for each mechanism; jax 0.10.2, 27 November 2026.
Run: python -m transformer_xl.main --mode=study --workdir=/tmp/memory_text \
  --config=experiments/memory_text.py:python_stdlib
"""

from typing import Any

import ml_collections

from transformer_xl import errors
from transformer_xl.experiments import base

MEM_LEN = 128
# Fields of the model that fit a dataset.
TEXTS: dict[str, dict[str, Any]] = {
  "python_stdlib": {},
  "wikitext2": {
    "vocab_size": 33_278,
    "cutoffs": (2_000, 10_000),
    "div_val": 2,
    "cluster_capacities": (0.5, 0.3),
    "dropout_rate": 0.15,
    "output_dropout_rate": 0.2,
  },
}


def _memory(mem_len: int, *layers: str) -> dict[str, Any]:
  changes: dict[str, Any] = {
    "train.mem_len": mem_len,
    "eval.mem_len": (mem_len,),
  }
  if layers:
    changes["model.layers"] = layers
  return changes


def mechanisms() -> dict[str, dict[str, Any]]:
  """What is compared; the first is compared with the others."""
  # In float32 and with the rows of the convolution, as many bytes in a layer as
  # 128 states of 256 in bfloat16.
  matrices = {"model.delta.key_dim": 64, "model.delta.value_dim": 60}
  return {
    "transformer_xl": {},
    "delta": {**_memory(1, "delta"), **matrices},
    "delta_attention": {**_memory(MEM_LEN, "delta", "attention"), **matrices},
    # The state of an LSTM is small, so the others remember twice as much.
    "lstm_attention": _memory(2 * MEM_LEN - 4, "lstm", "attention"),
    # Vectors are in float32: half of the bytes are theirs.
    "block_recurrent": {
      **_memory(MEM_LEN // 2, "block_recurrent"),
      "model.block_recurrent.num_vectors": MEM_LEN // 4,
    },
    "none": _memory(0),
  }


def get_config(text: str = "python_stdlib") -> ml_collections.ConfigDict:
  if text not in TEXTS:
    raise errors.UserError(
      f"experiments/memory_text.py has no text {text!r}; it has "
      f"{', '.join(TEXTS)}."
    )
  config = base.get_config()
  config.data.update(
    {"name": text, "prepare": True, "reset_at_documents": True}
  )
  config.model.update(
    {
      "num_layers": 4,
      "model_dim": 256,
      "num_heads": 4,
      "head_dim": 64,
      "ff_dim": 1024,
      "pre_norm": True,
      "dropout_rate": 0.0,
      "dtype": "bfloat16",
      **TEXTS[text],
    }
  )
  config.train.update(
    {
      "num_steps": 4000,
      "batch_size": 8,
      "segment_len": MEM_LEN,
      "mem_len": MEM_LEN,
      "learning_rate": 2e-3,
      "warmup_steps": 200,
      "adam_b2": 0.98,
      "log_every_steps": 100,
      "eval_every_steps": 0,
    }
  )
  config.eval.update(
    {"segment_len": MEM_LEN, "mem_len": (MEM_LEN,), "warmup_len": 1024}
  )
  config.checkpoint.every_steps = 1000
  config.analysis.variants = tuple(
    f"{name}: " + "; ".join(f"{path}={value}" for path, value in each.items())
    for name, each in mechanisms().items()
  )
  config.analysis.split = "test"
  config.analysis.seeds = (0, 1, 2, 3, 4)
  config.analysis.learning_rates = (7e-4, 2e-3, 6e-3)
  config.analysis.max_learning_rates = 6
  return config
