"""Transformer-XL with 12 layers on enwik8. Paper: 1.06 bits per character.

41,055,436 parameters with the 204 symbols of the published text without
newlines, which is the text that 1.06 was measured on.
Measured: not trained here.
Cost: not measured; docs/measurements/tpu.md has the compiler's estimates.
Data: python -m data_prep.main --dataset=enwik8 --mode=newline_free \
  --data_dir=data
Run: python -m transformer_xl.main --config=experiments/enwik8_base.py \
  --workdir=/tmp/enwik8_base
"""

import ml_collections

from transformer_xl.experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "enwik8"
  config.model.update(
    {
      "vocab_size": 204,
      "num_layers": 12,
      "model_dim": 512,
      "num_heads": 8,
      "head_dim": 64,
      "ff_dim": 2048,
      "dropout_rate": 0.1,
      "dtype": "bfloat16",
    }
  )
  config.train.update(
    {
      "num_steps": 400_000,
      "batch_size": 24,
      "segment_len": 512,
      "mem_len": 512,
      "min_learning_rate_ratio": 0.004,
      "log_every_steps": 200,
      "eval_every_steps": 4000,
    }
  )
  config.eval.update(
    {
      "batch_size": 10,
      "segment_len": 80,
      "mem_len": (2100,),
      "clamp_len": 820,
      "same_length": True,
    }
  )
  config.checkpoint.every_steps = 4000
  return config
