"""Transformer-XL base on WikiText-103, in widths that fit a TPU.

The paper's 410, 10 x 41 and 2100 fill the matrix unit's tiles of 128 badly;
these are the widths that NVIDIA's version uses for the same reason, 512, 8 x 64
and 2048, with the paper's 16 layers. 191,965,658 parameters. The costs of both
are in docs/measurements/tpu.md. Not trained here.
Run: python -m transformer_xl.main --config=experiments/wt103_base_aligned.py \
  --workdir=/tmp/wt103_base_aligned
"""

import ml_collections

from experiments import wt103_base


def get_config() -> ml_collections.ConfigDict:
  config = wt103_base.get_config()
  config.model.update(
    {"model_dim": 512, "num_heads": 8, "head_dim": 64, "ff_dim": 2048}
  )
  config.train.batch_size = 64  # 60 lanes divide among few slices.
  return config
