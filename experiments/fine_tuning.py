"""Fine-tuning of a model of today with memory, to be planned for a TPU slice.

Paper: no such model. The shapes are those of SmolLM2-135M and TinyLlama-1.1B; a
real run takes all of it from an import, `--config=saved:WORKDIR`
(docs/today.md). `:smollm2` and `:tinyllama` train all parameters, and
`:smollm2_lora` and `:tinyllama_lora` adapters of rank 8.
Measured: nothing; docs/measurements/tpu.md has plans.
Cost: by these plans.
Run: python -m transformer_xl.main --mode=plan --topology=v5e:2x4 \
  --config=experiments/fine_tuning.py:tinyllama --workdir=/tmp/plan
"""

from typing import Any

import ml_collections

from transformer_xl import errors
from transformer_xl.experiments import base

# From the config.json of the two models.
SHAPES: dict[str, dict[str, Any]] = {
  "smollm2": {
    "vocab_size": 49_152,
    "num_layers": 30,
    "model_dim": 576,
    "num_heads": 9,
    "num_kv_heads": 3,
    "head_dim": 64,
    "ff_dim": 1536,
    "rope.base": 1e5,
    "tie_weights": True,
  },
  "tinyllama": {
    "vocab_size": 32_000,
    "num_layers": 22,
    "model_dim": 2048,
    "num_heads": 32,
    "num_kv_heads": 4,
    "head_dim": 64,
    "ff_dim": 5632,
    "rope.base": 1e4,
    "tie_weights": False,
  },
}
_LORA = "_lora"


def get_config(name: str = "smollm2") -> ml_collections.ConfigDict:
  shape = SHAPES.get(name.removesuffix(_LORA))
  if shape is None:
    raise errors.UserError(
      f"experiments/fine_tuning.py has no model {name!r}; it has "
      f"{', '.join(SHAPES)}, and each with {_LORA}."
    )
  config = base.get_config()
  config.model.update_from_flattened_dict(
    {
      **shape,
      "encoding": "rope",
      "norm": "rms",
      "feed_forward": "swiglu",
      "pre_norm": True,
      "final_norm": True,
      "scale_embeddings": False,
      "softmax_bias": False,
      "same_length_window": "mem_len",
      "dropout_rate": 0.0,
      "dtype": "bfloat16",
      "scan_unroll": 1,  # Thirty layers at once compile for long.
    }
  )
  config.train.update(
    {
      "num_steps": 1_000,
      "batch_size": 8,
      "segment_len": 1024,
      "mem_len": 1024,
      "learning_rate": 5e-5,
    }
  )
  if name.endswith(_LORA):
    config.train.init_from = "runs/imported"  # A plan does not read it.
    config.train.lora.rank = 8
    config.train.learning_rate = 2e-4
  config.eval.update({"batch_size": 8, "segment_len": 1024, "mem_len": (4096,)})
  return config
