"""Transformer-XL with 24 layers on text8. Paper: 1.08 bits per character.

277,050,395 parameters; all else is as for enwik8. Paper's hardware: 32 TPU
cores for 2 to 5 days. Not trained here.
Run: python -m transformer_xl.main --config=experiments/text8_large.py \
  --workdir=/tmp/text8_large
"""

import ml_collections

from experiments import enwik8_large


def get_config() -> ml_collections.ConfigDict:
  config = enwik8_large.get_config()
  config.data.name = "text8"
  config.model.vocab_size = 27
  config.score.prefix = " "  # There are no newlines in text8.
  return config
