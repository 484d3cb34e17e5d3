"""Any configuration is refused in one line that names a field, or it runs.

To run is here to be traced: shapes and types of one call of training, of
evaluation, and of what learns in evaluation if it is asked for. Nothing is
compiled.
"""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import ml_collections
import pytest
from hypothesis import strategies as st

from tests import kinds
from tests import tiny
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import rules
from transformer_xl.config import schema
from transformer_xl.data import segment
from transformer_xl.data import segment_lengths
from transformer_xl.evaluation import evaluator as evaluator_lib
from transformer_xl.evaluation.dynamic import evaluator as dynamic
from transformer_xl.evaluation.dynamic import neural_cache
from transformer_xl.evaluation.dynamic import update as update_lib
from transformer_xl.experiments import base
from transformer_xl.training import programs

RATES = st.sampled_from([0.0, 0.0, 0.25])
SIZES = st.integers(1, 4)
FLAGS = st.booleans()
ROOM = st.sampled_from([0, 0, 1, 3])  # Lengths of which none is legal.


def one_of(*values):
  return st.sampled_from(values)


# What is not here keeps its default. Values are legal each by itself, and what
# most pairs of them would break is drawn seldom.
FIELDS = {
  name: one_of(*schema.choices(name))
  for name in schema.all_fields()
  if schema.choices(name) and not name.startswith(("analysis.", "score."))
} | {
  "model.dtype": one_of("float32", "bfloat16"),  # `main` replaces `auto`.
  "model.vocab_size": one_of(7, 23),
  "model.num_layers": one_of(1, 2, 3),
  "model.model_dim": one_of(2, 4, 8, 8, 6, 7),
  "model.num_heads": one_of(1, 2, 3),
  "model.head_dim": one_of(1, 4, 5),
  "model.ff_dim": one_of(1, 5),
  "model.embed_dim": one_of(4, 8, 6),
  "model.cutoffs": one_of((), (), (3,), (2, 5), (1, 2, 6), (5, 9)),
  "model.div_val": one_of(1, 1, 2, 3),
  "model.cluster_capacities": one_of((), (), (0.5,), (0.2, 1.0)),
  "model.num_positions": one_of(1, 3, 8, 8),
  "model.layers": one_of(
    ("attention",),
    ("attention",),
    ("attention:2", "attention"),
    *((name,) for name in registry.mixers),
    *((name, "attention:1") for name in kinds.mixers(attends=False)),
    *((f"{name}:2", name) for name in kinds.mixers(takes_limit=True)),
    (kinds.recurrent(), kinds.compressing(), "attention"),
  ),
  **{
    field.path: one_of(1, *field.values)
    for field in kinds.all_own_fields()
    if not schema.choices(field.path)
  },
  "model.dropout_rate": RATES,
  "model.input_dropout_rate": RATES,
  "model.output_dropout_rate": RATES,
  "model.attention_dropout_rate": RATES,
  "model.embedding_dropout_rate": RATES,
  "model.weight_dropout_rate": RATES,
  "model.projection_dropout_rate": RATES,
  "model.scan_unroll": one_of(0, 1, 2, 9),
  "model.tie_weights": FLAGS,
  "model.project_equal_width": FLAGS,
  "model.untie_biases": FLAGS,
  "model.pre_norm": FLAGS,
  "model.locked_dropout": FLAGS,
  "data.reset_at_documents": FLAGS,
  "train.batch_size": one_of(2, 4, 6),
  "train.accumulation_steps": one_of(1, 2, 2, 3),
  "train.segment_len": SIZES,
  "train.segment_len_std": one_of(0.0, 0.0, 0.0, 0.5),
  "train.context_len": one_of(0, 0, 0, 3),
  "train.mem_len": ROOM,
  "train.mem_len_low": one_of(-1, -1, 0, 1),
  "model.auxiliary.num_targets": one_of(1, 1, 2),
  "train.gradient_segments": one_of(1, 1, 2),
  "train.clamp_len": one_of(0, 0, 0, 2, 9),
  "train.same_length": FLAGS,
  "train.activation_penalty": one_of(0.0, 2.0),
  "train.temporal_activation_penalty": one_of(0.0, 1.0),
  "train.segments_per_call": one_of(1, 5),
  "train.learning_rate": one_of(0.0, 0.1),
  "train.min_learning_rate_ratio": RATES,
  "train.warmup_steps": one_of(0, 1, 999),
  "train.clip_norm": one_of(0.0, 0.25),
  "train.weight_decay": one_of(0.0, 0.1),
  "train.l2_penalty": one_of(0.0, 0.1),
  "train.embedding_rate_factor": one_of(1.0, 2.0),
  "train.learning_rate_factors": one_of((), (), ("layers/.*=0", "s.*=2")),
  "train.average_rate_factor": one_of(1.0, 0.5),
  "train.ema_decay": one_of(0.0, 0.0, 0.9),
  "train.asgd_start_step": one_of(0, 0, 5),
  "eval.batch_size": one_of(1, 2, 3),
  "eval.segment_len": SIZES,
  "eval.context_len": one_of(0, 0, 0, 2),
  "eval.mem_len": one_of((0,), (1,), (5, 0)),
  "eval.temperature": one_of((1.0,), (1.0,), (0.5, 2.0)),
  "eval.clamp_len": one_of(0, 0, 0, 3),
  "eval.same_length": FLAGS,
  "eval.split": one_of("valid", "valid", "test"),
  "eval.parameters": one_of("raw", "raw", "ema", "asgd"),
  "eval.dynamic.learning_rate": one_of((0.1,), (0.1, 0.0)),
  "eval.dynamic.decay": one_of((0.0,), (0.1, 3.0)),
  "eval.cache.size": one_of(0, 0, 1, 6),
  "eval.cache.flatness": one_of((0.0,), (0.1, 1.0)),
  "eval.cache.share": one_of((0.0,), (0.1, 0.9)),
  "mesh.data": one_of(-1, 1),
}


