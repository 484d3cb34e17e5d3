"""Penn Treebank for the ablation and the other analyses, small and quick.

Measured: docs/analyses.md.
Run: python -m transformer_xl.analysis.ablation --workdir=/tmp/ablation \
  --config=experiments/ablation_ptb.py
"""

import ml_collections

from experiments import base


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
      "cutoffs": (2_000,),
      "div_val": 2,
      "dropout_rate": 0.1,
    }
  )
  config.train.update(
    {
      "num_steps": 2700,
      "batch_size": 16,
      "segment_len": 64,
      "mem_len": 64,
      "learning_rate": 2e-3,
      "warmup_steps": 200,
      "log_every_steps": 100,
      "eval_every_steps": 900,
    }
  )
  config.eval.update({"segment_len": 64, "mem_len": (64,)})
  config.checkpoint.every_steps = 900
  return config
