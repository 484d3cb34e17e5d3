"""What models cost: planned device memory, operations, state, measured time."""

import math
import statistics
import time
from collections.abc import Iterable

import jax

from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.data import streams
from transformer_xl.model import network
from transformer_xl.planning import plan
from transformer_xl.training import loop
from transformer_xl.training import programs

ROUNDS = 5  # Times that the updates of each configuration are timed.
# Fields of training that no update takes longer for.
_NOT_TIMED = (
  *("num_steps", "decay_steps", "warmup_steps", "learning_rate"),
  *("log_every_steps", "eval_every_steps"),
)


def planned_bytes(config: schema.ExperimentConfig) -> int:
  """Bytes of arguments, outputs and temporaries of one update, from XLA."""
  return plan.held_bytes(plan.lower_updates(config, count=1).compile())


def state_bytes(config: schema.ExperimentConfig, mem_len: int) -> int:
  """Bytes that a lane hands on from segment to segment, as in training.

  Scalars and validity flags count, too.
  """
  state = jax.eval_shape(
    lambda: network.empty_state(
      config.model,
      batch_size=1,
      mem_len=mem_len,
      step_len=config.eval.context_len + config.eval.segment_len,
    )
  )
  return sum(
    math.prod(leaf.shape) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(state)
  )


def forward_flops_per_token(
  config: schema.ExperimentConfig, mem_len: int
) -> float:
  """Useful operations of one token's prediction; an update takes three times.

  A multiplication and an addition count as two.
  """
  return network.forward_flops_per_token(
    config.model,
    segment_len=config.eval.segment_len,
    mem_len=mem_len,
    context_len=config.eval.context_len,
  )


def what_is_timed(
  config: schema.ExperimentConfig, like: schema.ExperimentConfig
) -> schema.ExperimentConfig:
  """The configuration, equal for all whose updates take equally long.

  What does not concern an update has the values of `like`.
  """
  values = {f"train.{name}": getattr(like.train, name) for name in _NOT_TIMED}
  groups = ("divergence", "eval", "checkpoint", "generate", "score", "analysis")
  values |= {name: getattr(like, name) for name in (*groups, "report", "seed")}
  return load.replaced(config, values)


def seconds_per_token(
  configs: Iterable[schema.ExperimentConfig],
) -> dict[schema.ExperimentConfig, float]:
  """The median time of each configuration's updates, which take turns.

  All are in device memory at once, with random parameters.
  """
  updates = {config: _Updates(config) for config in configs}
  seconds: dict[schema.ExperimentConfig, list[float]] = {
    config: [] for config in updates
  }
  for _ in range(ROUNDS):
    for config, update in updates.items():
      start = time.perf_counter()
      update()
      seconds[config].append((time.perf_counter() - start) / update.num_tokens)
  return {config: statistics.median(each) for config, each in seconds.items()}


class _Updates:
  """The updates of one call of training, compiled.

  Segments of drawn lengths are padded to the longest, so all calls take equally
  long, and `num_tokens` is that of the average call.
  """

  def __init__(self, config: schema.ExperimentConfig):
    train = config.train
    mesh = programs.make_mesh(config)
    per_update = segment_lengths.tokens_per_update(config)
    self.num_tokens = train.segments_per_call * per_update
    with jax.set_mesh(mesh):
      self._carry = [create() for create in programs.creators(config, mesh)]
      self._segments = streams.device_segments(
        loop.open_stream(config),
        0,
        train.segments_per_call * train.gradient_segments,
        mesh_lib.segments(mesh),
        parts=train.accumulation_steps,
      )
      update = programs.update(config, mesh)
      self._update = update.lower(*self._carry, self._segments).compile()
    self()  # The first call is slower.

  def __call__(self) -> None:
    """Updates once more and waits for the end."""
    *self._carry, _ = jax.block_until_ready(
      self._update(*self._carry, self._segments)
    )
