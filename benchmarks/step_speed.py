"""Speed of a training step and of evaluation, one JSON line each.

    python -m benchmarks.step_speed [--config.model.num_layers=12 ...]

The default is 6 layers of width 256 with 8 heads, segment and memory 128,
batch 8 and a byte vocabulary. Training and evaluation take turns, and the
medians are reported, since other work on the machine disturbs both alike.
Tokens are random: arithmetic takes as long on them as on text.
"""

import functools
import json
import statistics
import time

import jax
import ml_collections
import numpy as np
from absl import app
from absl import flags
from ml_collections import config_flags

from experiments import base
from transformer_xl import config as config_lib
from transformer_xl import metrics
from transformer_xl import model as model_lib
from transformer_xl import step as step_lib


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.model.update(
    {
      "vocab_size": 256,
      "num_layers": 6,
      "model_dim": 256,
      "num_heads": 8,
      "head_dim": 32,
      "ff_dim": 1024,
      "dropout_rate": 0.0,
    }
  )
  config.train.update({"batch_size": 8, "segment_len": 128, "mem_len": 128})
  return config


_CONFIG = config_flags.DEFINE_config_dict("config", get_config())
_REPEATS = flags.DEFINE_integer("repeats", 10, "Timed calls of each kind.")
_SEGMENTS = flags.DEFINE_integer("segments", 4, "Segments in a call.")


def main(argv: list[str]) -> None:
  del argv
  config = config_lib.from_config_dict(_CONFIG.value)
  train, evaluate = _train_call(config), _eval_call(config)
  seconds = {"train": [], "eval": []}
  for _ in range(_REPEATS.value):
    for kind, call in (("train", train), ("eval", evaluate)):
      start = time.perf_counter()
      call()
      seconds[kind].append((time.perf_counter() - start) / _SEGMENTS.value)
  for kind, call in (("train", train), ("eval", evaluate)):
    print(json.dumps(_report(kind, call, config, seconds[kind])))


class _Call:
  """A compiled function with arguments that its results replace."""

  def __init__(self, function, carry, segments):
    start = time.perf_counter()
    lowered = jax.jit(function, donate_argnums=0).lower(carry, segments)
    self._compiled = lowered.compile()
    self.compile_seconds = time.perf_counter() - start
    analysis = self._compiled.memory_analysis()
    self.peak_bytes = (
      analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
    )
    self._carry, self._segments = carry, segments
    self()

  def __call__(self):
    self._carry = jax.block_until_ready(
      self._compiled(self._carry, self._segments)
    )


def _train_call(config):
  training = step_lib.make_training(config)

  def run(carry, segments):
    return step_lib.train_chunk(*carry, segments, training=training)[:2]

  carry = jax.jit(functools.partial(step_lib.init_state, config))()
  return _Call(run, (carry, _memory(config)), _segments(config))


def _eval_call(config):
  model = step_lib.make_training(config).model
  key = jax.random.key(config.seed)
  params = jax.jit(functools.partial(model_lib.init_params, config.model))(key)

  def run(memory, segments):
    return step_lib.score_chunk(params, memory, segments, model=model)[0]

  return _Call(run, _memory(config), _segments(config))


def _memory(config):
  return model_lib.empty_memory(
    config.model,
    batch_size=config.train.batch_size,
    mem_len=config.train.mem_len,
  )


def _segments(config) -> step_lib.Segment:
  shape = (_SEGMENTS.value, config.train.batch_size, config.train.segment_len)
  tokens = np.random.default_rng(0).integers(
    config.model.vocab_size, size=shape
  )
  tokens = tokens.astype(np.int32)
  weights, resets = np.ones(shape, np.float32), np.zeros(shape, bool)
  return step_lib.Segment(tokens, tokens, weights, resets)


def _report(kind, call, config, seconds):
  train = config.train
  median = statistics.median(seconds)
  tokens_per_second = train.batch_size * train.segment_len / median
  lengths = {"segment_len": train.segment_len, "mem_len": train.mem_len}
  return {
    "benchmark": f"{kind}_segment",
    "device": jax.devices()[0].device_kind,
    "jax": jax.__version__,
    "num_layers": config.model.num_layers,
    "model_dim": config.model.model_dim,
    "num_heads": config.model.num_heads,
    **lengths,
    "batch_size": train.batch_size,
    "dtype": config.model.dtype,
    "milliseconds": round(median * 1e3, 2),
    "fastest_milliseconds": round(min(seconds) * 1e3, 2),
    "tokens_per_second": round(tokens_per_second),
    "mfu": metrics.mfu(tokens_per_second, config.model, **lengths)
    if kind == "train"
    else None,
    "compile_seconds": round(call.compile_seconds, 2),
    "peak_bytes": call.peak_bytes,
  }


if __name__ == "__main__":
  app.run(main)
