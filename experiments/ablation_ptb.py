"""A small model on Penn Treebank for the ablation and the other analyses.

Paper: no such model.
Measured: docs/measurements/analyses.md.
Cost: 3 to 6 minutes for a row of the ablation on two shared x86-64 cores; jax
0.10.2, 21 November 2026.
Run: python -m transformer_xl.main --mode=ablation --workdir=/tmp/ablation \
  --config=experiments/ablation_ptb.py
"""

import ml_collections

from transformer_xl.experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "ptb"
  config.model.update(
    {
      "vocab_size": 10_000,
      "num_layers": 3,
      "model_dim": 128,
      "num_heads": 4,
      "head_dim": 32,
      "ff_dim": 512,
      "cutoffs": (1_000, 4_000),
      "div_val": 4,
      "cluster_capacities": (0.35, 0.2),
      "pre_norm": True,  # Post-norm hardly learns within so few steps.
      "num_positions": 32,
      "dropout_rate": 0.0,  # Training is shorter than one epoch.
    }
  )
  config.train.update(
    {
      "num_steps": 1600,
      "batch_size": 16,
      "segment_len": 32,
      "mem_len": 32,
      "learning_rate": 4e-3,
      "warmup_steps": 50,
      "log_every_steps": 100,
      "eval_every_steps": 1600,
    }
  )
  config.eval.update({"segment_len": 32, "mem_len": (32,)})
  config.checkpoint.every_steps = 800
  config.analysis.split = "test"  # As in docs/measurements/analyses.md.
  config.analysis.attention_lens = (16, 32, 64, 128)
  return config
