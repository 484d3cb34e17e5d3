r"""The published Penn Treebank recipe: 175 epochs, 24,040,400 parameters.

The program of Z. Dai, April 2020, as its four public logs ran it; docs/ptb.md.
Paper: 54.52 test. Logs: test 55.26 to 55.60, valid 59.5 to 60.1; valid after
epochs 1, 2 and 5: 361 to 374, 232 to 238 and 147.2 to 148.9.
Measured after epochs 1, 2 and 5, in bfloat16: valid 370.1, 238.9 and 146.1,
where the four logs have 368.6, 235.6 and 147.7 on average. That run drew the
scales of layer norms from N(1, 0.02), as the program does; here they start from
1.

On an H100, November 2026: 370.8, 238.4 and 146.3 after epochs 1, 2 and 5; in
another run 89.1 and 75.4 after epochs 20 and 40, within 10.3 minutes, where the
logs have 90.3 and 75.7 on average. Not trained further.

Cost: by --mode=plan 30 minutes for 240,100 updates of 7.4 ms and 3 minutes for
175 validations, on a v5e:2x2 in bfloat16 with mesh.data=2 and mesh.tensor=2,
not counting communication between chips. The logs: 9 to 17 hours of a GPU. Two
x86-64 cores with AVX-512: 31 minutes an epoch, 90 hours in all, and 10 more for
validation.
Run: python -m transformer_xl.main --config=experiments/ptb_published.py \
  --workdir=/tmp/ptb_published
Test: python -m transformer_xl.main --mode=eval \
  --config=experiments/saved.py:/tmp/ptb_published \
  --config.eval.split=test --config.eval.batch_size=1 \
  --config.eval.temperature=1.08
"""

import ml_collections

from transformer_xl.experiments import base

EPOCH = 1372  # Updates that read 92,958 tokens in each lane, 67.75 on average.
DECAY = 125 * 1328  # The program counts them as if all had 70.


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.name = "ptb"
  config.model.update(
    {
      "vocab_size": 10_000,
      "num_layers": 16,
      "model_dim": 380,
      "num_heads": 10,
      "head_dim": 38,
      "ff_dim": 900,
      "encoding": "relative_tied",
      "locked_dropout": True,
      "dropout_rate": 0.2,
      "input_dropout_rate": 0.6,
      "projection_dropout_rate": 0.2,
      "attention_dropout_rate": 0.2,
      "output_dropout_rate": 0.5,
      "embedding_dropout_rate": 0.2,
    }
  )
  config.train.update(
    {
      "num_steps": 175 * EPOCH,
      "batch_size": 10,
      "segment_len": 70,
      "segment_len_std": 5.0,
      "context_len": 70,
      "mem_len": 0,
      "learning_rate": 3e-4,
      "embedding_rate_factor": 2.0,
      "min_learning_rate_ratio": 1 / 3,
      "warmup_steps": 3000,
      "decay_steps": DECAY,
      "l2_penalty": 1.2e-6,
      "activation_penalty": 0.2,
      "temporal_activation_penalty": 0.1,
      "asgd_start_step": 125 * EPOCH,
      "average_rate_factor": 0.5,
      "segments_per_call": 14,
      "log_every_steps": 196,
      "eval_every_steps": EPOCH,
    }
  )
  config.eval.update(
    {
      "split": "valid",
      "batch_size": 10,
      "segment_len": 10,
      "context_len": 130,
      "mem_len": (0,),
      "parameters": "asgd",
    }
  )
  config.checkpoint.every_steps = EPOCH
  return config
