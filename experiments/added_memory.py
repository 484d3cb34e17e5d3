"""A memory for an imported model: fine-tuning in full and by LoRA.

Paper: no such study. The argument is the folder of an import; the model is read
in segments of 256 tokens, and its memory is empty where a document starts. The
rows are the model as it is, with and without a memory of 512 tokens; tuned
without a memory, which shows what the text alone gives; with one; and with two
mechanisms in some of its layers: retrieval in every second one, and the delta
rule in every third one, whose new arrays are drawn. What is tuned has the best
of three to five learning rates.
Measured: docs/today.md, for experiments/llama_small.py;
jax 0.10.2, 29 November 2026.
Cost: 205,000 tokens of training and 300,000 of evaluation for a trial, of which
there are at most 37.
Run: python -m transformer_xl.main --mode=study --workdir=/tmp/added_memory \
  --config=experiments/added_memory.py:runs/small
"""

from typing import Any

import ml_collections

from transformer_xl import errors
from transformer_xl.config import load

MEM_LEN = 512
_NO_MEMORY = {"train.mem_len": 0, "eval.mem_len": (0,)}
_MEMORY = {"train.mem_len": MEM_LEN, "eval.mem_len": (MEM_LEN,)}
# One update that changes nothing: a study trains all its rows.
_AS_IT_IS = {
  "train.num_steps": 1,
  "train.warmup_steps": 0,
  "train.learning_rate": 1e-9,
  "analysis.max_learning_rates": 0,
}
_FULL = {"train.learning_rate": 5e-4}
_LORA = {"train.learning_rate": 2e-3, "train.lora.rank": 8}


def _layers(*names: str) -> dict[str, Any]:
  return {"model.layers": names, "train.init_rest": "draw"}


def mechanisms() -> dict[str, dict[str, Any]]:
  """The rows, by name."""
  retrieval = _layers("attention", "memorizing")
  delta = _layers("attention", "attention", "delta")
  return {
    "before_no_memory": _NO_MEMORY | _AS_IT_IS,
    "before_memory": _MEMORY | _AS_IT_IS,
    "no_memory_full": _NO_MEMORY | _FULL,
    "memory_full": _MEMORY | _FULL,
    "memory_lora": _MEMORY | _LORA,
    "memorizing_full": _MEMORY | _FULL | retrieval,
    "memorizing_lora": _MEMORY | _LORA | retrieval,
    "delta_full": _MEMORY | _FULL | delta,
    "delta_lora": _MEMORY | _LORA | delta,
  }


def get_config(source: str = "") -> ml_collections.ConfigDict:
  """Settings for the import in the folder `source`."""
  if not source:
    raise errors.UserError(
      "name the folder of an import, as in --config=added_memory:runs/small."
    )
  config = load.saved(source)
  config.data.update({"name": "wiki", "reset_at_documents": True})
  # One layer at a time compiles in a fraction of the time.
  config.model.update({"scan_unroll": 1})
  config.model.memorizing.window = 256
  config.train.update(
    {
      "init_from": source,
      "num_steps": 100,
      "batch_size": 8,
      "segment_len": 256,
      "warmup_steps": 10,
      "segments_per_call": 10,
      "log_every_steps": 20,
      "eval_every_steps": 0,
    }
  )
  config.eval.update({"segment_len": 256, "warmup_len": 0})
  config.analysis.variants = tuple(
    f"{name}: " + "; ".join(f"{path}={value}" for path, value in each.items())
    for name, each in mechanisms().items()
  )
  config.analysis.split = "valid"
  config.analysis.max_learning_rates = 5
  return config
