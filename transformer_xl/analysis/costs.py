"""What models cost: planned device memory, operations, state, time a token."""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import logging

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.data import streams
from transformer_xl.evaluation import evaluator
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.planning import plan
from transformer_xl.planning import plan_log
from transformer_xl.text import language_model
from transformer_xl.text import streaming
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.workdir import trained_model

ROUNDS = 5  # Times that each call is timed.
_GENERATED = 64  # Tokens that are timed in one call.
# Fields of training that no update takes longer for.
_NOT_TIMED = (
  "num_steps",
  "decay_steps",
  "warmup_steps",
  "learning_rate",
  "log_every_steps",
  "eval_every_steps",
)


class Seconds(NamedTuple):
  """Seconds per token, each in the way that its mode reads.

  Attributes:
    training: of updates, with the gradient.
    evaluation: of segments with fixed parameters, `eval.batch_size` lanes.
    generation: of a single lane that reads one token after the other.
  """

  training: float
  evaluation: float
  generation: float


class Timed(NamedTuple):
  """A model whose time is asked for, and all that this depends on.

  Attributes:
    recipe: how it is trained.
    scoring: how it reads text; `data` is also what it is trained on.
    axes: of the mesh.
    mem_len: its memory outside of training.
  """

  recipe: schema.Recipe
  scoring: schema.Scoring
  axes: schema.MeshConfig
  mem_len: int


def planned_bytes(
  recipe: schema.Recipe, data: schema.DataConfig, axes: schema.MeshConfig
) -> int:
  """Bytes of arguments, outputs and temporaries of one update, from XLA."""
  mesh = programs.make_mesh(recipe, axes)
  lowered = plan.lower_updates(recipe, data, mesh, count=1)
  return plan.held_bytes(lowered.compile())


def state_bytes(
  model: schema.ModelConfig, evaluation: schema.EvalConfig, mem_len: int
) -> int:
  """Bytes that a lane hands on from segment to segment, as in training.

  Scalars and validity flags count, too.
  """
  state = jax.eval_shape(
    lambda: network.empty_state(
      model,
      batch_size=1,
      mem_len=mem_len,
      step_len=evaluation.read_len,
    )
  )
  return sum(
    math.prod(leaf.shape) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(state)
  )


def forward_flops_per_token(
  model: schema.ModelConfig, evaluation: schema.EvalConfig, mem_len: int
) -> float:
  """Useful operations of one token's prediction; an update takes three times.

  A multiplication and an addition count as two.
  """
  return network.forward_flops_per_token(
    model,
    segment_len=evaluation.segment_len,
    mem_len=mem_len,
    context_len=evaluation.context_len,
    same_length=evaluation.same_length,
  )


def what_is_timed(
  config: schema.ExperimentConfig, like: schema.ExperimentConfig, mem_len: int
) -> Timed:
  """The model, equal for all that take equally long.

  What does not concern time has the values of `like`.
  """
  values = {name: getattr(like.train, name) for name in _NOT_TIMED}
  train = dataclasses.replace(config.train, **values)
  evaluation = dataclasses.replace(
    like.eval,
    batch_size=config.eval.batch_size,
    segment_len=config.eval.segment_len,
    context_len=config.eval.context_len,
    memory=config.eval.memory,
    mem_len=(mem_len,),
  )
  return Timed(
    schema.Recipe(config.model, train, like.seed),
    schema.Scoring(config.model, config.data, evaluation),
    config.mesh,
    mem_len,
  )


def planned_seconds(
  name: str,
  config: schema.ExperimentConfig,
  mem_len: int,
  device: jax.Device,
) -> Seconds | None:
  """The estimates of `--mode=plan` for one device that is not there.

  None if a part of the variant `name` does not fit on one.
  """
  changed = load.replaced(
    config,
    {
      "eval.mem_len": (mem_len,),
      "generate.mem_len": mem_len,
      "generate.segment_len": config.eval.segment_len,
      "generate.num_samples": 1,
    },
  )
  recipe = changed.recipe
  mesh = programs.make_mesh(recipe, changed.mesh, devices=[device])
  parts = {
    "training": lambda: plan.train_plan(
      recipe, changed.data, mesh, count=changed.updates_per_call
    ),
    # On one device all meshes are the same.
    "evaluation": lambda: plan.eval_plan(changed.scoring, mesh),
    "generation": lambda: plan.generation_plan(
      changed.model, changed.eval, changed.generate, device
    ),
  }
  seconds = {}
  for part, make_plan in parts.items():
    found = make_plan()
    if not found["fits"]:
      logging.warning(
        "%s has no planned times: on one %s its %s %s",
        name,
        device.device_kind,
        part,
        plan_log.program(found),
      )
      return None
    seconds[part] = 1 / found["estimated_tokens_per_second_per_chip"]
  return Seconds(**seconds)