def flatten(values, prefix=""):
  """Every field as it is set on the command line, with its default."""
  for name, value in values.items():
    if isinstance(value, dict):
      yield from flatten(value, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", value


DEFAULTS = dict(flatten(base.get_config().to_dict()))


def assert_helpful(error):
  """A mistake of the user's is one line with the field to change."""
  message = str(error)
  assert "\n" not in message
  assert any(name in message for name in DEFAULTS), message


def segments(lanes, length, context_len):
  read_len = context_len + length
  kinds = ((read_len, jnp.int32), (length, jnp.int32), (read_len, jnp.bool))
  return segment.Segment(
    *(jax.ShapeDtypeStruct((1, lanes, size), kind) for size, kind in kinds)
  )


def kinds(tree):
  """What a call's result must share with its argument, or it compiles again."""
  return jax.tree.map(
    lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree
  )


def trace_training(config, mesh):
  train = config.train
  length = segment_lengths.of(config.train).longest
  state, memory = programs.abstract_state(config.recipe)
  batch = segments(train.batch_size, length, train.context_len)
  update = programs.update(config.recipe, mesh)
  numbers = programs.numbers(config.recipe)
  *after, metrics = jax.eval_shape(update, numbers, state, memory, batch)
  assert kinds(tuple(after)) == kinds((state, memory))
  assert metrics.sums.nll.shape == (1,)
  return state.params


def trace_evaluation(config, mesh, params):
  evaluation = config.eval
  evaluator = evaluator_lib.Evaluator(
    config.scoring, mesh, mem_len=evaluation.mem_len[0]
  )
  frozen = jax.eval_shape(evaluator.mesh_reader.freeze, params)
  memory = jax.eval_shape(evaluator.mesh_reader.start, frozen)
  batch = segments(
    evaluation.batch_size, evaluation.segment_len, evaluation.context_len
  )
  after, sums = jax.eval_shape(evaluator.score_segments, frozen, memory, batch)
  assert kinds(after) == kinds(memory)
  assert sums.nll.shape == ()


def trace_learning_evaluation(config, mesh, params):
  """The functions that a dynamic evaluation compiles, without a stream."""
  evaluation = config.eval
  number = jax.ShapeDtypeStruct((), jnp.float32)
  per_lane = (
    evaluation.dynamic.kind != "none" and evaluation.dynamic.lanes == "apart"
  )
  reader = dynamic.make_reader(
    config.model, evaluation, evaluation.mem_len[0], per_lane=per_lane
  )
  options = {"reader": reader, "per_lane": per_lane}
  start = functools.partial(
    dynamic.start_state,
    scoring=config.scoring,
    num_lanes=evaluation.batch_size,
    **options,
  )
  state = jax.eval_shape(start, params)
  batch = segments(
    evaluation.batch_size, evaluation.segment_len, evaluation.context_len
  )
  seen = params
  if evaluation.dynamic.kind == "rms":
    measure = functools.partial(
      dynamic.mean_squares, num_lanes=evaluation.batch_size, **options
    )
    seen = jax.eval_shape(measure, params, state, batch)
  steps = None
  if evaluation.dynamic.kind != "none":
    rule = update_lib.Rule(number, number)
    is_sgd = evaluation.dynamic.kind == "sgd"
    make = update_lib.sgd_steps if is_sgd else update_lib.rms_steps
    steps = jax.eval_shape(make, rule, seen)
  mixtures = jax.ShapeDtypeStruct((2,), jnp.float32)
  after, losses = jax.eval_shape(
    functools.partial(dynamic.score_segments, **options),
    state,
    params,
    dynamic.Adaptation(steps, neural_cache.Mixture(mixtures, mixtures)),
    dynamic.TextSegment(
      batch, jax.ShapeDtypeStruct(batch.targets.shape, jnp.bool)
    ),
  )
  assert kinds(after) == kinds(state)
  count = 2 if evaluation.cache.size else 1
  assert losses.nll.shape == (1, evaluation.batch_size, count)


def trace(config):
  """Raises what a run would."""
  evaluation = config.eval
  mesh = mesh_lib.make_mesh(config.mesh)
  with jax.set_mesh(mesh):
    params = trace_training(config, mesh)
    trace_evaluation(config, mesh, params)
    if evaluation.dynamic.kind != "none" or evaluation.cache.size:
      trace_learning_evaluation(config, mesh, params)


# A busy core takes a second or two for each.
@hypothesis.settings(max_examples=12)
@hypothesis.given(st.fixed_dictionaries(FIELDS))
def test_what_is_not_refused_can_be_traced(updates):
  try:
    trace(load.from_config_dict(tiny.config_dict(**updates)))
  except errors.UserError as error:
    assert_helpful(error)


@pytest.mark.parametrize(
  "updates",
  [{"train.batch_size": 4, "train.accumulation_steps": 2, "train.mem_len": 0}],
  ids=str,
)
def test_what_once_crashed_can_be_traced(updates):
  trace(load.from_config_dict(tiny.config_dict(**updates)))


WILD = {
  bool: FLAGS,
  int: one_of(-(2**31), -1, 0, 1, 2, 7, 2**31 - 1, 2**31, 2**32, 10**400),
  float: one_of(-1.0, 0.0, 5e-324, 0.5, 1.0, 1.5, 1.7e308, float("nan")),
  str: one_of("", "none", "latest", "{}%s\n\x00"),
}
WRONG = one_of(None, True, "7", 7, 10**400, 0.5, (), (1, "a"), [[1]])


@st.composite
def anything(draw):
  """One to four fields with values that are odd or of a wrong type."""
  wanted = draw(st.lists(one_of(*DEFAULTS), min_size=1, max_size=4))
  return {name: draw(values_like(DEFAULTS[name])) for name in wanted}


def values_like(default):
  if isinstance(default, tuple):
    kind = type(default[0]) if default else int
    return st.lists(WILD[kind], max_size=3).map(tuple) | WRONG
  return WILD[type(default)] | WRONG


@hypothesis.settings(max_examples=100)
@hypothesis.given(anything())
def test_odd_values_are_taken_or_refused(updates):
  values = tiny.config_dict().to_dict()
  for name, value in updates.items():
    *groups, field = name.split(".")
    group = values
    for part in groups:
      group = group[part]
    group[field] = value
  try:
    config = load.from_config_dict(ml_collections.ConfigDict(values))
    rules.check_command(config, "train")
  except errors.UserError as error:
    assert_helpful(error)
