"""Transformer-XL with 24 layers on One Billion Word. Paper: 21.8 perplexity.

838,078,041 parameters. The paper's number counts one token in each sentence
that is almost free to predict; docs/specification.md, section 18, describes
both ways to count.
Measured: not trained here.
Cost: the paper's run took 512 TPU cores for 2 to 5 days; the compiler's
estimates are in docs/measurements/tpu.md.
Run: python -m transformer_xl.main --config=experiments/lm1b_large.py \
  --workdir=/tmp/lm1b_large
"""

import ml_collections

from transformer_xl.experiments import lm1b_base


def get_config() -> ml_collections.ConfigDict:
  config = lm1b_base.get_config()
  config.model.update(
    {
      "num_layers": 24,
      "model_dim": 1280,
      "num_heads": 16,
      "head_dim": 80,
      "ff_dim": 8192,
      "dropout_rate": 0.05,
      "attention_dropout_rate": 0.05,
      "init_std": 0.005,
    }
  )
  config.train.update(
    {
      "num_steps": 1_200_000,
      "batch_size": 512,
      "segment_len": 32,
      "mem_len": 32,
      "learning_rate": 1e-4,
      "min_learning_rate_ratio": 0.01,
      "warmup_steps": 30_000,
    }
  )
  return config
