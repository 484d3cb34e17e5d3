r"""A small Llama without memory, to be imported as models of today are.

Paper: no such model. It is trained on segments of 256 tokens, each alone, as a
Llama is on texts of its length. docs/today.md imports it and gives it a memory.
5,475,584 parameters, 4,096 subwords of WikiText-2, 1.6 epochs.
Measured: validation perplexity 47.48 without memory, memory empty where a
document starts.
Cost: 17 to 32 minutes of one x86-64 core with AMX, beside other work; jax
0.10.2, 29 November 2026.
Run: python -m transformer_xl.main --config=experiments/llama_small.py \
  --workdir=runs/llama
"""

import ml_collections

from transformer_xl.experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.update({"name": "wiki", "reset_at_documents": True})
  config.model.update(
    {
      "num_layers": 6,
      "model_dim": 256,
      "num_heads": 4,
      "num_kv_heads": 2,
      "head_dim": 64,
      "ff_dim": 704,
      # What makes it a Llama.
      "encoding": "rope",
      "norm": "rms",
      "feed_forward": "swiglu",
      "pre_norm": True,
      "final_norm": True,
      "scale_embeddings": False,
      "softmax_bias": False,
      "same_length_window": "mem_len",
      "dropout_rate": 0.0,
      "dtype": "bfloat16",
    }
  )
  config.train.update(
    {
      "num_steps": 2_200,
      "batch_size": 8,
      "segment_len": 256,
      "mem_len": 0,
      "learning_rate": 2e-3,
      "warmup_steps": 200,
      "adam_b2": 0.98,
      "segments_per_call": 10,
      "log_every_steps": 50,
      "eval_every_steps": 500,
      "finish_with": (),
    }
  )
  config.eval.update({"segment_len": 256, "mem_len": (256,)})
  config.checkpoint.every_steps = 500
  return config
