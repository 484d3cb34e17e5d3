"""Transformer-XL with 24M parameters on Penn Treebank. Paper: 54.52 test.

The authors never published the recipe. This one has the paper's size
(24,208,000 parameters) and what the paper names, variational dropout and an
average of the parameters, at rates taken from AWD-LSTM and from a third-party
WikiText-2 recipe. It is for an accelerator and has not been trained. As many
parameters in five epochs of two CPU cores, `ptb_short.py`, reach 83.34 test:
docs/ptb.md has that, and how to run and tune this one.
Run: python -m transformer_xl.main --config=experiments/ptb.py \
  --workdir=/tmp/ptb
"""

import ml_collections

from experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "ptb"
  config.model.update(
    {
      "vocab_size": 10_000,
      "num_layers": 12,
      "model_dim": 400,
      "num_heads": 10,
      "head_dim": 40,
      "ff_dim": 1100,
      "dropout_rate": 0.2,
      "input_dropout_rate": 0.5,
      "output_dropout_rate": 0.5,
      "attention_dropout_rate": 0.2,
      "embedding_dropout_rate": 0.1,
      "locked_dropout": True,
      "dtype": "bfloat16",
    }
  )
  config.train.update(
    {
      "num_steps": 40_000,
      "batch_size": 32,
      "segment_len": 70,
      "mem_len": 150,
      "warmup_steps": 2000,
      "ema_decay": 0.999,
      "log_every_steps": 200,
      "eval_every_steps": 1000,
    }
  )
  config.eval.update(
    {
      "segment_len": 70,
      "mem_len": (150,),
      "same_length": True,
      "parameters": "ema",
      "checkpoint": "best",
    }
  )
  config.checkpoint.every_steps = 1000
  return config
