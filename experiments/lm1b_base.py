"""Transformer-XL with 18 layers on One Billion Word, as in published scripts.

355,749,729 parameters. Paper: 23.5 perplexity, which belongs to a model with 20
layers and a feed-forward width of 6144 (466,962,273 parameters):
--config.model.num_layers=20 --config.model.ff_dim=6144
Measured: neither was trained here.
Cost: not measured; docs/measurements/tpu.md has the compiler's estimates.
Run: python -m transformer_xl.main --config=experiments/lm1b_base.py \
  --workdir=/tmp/lm1b_base
"""

import ml_collections

from transformer_xl.experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "lm1b"
  config.model.update(
    {
      "vocab_size": 793_470,
      "num_layers": 18,
      "model_dim": 1024,
      "num_heads": 8,
      "head_dim": 128,
      "ff_dim": 4096,
      "cutoffs": (60_000, 100_000, 640_000),
      "cluster_capacities": (1 / 16, 1 / 16, 1 / 48),
      "div_val": 4,
      "tie_projections": "none",
      "project_equal_width": False,
      "untie_biases": True,
      "dropout_rate": 0.1,
      "dtype": "bfloat16",
    }
  )
  config.train.update(
    {
      "num_steps": 400_000,
      "batch_size": 256,
      "segment_len": 256,
      "mem_len": 256,
      "min_learning_rate_ratio": 0.004,
      "log_every_steps": 200,
      "eval_every_steps": 4000,
    }
  )
  config.eval.update(
    {
      "batch_size": 16,
      "segment_len": 32,
      "mem_len": (128,),
      "same_length": True,
    }
  )
  config.checkpoint.every_steps = 4000
  return config
