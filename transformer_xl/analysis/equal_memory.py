"""Configurations whose training step takes equally much device memory."""

import dataclasses
import math

from absl import logging

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
  fits, too_long = config.train.segment_len, 2 * config.train.segment_len
  while bytes_of_step(with_segment(config, too_long)) <= budget:
    fits, too_long = too_long, 2 * too_long
  while too_long - fits > max(fits // 32, 1):  # Within three per cent.
    middle = (fits + too_long) // 2
    if bytes_of_step(with_segment(config, middle)) <= budget:
      fits = middle
    else:
      too_long = middle
  logging.info("A segment of %d tokens takes equally much memory.", fits)
  return with_segment(config, fits)


def with_segment(
  config: schema.ExperimentConfig, segment_len: int
) -> schema.ExperimentConfig:
  """Returns the experiment with another segment length, on as many tokens."""
  train = config.train
  every = train.segments_per_call

  def scaled(steps: int) -> int:
    share = train.segment_len / segment_len
    return math.ceil(steps * share / every) * every

  return dataclasses.replace(
    config,
    train=dataclasses.replace(
      train,
      segment_len=segment_len,
      num_steps=scaled(train.num_steps),
      warmup_steps=round(train.warmup_steps * train.segment_len / segment_len),
      log_every_steps=scaled(train.log_every_steps),
      eval_every_steps=scaled(train.eval_every_steps),
    ),
    checkpoint=dataclasses.replace(
      config.checkpoint, every_steps=scaled(config.checkpoint.every_steps)
    ),
  )
