"""Transformer-XL with 24 layers on enwik8. Paper: 0.99 bits per character.

277,231,820 parameters with the 204 symbols of the published text without
newlines.
Measured: not trained here.
Cost: the paper's run took 32 TPU cores for 2 to 5 days; the compiler's
estimates are in docs/measurements/tpu.md.
Data: python -m data_prep.main --dataset=enwik8 --mode=newline_free \
  --data_dir=data
Run: python -m transformer_xl.main --config=experiments/enwik8_large.py \
  --workdir=/tmp/enwik8_large
"""

import ml_collections

from transformer_xl.experiments import enwik8_base


def get_config() -> ml_collections.ConfigDict:
  config = enwik8_base.get_config()
  config.model.update(
    {
      "num_layers": 24,
      "model_dim": 1024,
      "head_dim": 128,
      "ff_dim": 3072,
      "dropout_rate": 0.15,
      "attention_dropout_rate": 0.15,
    }
  )
  config.train.update(
    {
      "batch_size": 64,
      "segment_len": 768,
      "mem_len": 768,
      "min_learning_rate_ratio": 0.01,
      "warmup_steps": 4000,
    }
  )
  config.eval.update(
    {
      "batch_size": 16,
      "segment_len": 128,
      "mem_len": (3800,),
      "clamp_len": 1000,
    }
  )
  return config
