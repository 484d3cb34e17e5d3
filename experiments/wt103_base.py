"""Transformer-XL base on WikiText-103. Paper: 24.0 test perplexity.

151,119,838 parameters, as in the TensorFlow scripts. The PyTorch scripts share
u and v among the layers (--config.model.untie_biases=False, 151,107,538
parameters) and train for 200,000 steps.
Measured: not trained here.
Cost: not measured; docs/measurements/tpu.md has the compiler's estimates.
Run: python -m transformer_xl.main --config=experiments/wt103_base.py \
  --workdir=/tmp/wt103_base
"""

import ml_collections

from transformer_xl.experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "wikitext103"
  config.model.update(
    {
      "vocab_size": 267_735,
      "num_layers": 16,
      "model_dim": 410,
      "num_heads": 10,
      "head_dim": 41,
      "ff_dim": 2100,
      "cutoffs": (20_000, 40_000, 200_000),
      "cluster_capacities": (1 / 12, 1 / 12, 1 / 24),
      "untie_biases": True,
      "dropout_rate": 0.1,
      "dtype": "bfloat16",
    }
  )
  config.train.update(
    {
      "num_steps": 400_000,
      "batch_size": 60,
      "segment_len": 150,
      "mem_len": 150,
      "min_learning_rate_ratio": 0.004,
      "log_every_steps": 200,
      "eval_every_steps": 4000,
    }
  )
  config.eval.update(
    {
      "batch_size": 10,
      "segment_len": 64,
      "mem_len": (640,),
      "clamp_len": 400,
      "same_length": True,
    }
  )
  config.checkpoint.every_steps = 4000
  return config
