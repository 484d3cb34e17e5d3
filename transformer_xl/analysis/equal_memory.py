"""Configurations whose training step takes equally much device memory."""

import math

from absl import logging

from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.planning import plan


def bytes_of_step(config: schema.ExperimentConfig) -> int:
  """Bytes of arguments, outputs and temporaries of one update, from XLA."""
  return plan.held_bytes(plan.lower_updates(config, count=1).compile())


def with_longest_segment(
  config: schema.ExperimentConfig, *, budget: int
) -> schema.ExperimentConfig:
  """Returns the experiment with the longest segment within a budget in bytes.

  The number of tokens stays the same, up to one call's segments.
  """

  def is_within(length):
    return bytes_of_step(_with_segment(config, length)) <= budget

  fits, too_long = config.train.segment_len, 2 * config.train.segment_len
  while is_within(too_long):
    fits, too_long = too_long, 2 * too_long
  while too_long - fits > max(fits // 32, 1):  # Within three per cent.
    middle = (fits + too_long) // 2
    if is_within(middle):
      fits = middle
    else:
      too_long = middle
  logging.info("A segment of %d tokens takes equally much memory.", fits)
  return _with_segment(config, fits)


def _with_segment(config, segment_len) -> schema.ExperimentConfig:
  """The experiment with another segment length, on as many tokens."""
  train = config.train
  every, share = train.segments_per_call, train.segment_len / segment_len
  warmup_steps = round(train.warmup_steps * train.segment_len / segment_len)

  def scaled(steps):
    return math.ceil(steps * share / every) * every

  values = {
    "train.segment_len": segment_len,
    "train.num_steps": scaled(train.num_steps),
    "train.warmup_steps": warmup_steps,
    "train.log_every_steps": scaled(train.log_every_steps),
    "train.eval_every_steps": scaled(train.eval_every_steps),
    "checkpoint.every_steps": scaled(config.checkpoint.every_steps),
  }
  return load.replaced(config, values)
