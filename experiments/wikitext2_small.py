r"""A small model on WikiText-2, two hours of two cores.

14,580,928 parameters, 6.4 epochs. Paper: no such model.
Measured: test perplexity 113.04 and 112.27 with seeds 0 and 1; validation
120.75 and 119.57.

    memory  seed 0  seed 1   card: test, 245,568 tokens, segment 64, clamp none,
         0  156.62  156.54   same_length False, start masked, batch 8, warm-up
       128  113.04  112.27   as long as the memory, bfloat16, step 13000
       512  114.02  112.82

The training memory is worth 28 %, and four times as much gains nothing.

Cost: the two seeds ran side by side, 215 minutes of a busy x86-64 core each,
with AVX-512; by its rate one run takes two hours of both cores. jax 0.10.2, 24
November 2026.
Run: python -m transformer_xl.main --config=experiments/wikitext2_small.py \
  --workdir=/tmp/wikitext2_small
"""

import ml_collections

from transformer_xl.experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "wikitext2"
  config.model.update(
    {
      "vocab_size": 33_278,
      "num_layers": 5,
      "model_dim": 384,
      "num_heads": 6,
      "head_dim": 64,
      "ff_dim": 1536,
      "cutoffs": (2_000, 10_000),
      "div_val": 2,
      "cluster_capacities": (0.5, 0.3),
      "pre_norm": True,
      "init_std": 0.03,
      "dropout_rate": 0.15,
      "output_dropout_rate": 0.2,
      "attention_dropout_rate": 0.1,
      "dtype": "bfloat16",
    }
  )
  config.train.update(
    {
      "num_steps": 13_000,
      "batch_size": 16,
      "segment_len": 64,
      "mem_len": 128,
      "learning_rate": 1.5e-3,
      "warmup_steps": 300,
      "adam_b2": 0.98,
      "log_every_steps": 50,
      "eval_every_steps": 3250,
      "finish_with": ("eval",),
    }
  )
  config.eval.update(
    {
      "segment_len": 64,
      "mem_len": (0, 128, 512),
      "same_length": False,
    }
  )
  config.checkpoint.every_steps = 3250
  return config
