"""A small model that looks values up, to measure how far back it can.

Paper: no such model. Two layers read segments of 16 tokens with a memory of 16;
the gradient flows through four segments. Measured: on 100,000 tokens of the
test split, at least half of the answers are right up to a distance of

    40 tokens  with a memory of 16, which two layers extend to 47
    67 tokens  with a memory of 32, which they extend to 79

With --config.train.gradient_segments=1 and equally many tokens these are 24 and
40: docs/measurements/analyses.md has its curves and the vanilla twin's.

Cost: 4 minutes of two shared x86-64 cores, with preparation and measurement;
jax 0.10.2, 23 November 2026.
Run: python -m transformer_xl.main --config=experiments/recall.py \
  --workdir=/tmp/recall
"""

import ml_collections

from transformer_xl.experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.update({"name": "recall", "prepare": True})
  config.model.update(
    {
      "num_layers": 2,
      "model_dim": 64,
      "num_heads": 4,
      "head_dim": 16,
      "ff_dim": 128,
      "pre_norm": True,
      "dropout_rate": 0.0,
      "init_std": 0.06,
    }
  )
  config.train.update(
    {
      "num_steps": 4000,
      "batch_size": 16,
      "segment_len": 16,
      "mem_len": 16,
      "gradient_segments": 4,
      "learning_rate": 3e-3,
      "warmup_steps": 100,
      "adam_b2": 0.98,
      "segments_per_call": 50,
      "log_every_steps": 100,
      "eval_every_steps": 0,
      "finish_with": ("recall",),
    }
  )
  config.eval.update({"segment_len": 16, "mem_len": (16, 32)})
  config.checkpoint.every_steps = 1000
  return config
