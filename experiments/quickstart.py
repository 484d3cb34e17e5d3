"""A small byte-level model of the Python standard library's own sources.

675,712 parameters. It needs no download, trains in minutes on a laptop, is
evaluated with several lengths of memory and continues a prompt. Paper: no such
model. Measured on the test files, in bits per character (bytes):

    memory  test    card: test, 219,323 tokens, segment 16, clamp none,
         0  2.4999  same_length False, start masked, batch 8, warm-up as long
        16  1.8663  as the memory, float32, step 2000, seed 0
        64  1.8006
       256  1.7957

A memory of 64, four times that of training, lowers the loss by 3.5 %. Segments
are much longer than the memory in training, where tokens see 16 to 272 bytes:
docs/measurements/training.md.

Cost: 3 minutes and 16 seconds of two idle x86-64 cores, with preparation,
evaluation, sample and report; jax 0.10.2, 28 November 2026. The text is that of
Python 3.11.7.
Run: make quickstart
"""

import ml_collections

from transformer_xl.experiments import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.data.prepare = True
  config.model.update(
    {
      "num_layers": 3,
      "model_dim": 128,
      "num_heads": 4,
      "head_dim": 32,
      "ff_dim": 512,
      "pre_norm": True,
      "dropout_rate": 0.0,
      "init_std": 0.06,
    }
  )
  config.train.update(
    {
      "num_steps": 2000,
      "batch_size": 8,
      "segment_len": 256,
      "mem_len": 16,
      "learning_rate": 3e-3,
      # 100, and fewer in a shorter run, such as `make quickstart STEPS=60`.
      "warmup_steps": config.train.get_oneway_ref("num_steps") // 20,
      "adam_b2": 0.98,
      "eval_every_steps": 0,
      "finish_with": ("eval", "generate", "report"),
    }
  )
  config.eval.update({"segment_len": 16, "mem_len": (0, 16, 64, 256)})
  config.checkpoint.every_steps = 500
  config.generate.update(
    {"prompt": "def ", "num_tokens": 400, "mem_len": 64, "temperature": 0.8}
  )
  return config
