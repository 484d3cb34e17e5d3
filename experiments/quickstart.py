"""A small byte-level model of the Python standard library's own sources.

Needs no download. Trains in minutes on a laptop, then evaluates with no
memory, the training memory and four times it, and shows a sample.
Run: make quickstart
"""

import ml_collections

from experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.prepare = True
  config.model.update(
    {
      "num_layers": 4,
      "model_dim": 192,
      "num_heads": 4,
      "head_dim": 48,
      "ff_dim": 768,
      "dropout_rate": 0.0,
    }
  )
  config.train.update(
    {
      "num_steps": 600,
      "batch_size": 16,
      "segment_len": 128,
      "mem_len": 128,
      "learning_rate": 1e-3,
      "warmup_steps": 50,
      "eval_every_steps": 0,
      "finish_with": ("eval", "generate"),
    }
  )
  config.eval.mem_len = (0, 128, 512)
  config.checkpoint.every_steps = 200
  config.generate.prompt = "def "
  config.generate.num_tokens = 400
  return config
