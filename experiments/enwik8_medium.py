"""Transformer-XL with 18 layers on enwik8. Paper: 1.03 bits per character.

The paper prints 88M parameters, and its sizes were never published. Width,
heads and feed-forward width are therefore ours, between those of 12 and of 24
layers: 87,965,708 parameters with the 204 symbols of the published text without
newlines. Training is that of enwik8_base with a warm-up, ours as well.
Measured: not trained here.
Cost: not measured; docs/measurements/tpu.md has estimates for the two others.
Data: python -m data_prep.main --dataset=enwik8 --mode=newline_free \
  --data_dir=data
Run: python -m transformer_xl.main --config=experiments/enwik8_medium.py \
  --workdir=/tmp/enwik8_medium
"""

import ml_collections

from transformer_xl.experiments import enwik8_base


def get_config() -> ml_collections.ConfigDict:
  config = enwik8_base.get_config()
  config.model.update(
    {
      "num_layers": 18,
      "model_dim": 640,
      "num_heads": 10,
      "ff_dim": 2208,
    }
  )
  config.train.warmup_steps = 4000
  return config
