"""Transformer-XL large on WikiText-103. Paper: 18.3 test perplexity.

The published TensorFlow configuration, with 285,205,322 parameters; the paper
gives 257M.
Measured: not trained here.
Cost: the paper's run took 64 TPU cores for 2 to 5 days; the compiler's
estimates are in docs/measurements/tpu.md.
Run: python -m transformer_xl.main --config=experiments/wt103_large.py \
  --workdir=/tmp/wt103_large
"""

import ml_collections

from transformer_xl.experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "wikitext103"
  config.model.update(
    {
      "vocab_size": 267_735,
      "num_layers": 18,
      "model_dim": 1024,
      "num_heads": 16,
      "head_dim": 64,
      "ff_dim": 4096,
      "cutoffs": (20_000, 40_000, 200_000),
      "cluster_capacities": (1 / 12, 1 / 12, 1 / 24),
      "div_val": 4,
      "untie_biases": True,
      "dropout_rate": 0.2,
      "attention_dropout_rate": 0.2,
      "init_std": 0.005,
      "dtype": "bfloat16",
    }
  )
  config.train.update(
    {
      "num_steps": 4_000_000,
      "batch_size": 128,
      "segment_len": 384,
      "mem_len": 384,
      "min_learning_rate_ratio": 0.01,
      "warmup_steps": 16_000,
      "log_every_steps": 1000,
      "eval_every_steps": 10_000,
    }
  )
  config.eval.update(
    {
      "batch_size": 16,
      "segment_len": 128,
      "mem_len": (1600,),
      "clamp_len": 1000,
      "same_length": True,
    }
  )
  config.checkpoint.every_steps = 10_000
  return config
