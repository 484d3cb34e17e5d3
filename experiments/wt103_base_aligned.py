"""Transformer-XL base on WikiText-103 with widths that suit a TPU.

191,965,658 parameters. The paper's widths (410, 10 heads of 41, 2100) leave
much of a matrix unit's 128 x 128 tiles empty. These are the widths that
NVIDIA's version uses for the same reason (512, 8 heads of 64, 2048), with the
paper's 16 layers. Paper: no such model.
Measured: not trained here.
Cost: not measured; docs/measurements/tpu.md has the compiler's estimates.
Run: python -m transformer_xl.main --config=experiments/wt103_base_aligned.py \
  --workdir=/tmp/wt103_base_aligned
"""

import ml_collections

from transformer_xl.experiments import wt103_base


def get_config() -> ml_collections.ConfigDict:
  config = wt103_base.get_config()
  config.model.update(
    {"model_dim": 512, "num_heads": 8, "head_dim": 64, "ff_dim": 2048}
  )
  config.train.batch_size = 64  # 60 lanes can be split over few slices.
  return config
