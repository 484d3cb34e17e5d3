"""Dynamic evaluation against a loop over lanes and segments."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import corpus
from tests import kinds
from tests import tiny
from tests.evaluation import splits
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import protocol
from transformer_xl.evaluation.dynamic import evaluator as dynamic
from transformer_xl.evaluation.dynamic import neural_cache
from transformer_xl.evaluation.dynamic import update
from transformer_xl.model import network

MEMORY, SEGMENT, LANES = 6, 8, 3
PAIRS = corpus.TOKENS["test"] - 1
RATES = {"sgd": 0.05, "rms": 0.003}
KINDS = (pytest.param("sgd", marks=pytest.mark.rest), "rms")
NO_CACHE = neural_cache.Mixture(jnp.zeros(1), jnp.zeros(1))


def make_config(data_dir, **updates):
  values = {
    "eval.batch_size": LANES,
    "eval.memory": "hidden",
    "eval.dynamic.kind": "sgd",
  }
  return corpus.config(data_dir, **values | updates)


def text_segments(config):
  """The whole test split; the first segment of the lanes warms up."""
  file = token_file.open_split(f"{config.data.dir}/{corpus.NAME}", "test")
  stream = streams.EvalStream(
    file,
    num_lanes=config.eval.batch_size,
    segment_len=SEGMENT,
    warmup_len=SEGMENT,
    resets=streams.reset_rule(config.data, config.model),
  )
  segments = stream.read(0, stream.num_steps, slice(None))
  is_text = stream.is_text(0, stream.num_steps)
  return jax.tree.map(jnp.asarray, dynamic.TextSegment(segments, is_text))


def training(config, count=3):
  stream = streams.TrainStream(
    token_file.open_split(f"{config.data.dir}/{corpus.NAME}", "train"),
    num_lanes=config.eval.batch_size,
    segment_len=SEGMENT,
    resets="wrap",
  )
  return jax.tree.map(jnp.asarray, stream.read(0, count, slice(None)))


class Functions(NamedTuple):
  """The functions of `dynamic.evaluator` for one configuration, compiled."""

  start: Callable
  mean_squares: Callable
  score: Callable


@functools.cache
def functions(config):
  read = protocol.make_network_reader(config.model, config.eval, MEMORY)
  options = config.eval.dynamic
  per_lane = options.kind != "none" and options.lanes == "apart"
  shared = {"reader": read, "per_lane": per_lane}
  return Functions(
    functools.partial(
      dynamic.start_state,
      scoring=config.scoring,
      num_lanes=config.eval.batch_size,
      **shared,
    ),
    jax.jit(
      functools.partial(
        dynamic.mean_squares, num_lanes=config.eval.batch_size, **shared
      )
    ),
    jax.jit(functools.partial(dynamic.score_segments, **shared)),
  )


def make_rule(kind, **updates):
  values = {"learning_rate": RATES[kind], "decay": 0.1}
  return update.Rule(**jax.tree.map(jnp.float32, values | updates))


def make_steps(config, rule):
  """The steps of all parameters."""
  params = tiny.params(config.model)
  if config.eval.dynamic.kind == "sgd":
    return update.sgd_steps(rule, params)
  return update.rms_steps(rule, measured_squares(config))


def measured_squares(config):
  params = tiny.params(config.model)
  made = functions(config)
  return made.mean_squares(params, made.start(params), training(config))


def run(score, *arguments, options=None):
  """`score`, compiled with these options if there are any."""
  if not options:
    return score(*arguments)
  compiled = score.lower(*arguments).compile(compiler_options=options)
  return compiled(*arguments)


def score(config, these, rule, *, options=None):
  """Losses [S, B] of each segment and lane, and the final state."""
  made = functions(config)
  params = tiny.params(config.model)
  steps = make_steps(config, rule)
  state, losses = run(
    made.score,
    made.start(params),
    params,
    dynamic.Adaptation(steps, NO_CACHE),
    these,
    options=options,
  )
  assert losses.nll.shape == (*losses.num_tokens.shape, 1)
  return np.asarray(losses.nll[..., 0]), state


def loop(config, these, rule, *, groups):
  """Loops over groups of lanes and segments; updates in float64.

  A group learns a pair of the split only once it has scored it.
  """
  rate, decay = map(float, rule)
  params = tiny.params(config.model)
  trained, tree = jax.tree.flatten(jax.tree.map(np.float64, params))
  roots = None
  if config.eval.dynamic.kind == "rms":
    squares = brute_mean_squares(config, groups)
    roots = [np.sqrt(leaf) for leaf in squares]
    mean = np.concatenate([leaf.ravel() for leaf in roots]).mean()
  result = np.zeros(these.is_text.shape[:2])
  for group in groups:
    leaves = [leaf.copy() for leaf in trained]
    memory = empty_memory(config, len(group))
    scored: set[int] = set()
    for step in range(len(result)):
      segment, _ = pick(these, step, group)
      now = jax.tree.unflatten(tree, map(jnp.float32, leaves))
      where = pairs_read(config, step)[group]
      if step > 0:  # The first segment warms up.
        scored |= set(where.ravel())
      is_learned = np.isin(where, list(scored)) & (where < PAIRS)
      slopes, (nll, memory) = reader(config)(now, memory, segment, is_learned)
      result[step, group] = np.sum(np.float64(nll * segment.weights), axis=1)
      for i, slope in enumerate(jax.tree.leaves(slopes)):
        back = trained[i] - leaves[i]
        if roots is None:
          leaves[i] = leaves[i] - rate * np.float64(slope) + decay * back
        else:
          scaled = np.minimum(decay * roots[i] / mean, 1)
          down = rate * np.float64(slope) / (roots[i] + 1e-3)
          leaves[i] = leaves[i] - down + scaled * back
  return result


def pairs_read(config, step):
  """The positions in the split that each lane reads at a step, [B, T]."""
  lanes = config.eval.batch_size
  run = -(-PAIRS // (lanes * SEGMENT)) * SEGMENT
  starts = np.arange(lanes) * run + (step - 1) * SEGMENT
  return starts[:, None] + np.arange(SEGMENT)


def empty_memory(config, num_lanes):
  return network.empty_state(
    config.model, batch_size=num_lanes, mem_len=MEMORY, step_len=SEGMENT
  )


def brute_mean_squares(config, groups):
  """Mean squares over three training segments and all groups of lanes."""
  total, count = None, 0
  for group in groups:
    memory = empty_memory(config, len(group))
    for step in range(3):
      segment = pick(training(config), step, group)
      everything = jnp.ones(segment.inputs.shape, bool)
      slopes, (_, memory) = reader(config)(
        tiny.params(config.model), memory, segment, everything
      )
      squares = [np.float64(leaf) ** 2 for leaf in jax.tree.leaves(slopes)]
      count += 1
      total = squares if total is None else map(np.add, total, squares)
      total = list(total)
  return [leaf / count for leaf in total]


def pick(tree, step, group):
  return jax.tree.map(lambda array: array[step, group], tree)


@functools.cache
def reader(config):
  """Gradient of the mean loss where a mask is true, losses and memory."""
  model = network.Network(config.model)

  def loss(params, memory, segment, mask):
    nll, memory = model.apply(
      {"params": params},
      segment.inputs,
      segment.targets,
      memory,
      segment.resets,
      method="nll",
    )
    mean = jnp.sum(nll * mask) / jnp.maximum(jnp.sum(mask), 1)
    return mean, (nll, memory)

  return jax.jit(jax.grad(loss, has_aux=True))


@pytest.mark.parametrize(
  ("lanes", "kind", "layers"),
  [
    ("apart", "rms", ("attention",)),
    pytest.param(
      *("shared", "sgd", (kinds.recurrent(), "attention:4")),
      marks=pytest.mark.rest,
    ),
  ],
)
def test_losses_equal_a_loop_over_lanes(data_dir, kind, lanes, layers):
  config = make_config(
    data_dir,
    **{
      "eval.dynamic.kind": kind,
      "eval.dynamic.lanes": lanes,
      "model.layers": layers,
    },
  )
  apart = [np.array([lane]) for lane in range(LANES)]
  groups = apart if lanes == "apart" else [np.arange(LANES)]
  these = text_segments(config)
  found, _ = score(config, these, make_rule(kind))
  expected = loop(config, these, make_rule(kind), groups=groups)
  # Updates in float32 and not float64, over eight segments.
  np.testing.assert_allclose(found, expected, rtol=3e-5, atol=1e-4)
  still, _ = score(config, these, make_rule(kind, learning_rate=0.0))
  assert np.max(np.abs(still - expected)) > 0.1


def test_mean_squares_equal_those_of_each_gradient_alone(data_dir):
  found = {}
  for lanes in ("apart", "shared"):
    config = make_config(
      data_dir, **{"eval.dynamic.kind": "rms", "eval.dynamic.lanes": lanes}
    )
    found[lanes] = jax.tree.leaves(measured_squares(config))
    apart = [np.array([lane]) for lane in range(LANES)]
    groups = apart if lanes == "apart" else [np.arange(LANES)]
    for leaf, expected in zip(
      found[lanes], brute_mean_squares(config, groups), strict=True
    ):
      np.testing.assert_allclose(leaf, expected, rtol=2e-4, atol=1e-9)
  # The gradient of many lanes is smaller than that of one.
  sizes = {lanes: sum(map(jnp.sum, leaves)) for lanes, leaves in found.items()}
  assert sizes["shared"] < 0.9 * sizes["apart"]


@pytest.mark.rest
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_learning_rate_it_is_static_evaluation(data_dir, kind):
  rule = make_rule(kind, learning_rate=0.0)
  config = make_config(
    data_dir, **{"eval.dynamic.kind": kind, "eval.dynamic.lanes": "shared"}
  )
  params, these = tiny.params(config.model), text_segments(config)
  expected = splits.score(config, mem_len=MEMORY)
  found, state = score(config, these, rule, options=tiny.TO_THE_BIT)
  assert found.sum(dtype="float64") == pytest.approx(expected.nll, rel=1e-6)
  for before, after in zip(
    jax.tree.leaves(params), jax.tree.leaves(state.params), strict=True
  ):
    np.testing.assert_array_equal(before, after)
  # Bit for bit the losses of a scan without gradients.
  still = make_config(data_dir, **{"eval.dynamic.kind": "none"})
  made = functions(still)
  nothing = dynamic.Adaptation(None, NO_CACHE)
  arguments = made.start(params), params, nothing, these
  _, losses = run(made.score, *arguments, options=tiny.TO_THE_BIT)
  np.testing.assert_array_equal(found, losses.nll[..., 0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_decay_beyond_one_stops_at_the_trained_parameters(data_dir, kind):
  """Each segment then depends only on the one before it."""
  config = make_config(data_dir, **{"eval.dynamic.kind": kind})
  these = text_segments(config)
  found, state = score(config, these, make_rule(kind, decay=1e30))
  same, _ = score(config, these, make_rule(kind, decay=1e20))
  np.testing.assert_array_equal(found, same)
  if kind == "sgd":
    same, _ = score(config, these, make_rule(kind, decay=1.0))
    np.testing.assert_array_equal(found, same)
  assert np.any(found != score(config, these, make_rule(kind))[0])
  # Without another step the lanes return to the trained parameters; "rms"
  # does not pull parameters without gradients in training.
  params = tiny.params(config.model)
  basis = params if kind == "sgd" else measured_squares(config)
  steps = make_steps(config, make_rule(kind, learning_rate=0.0, decay=1e30))
  last = jax.tree.map(lambda x: x[-1:], these)
  home_again = dynamic.Adaptation(steps, NO_CACHE)
  back, _ = functions(config).score(state, params, home_again, last)
  trees = (params, back.params, basis)
  for home, leaf, size in zip(*map(jax.tree.leaves, trees), strict=True):
    away = np.max(np.abs(leaf - home[None]), axis=0)
    assert np.max(away[size != 0], initial=0) < 1e-6


def other_token(these, step, lane):
  """Changes a target in the middle of a segment, and the next input."""
  segment = these.segment
  middle = SEGMENT // 2
  shifted = lambda x: (x + 1) % len(corpus.SYMBOLS)  # noqa: E731
  segment = segment._replace(
    targets=segment.targets.at[step, lane, middle].apply(shifted),
    inputs=segment.inputs.at[step, lane, middle + 1].apply(shifted),
  )
  return these._replace(segment=segment)


@pytest.mark.some(1)
@pytest.mark.parametrize(("lanes", "cache"), [("apart", 20), ("shared", 0)])
def test_a_token_changes_no_earlier_loss_and_no_other_lane(
  data_dir, lanes, cache
):
  config = make_config(
    data_dir,
    **{"eval.dynamic.lanes": lanes, "eval.cache.size": cache},
  )
  made = functions(config)
  params = tiny.params(config.model)
  steps = make_steps(config, make_rule("sgd"))
  mixture = neural_cache.Mixture(jnp.full(1, 0.1), jnp.full(1, 0.3))
  adaptation = dynamic.Adaptation(steps, mixture)

  def losses(these):
    state = made.start(params)
    return np.asarray(made.score(state, params, adaptation, these)[1].nll)

  these = text_segments(config)
  before, after = losses(these), losses(other_token(these, 3, 1))
  np.testing.assert_array_equal(after[:3], before[:3])
  assert np.all(after[3:, 1] != before[3:, 1])
  others = [0, 2]
  np.testing.assert_array_equal(after[3, others], before[3, others])
  if lanes == "apart":
    np.testing.assert_array_equal(after[:, others], before[:, others])
  else:
    assert np.all(after[4:, 0] != before[4:, 0])


@pytest.mark.rest  # What `loop` does, which losses are compared with.
@pytest.mark.parametrize("lanes", ["apart", "shared"])
def test_only_what_was_scored_is_learned(data_dir, lanes):
  """The warm-up of a lane is the end of the lane before it."""
  config = make_config(data_dir, **{"eval.dynamic.lanes": lanes})
  these = jax.tree.map(lambda x: x[:1], text_segments(config))
  assert np.all(these.is_text[:, 1:])
  assert np.all(these.segment.weights == 0)
  _, state = score(config, these, make_rule("sgd"))
  trees = (state.params, tiny.params(config.model))
  for leaf, home in zip(*map(jax.tree.leaves, trees), strict=True):
    np.testing.assert_array_equal(leaf, np.broadcast_to(home, leaf.shape))