def seconds_per_token(timed: Iterable[Timed]) -> dict[Timed, Seconds]:
  """The median time of each model's calls, which take turns.

  All are in device memory at once, with random parameters.
  """
  calls = {each: _calls(each) for each in timed}
  seconds: dict[Timed, list[list[float]]] = {
    each: [[] for _ in own] for each, own in calls.items()
  }
  for _ in range(ROUNDS):
    for each, own in calls.items():
      for call, durations in zip(own, seconds[each], strict=True):
        start = time.perf_counter()
        jax.block_until_ready(call.run())
        duration = time.perf_counter() - start
        durations.append(duration / call.num_tokens)
  return {
    each: Seconds(*map(statistics.median, durations))
    for each, durations in seconds.items()
  }


class _Call(NamedTuple):
  """A compiled call that goes on where the last one ended."""

  run: Callable[[], shapes.PyTree]
  num_tokens: float


def _calls(timed: Timed) -> Sequence[_Call]:
  """Calls of training, evaluation and generation, each called once."""
  calls = (
    _training(timed.recipe, timed.scoring.data, timed.axes),
    _evaluation(timed.scoring, timed.axes, timed.mem_len),
    _generation(timed.recipe.model, timed.scoring.eval, timed.mem_len),
  )
  for call in calls:  # The first call is slower.
    jax.block_until_ready(call.run())
  return calls


def _training(
  recipe: schema.Recipe, data: schema.DataConfig, axes: schema.MeshConfig
) -> _Call:
  """The updates of one call of training.

  Segments of drawn lengths are padded to the longest, so all calls take equally
  long, and `num_tokens` is that of the average call.
  """
  train = recipe.train
  mesh = programs.make_mesh(recipe, axes)
  with jax.set_mesh(mesh):
    carry = [create() for create in programs.creators(recipe, mesh)]
    segments = streams.device_segments(
      loop.open_stream(recipe, data),
      0,
      train.segments_per_call * train.gradient_segments,
      mesh_lib.segments(mesh),
      parts=train.accumulation_steps,
    )
    update = programs.update(recipe, mesh)
    numbers = programs.numbers(recipe)
    compiled = update.lower(numbers, *carry, segments).compile()

  def run() -> shapes.PyTree:
    nonlocal carry
    *carry, metrics = compiled(numbers, *carry, segments)
    return carry, metrics

  per_update = segment_lengths.tokens_per_update(train)
  return _Call(run, train.segments_per_call * per_update)


def _evaluation(
  scoring: schema.Scoring, axes: schema.MeshConfig, mem_len: int
) -> _Call:
  """The segments of one call of evaluation."""
  mesh = trained_model.make_mesh(scoring.model, axes)
  with jax.set_mesh(mesh):
    scorer = evaluator.Evaluator(scoring, mesh, mem_len=mem_len)
    frozen = scorer.mesh_reader.freeze(random_params(scoring.model))
    state = scorer.mesh_reader.start(frozen)
    segments = streams.device_segments(
      scorer.stream, 0, evaluator.SEGMENTS_PER_CALL, mesh_lib.segments(mesh)
    )

  def run() -> shapes.PyTree:
    nonlocal state
    with jax.set_mesh(mesh):
      state, sums = scorer.score_segments(frozen, state, segments)
    return state, sums

  per_segment = scoring.eval.batch_size * scoring.eval.segment_len
  return _Call(run, evaluator.SEGMENTS_PER_CALL * per_segment)


def _generation(
  model: schema.ModelConfig, evaluation: schema.EvalConfig, mem_len: int
) -> _Call:
  """Single tokens of one lane, with the log-probabilities of the next ones."""
  reader = reader_lib.Reader(
    model,
    mem_len=mem_len,
    segment_len=evaluation.segment_len,
    clamp_len=evaluation.clamp_len,
    same_length=evaluation.same_length,
  )
  frozen = jax.jit(reader.freeze)(random_params(model))
  start = language_model.start(reader, frozen, 1)
  reader, frozen, state = reader.for_tokens(frozen, start)
  tokens = np.zeros((1, _GENERATED), np.int32)

  def run() -> shapes.PyTree:
    nonlocal state
    state, log_probs = streaming.step(
      frozen, state, tokens, None, reader=reader
    )
    return state, log_probs

  return _Call(run, _GENERATED)


def random_params(config: schema.ModelConfig) -> shapes.PyTree:
  """Parameters to time a model with: times do not depend on them."""
  create = functools.partial(network.init_params, config)
  return jax.jit(create)(jax.random.key(0))
