"""Transformer-XL with 24 layers on text8. Paper: 1.08 bits per character.

277,050,395 parameters; everything but the text is as in enwik8_large.
Measured: not trained here.
Cost: the paper's run took 32 TPU cores for 2 to 5 days; the compiler's
estimates of enwik8_large are in docs/measurements/tpu.md.
Run: python -m transformer_xl.main --config=experiments/text8_large.py \
  --workdir=/tmp/text8_large
"""

import ml_collections

from transformer_xl.experiments import enwik8_large


def get_config() -> ml_collections.ConfigDict:
  config = enwik8_large.get_config()
  config.data.name = "text8"
  config.model.vocab_size = 27
  config.score.prefix = " "  # text8 has no newlines.
  return config
