"""Longer segments, so that a training step takes as much memory as another."""

import math

from absl import logging

from transformer_xl.analysis import costs
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.training import loop

# Fields of training that count updates. Zero means that something is off, and
# stays.
_COUNTS = (
  "num_steps",
  "decay_steps",
  "asgd_start_step",
  "log_every_steps",
  "eval_every_steps",
)


def changes(
  config: schema.ExperimentConfig, *, budget: int
) -> dict[str, object]:
  """The values that give an experiment the longest segment within a budget.

  The number of tokens stays the same, up to one call's segments, and so does
  the share of training at which the learning rate or an average changes. No
  segment is longer than a lane of the training text.

  Args:
    config: of the experiment.
    budget: device memory that a step may take, in bytes.
  """
  train = config.train

  def fits(segment_len: int) -> bool:
    longer = with_segment(train, config.checkpoint, segment_len)
    changed = load.changed(config, longer)
    held = costs.planned_bytes(changed.recipe, changed.data, changed.mesh)
    return held <= budget

  stream = loop.open_stream(config.recipe, config.data)
  longest = stream.pairs // train.batch_size
  fitting = train.segment_len
  too_long = min(2 * fitting, longest + 1)
  while too_long <= longest and fits(too_long):
    fitting = too_long
    too_long = min(2 * too_long, longest + 1)
  while too_long - fitting > max(fitting // 32, 1):  # Within three per cent.
    middle = (fitting + too_long) // 2
    if fits(middle):
      fitting = middle
    else:
      too_long = middle
  logging.info("A segment of %d tokens takes equally much memory.", fitting)
  return with_segment(train, config.checkpoint, fitting)


def with_segment(
  train: schema.TrainConfig,
  checkpoint: schema.CheckpointConfig,
  segment_len: int,
) -> dict[str, object]:
  """The values of another segment length, on as many tokens.

  A field that follows another one, such as `decay_steps`, is scaled like it.
  """
  per_call = train.segments_per_call
  share = train.segment_len / segment_len
  values: dict[str, object] = {"train.segment_len": segment_len}
  counts = {f"train.{name}": getattr(train, name) for name in _COUNTS}
  counts["checkpoint.every_steps"] = checkpoint.every_steps
  for path, count in counts.items():
    values[path] = math.ceil(count * share / per_call) * per_call
  # No call has to end with the warm-up.
  values["train.warmup_steps"] = round(train.warmup_steps * share)
  return values
