"""What updates of several configurations take, measured side by side."""

import statistics
import time
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

import jax

from transformer_xl import mesh as mesh_lib
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.data import streams
from transformer_xl.planning import plan
from transformer_xl.training import loop
from transformer_xl.training import programs

ROUNDS = 5  # Times that the updates of each configuration are timed.


class Cost(NamedTuple):
  """What training takes."""

  seconds_per_token: float  # Median.
  num_bytes: int  # Of device memory, as planned by XLA.


def measure(
  configs: Iterable[schema.ExperimentConfig],
) -> dict[schema.ExperimentConfig, Cost]:
  """The cost of each configuration, whose updates take turns.

  All are in device memory at once, with random parameters.
  """
  updates = {config: _Updates(config) for config in configs}
  seconds: dict[Any, list[float]] = {config: [] for config in updates}
  for _ in range(ROUNDS):
    for config, call in updates.items():
      start = time.perf_counter()
      num_tokens = call()
      seconds[config].append((time.perf_counter() - start) / num_tokens)
  return {
    config: Cost(statistics.median(seconds[config]), call.num_bytes)
    for config, call in updates.items()
  }


class _Updates:
  """The updates of one call of training, compiled."""

  def __init__(self, config: schema.ExperimentConfig):
    train, self._mesh = config.train, programs.make_mesh(config)
    with jax.set_mesh(self._mesh):
      self._carry = [
        create() for create in programs.creators(config, self._mesh)
      ]
      self._segments = streams.device_segments(
        loop.open_stream(config),
        0,
        train.segments_per_call * train.gradient_segments,
        mesh_lib.segments(self._mesh),
        parts=train.accumulation_steps,
      )
      update = programs.update(config, self._mesh)
      self._update = update.lower(*self._carry, self._segments).compile()
    self.num_bytes = plan.held_bytes(self._update)
    per_update = segment_lengths.tokens_per_update(config)
    self._num_tokens = train.segments_per_call * per_update
    self()  # The first call is slower.

  def __call__(self) -> float:
    """Updates; returns the number of tokens that were read."""
    *self._carry, _ = jax.block_until_ready(
      self._update(*self._carry, self._segments)
    )
    return self._num_tokens
