"""Penn Treebank with 24M parameters in five epochs, which two CPU cores can do.

Measured: test perplexity 83.34 (valid 89.46) with 24,452,320 parameters; the
paper's 54.52 is 28.82 lower.

    memory  test perplexity   card: test, 82,429 tokens, segment 64, clamp
         0           105.71   none, same_length False, start masked, batch 8,
        64            83.34   warm-up as long as the memory, bfloat16, step
       128            82.80   4540 (seed 0, the only run)
       256            83.16

With dynamic evaluation 74.54: docs/ptb.md.

Cost: about 90 minutes of two x86-64 cores with AMX; jax 0.10.2, 22 November
2026. Why the variable: docs/kernels.md.
Run: GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python -m transformer_xl.main \
  --config=experiments/ptb.py --workdir=/tmp/ptb
"""

import ml_collections

from experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "ptb"
  config.model.update(
    {
      "vocab_size": 10_000,
      "num_layers": 6,
      "model_dim": 560,
      "num_heads": 8,
      "head_dim": 70,
      "ff_dim": 1400,
      "pre_norm": True,
      "dropout_rate": 0.2,
      "output_dropout_rate": 0.25,
      "attention_dropout_rate": 0.1,
      "dtype": "bfloat16",
    }
  )
  config.train.update(
    {
      "num_steps": 4540,
      "batch_size": 16,
      "segment_len": 64,
      "mem_len": 64,
      "learning_rate": 8e-4,
      "warmup_steps": 300,
      "log_every_steps": 50,
      "eval_every_steps": 900,
      "finish_with": ("eval",),
    }
  )
  config.eval.update(
    {
      "segment_len": 64,
      "mem_len": (0, 64, 128, 256),
      "same_length": False,
    }
  )
  config.checkpoint.every_steps = 300
  return config
