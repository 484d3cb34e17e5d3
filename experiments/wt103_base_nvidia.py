"""Transformer-XL base on WikiText-103 with NVIDIA's sizes and optimizer.

191,950,298 parameters. Paper: no such model. NVIDIA: test perplexity 23.24 with
a standard deviation of 0.08 over 16 seeds, evaluated with the settings of
wt103_base (T 64, M 640, clamp 400, same_length); validation after every 5000
updates is in experiments/reference_curves/wt103_base_nvidia.json.
Measured: not trained here.

What still differs: NVIDIA's LAMB has no bias correction, its first update has
the full rate, it draws the scales of layer norms and the cluster weights, and
it starts each epoch of each lane at another token.
Cost: not measured here. NVIDIA: 76 minutes on eight A100.
Run: python -m transformer_xl.main --config=experiments/wt103_base_nvidia.py \
  --workdir=/tmp/wt103_base_nvidia
Test: python -m transformer_xl.main --mode=eval \
  --config=saved:/tmp/wt103_base_nvidia --config.eval.segment_len=64 \
  --config.eval.mem_len=640 --config.eval.clamp_len=400 \
  --config.eval.same_length=True
"""

import ml_collections

from transformer_xl.experiments import wt103_base_aligned


def get_config() -> ml_collections.ConfigDict:
  config = wt103_base_aligned.get_config()
  config.model.update(
    {
      "cutoffs": (19_997, 39_997, 199_997),
      "untie_biases": False,
      "same_length_window": "mem_len_plus_one",
    }
  )
  config.train.update(
    {
      "num_steps": 40_000,
      "batch_size": 256,
      "segment_len": 192,
      "mem_len": 192,
      "optimizer": "lamb",
      "adam_epsilon": 1e-6,
      "learning_rate": 0.01,
      "min_learning_rate_ratio": 0.1,
      "warmup_steps": 1000,
      "eval_every_steps": 5000,
    }
  )
  config.eval.update(
    {
      "batch_size": 16,
      "segment_len": 192,
      "mem_len": (192,),
      "clamp_len": 0,
      "same_length": False,
    }
  )
  return config
