"""Schedules against published numbers; the chain of transformations."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import comparison
from tests import kinds
from tests import oracles
from tests import tiny
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.training import optimizer as optimizer_lib
from transformer_xl.training.optimizers import optimizer as optimizers

PEAK = 2.5e-4
LARGE = {
  "train.num_steps": 4_000_000,
  "train.warmup_steps": 16_000,
  "train.learning_rate": PEAK,
}
DECAYING = [
  name
  for name, rules in registry.optimizers.items()
  if "weight_decay" in rules.uses
]


def train_config(**updates):
  values = {"train." + name: value for name, value in updates.items()}
  values = {"train.segments_per_call": 1} | values
  return load.from_config_dict(tiny.config_dict(**values)).train


def schedule(**updates):
  config = train_config(**updates)
  rate = optimizer_lib.learning_rate_schedule(config)
  return lambda update: float(rate(jnp.asarray(update)))


def large(**updates):
  names = {name.removeprefix("train."): value for name, value in LARGE.items()}
  return schedule(**names, **updates)


def test_cosine_has_the_published_values():
  """The published rates of WikiText-103 large.

  While the rate warms up, ours is at each of them one update earlier.
  """
  rate = large(min_learning_rate_ratio=0.01)
  expected = {
    0: 1.5625e-8,
    7_999: 1.25e-4,
    16_000: 2.5e-4,
    1_000_000: 2.1458e-4,
    2_000_000: 1.2703e-4,
    4_000_000: 2.5e-6,
  }
  for update, value in expected.items():
    assert rate(update) == pytest.approx(value, rel=3e-5)


def test_the_warm_up_wastes_no_update():
  rate = schedule(num_steps=4_000_000, warmup_steps=4, learning_rate=3.0)
  values = [rate(update) for update in range(5)]
  expected = [3 * scale for scale in (1 / 4, 2 / 4, 3 / 4, 1, 1)]
  assert values == pytest.approx(expected, rel=1e-6)
  rate = schedule(num_steps=4_000_000, warmup_steps=1, learning_rate=3.0)
  assert rate(0) == pytest.approx(3.0)


def test_cosine_stays_at_its_floor_behind_the_end():
  rate = schedule(num_steps=100, min_learning_rate_ratio=0.1, learning_rate=2.0)
  assert rate(0) == pytest.approx(2.0)
  assert rate(50) == pytest.approx(2 * (0.9 * 0.5 + 0.1))
  assert rate(100) == rate(250) == pytest.approx(0.2)


def test_inverse_sqrt_falls_from_its_peak():
  rate = schedule(schedule="inverse_sqrt", warmup_steps=10, learning_rate=2.0)
  assert rate(0) == pytest.approx(0.2)
  assert rate(10) == pytest.approx(2.0)
  assert rate(40) == pytest.approx(1.0)
  assert rate(90) == pytest.approx(2 / 3)
  rate = schedule(schedule="inverse_sqrt", learning_rate=2.0)
  assert rate(0) == rate(1) == pytest.approx(2.0)
  assert rate(4) == pytest.approx(1.0)


# A peak of 2 after ten updates, and a floor of 0.2.
WARM = {
  "warmup_steps": 10,
  "min_learning_rate_ratio": 0.1,
  "learning_rate": 2.0,
}


def test_linear_falls_from_the_end_of_the_warm_up_to_its_floor():
  rate = schedule(schedule="linear", num_steps=110, **WARM)
  values = [rate(update) for update in (4, 10, 60, 110, 200)]
  assert values == pytest.approx([1.0, 2.0, 1.1, 0.2, 0.2], rel=1e-6)


def test_wsd_is_constant_and_falls_in_its_last_fifth():
  rate = schedule(schedule="wsd", num_steps=100, **WARM)
  values = [rate(update) for update in (4, 10, 80, 90, 100, 150)]
  assert values == pytest.approx([1.0, 2.0, 2.0, 1.1, 0.2, 0.2], rel=1e-6)


def test_constant_stays_where_its_warmup_ends():
  rate = schedule(schedule="constant", warmup_steps=10, learning_rate=2.0)
  assert rate(5) == pytest.approx(1.2)
  assert rate(10) == rate(999) == pytest.approx(2.0)


def test_the_gradient_is_clipped_by_its_global_norm():
  gradient = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
  for limit, scale in [(1.0, 1 / 5), (2.5, 1 / 2), (7.0, 1), (0.0, 1)]:
    config = train_config(
      optimizer="sgd", schedule="constant", learning_rate=1.0, clip_norm=limit
    )
    optimizer = optimizer_lib.make_optimizer(config)
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    for name, leaf in gradient.items():
      np.testing.assert_allclose(updates[name], -scale * leaf, rtol=1e-6)


def test_momentum_adds_up_earlier_gradients():
  """v_k = g_k + m v_(k-1), and the update is -v_k (Sutskever et al. 2013)."""
  config = train_config(
    **{"sgd.momentum": 0.9},
    optimizer="sgd",
    schedule="constant",
    learning_rate=0.5,
    clip_norm=0.0,
  )
  optimizer = optimizer_lib.make_optimizer(config)
  gradients = np.random.default_rng(0).standard_normal((4, 3))
  params = {"kernel": jnp.zeros(3)}
  state = optimizer.init(params)
  velocity = np.zeros(3)
  for gradient in gradients:
    velocity = gradient + 0.9 * velocity
    updates, state = optimizer.update(
      {"kernel": jnp.asarray(gradient, jnp.float32)}, state, params
    )
    np.testing.assert_allclose(updates["kernel"], -0.5 * velocity, rtol=1e-5)


def test_matrices_decay_and_vectors_do_not():
  config = tiny.model_config(cutoffs=(9,), div_val=2, untie_biases=True)
  params = tiny.params(config)
  mask = optimizers.decayed_parameters(params)
  flat = {
    path[-1].key: decays
    for path, decays in jax.tree_util.tree_leaves_with_path(mask)
  }
  kept = {"content_bias", "position_bias", "bias", "scale", "cluster_bias"}
  kept |= {"in_bias", "out_bias"}
  assert {name for name, decays in flat.items() if not decays} == kept
  assert {"query", "in_kernel", "table_0", "table_1"} <= set(flat) - kept


@pytest.mark.parametrize("name", DECAYING)
def test_weight_decay_pulls_only_what_the_mask_names(name):
  params = {"kernel": jnp.full((2, 2), 2.0), "bias": jnp.full((2,), 2.0)}
  gradient = jax.tree.map(jnp.zeros_like, params)
  config = train_config(
    optimizer=name, schedule="constant", learning_rate=0.1, weight_decay=0.5
  )
  optimizer = optimizer_lib.make_optimizer(config)
  updates, _ = optimizer.update(gradient, optimizer.init(params), params)
  np.testing.assert_array_equal(updates["bias"], 0)
  assert np.all(np.asarray(updates["kernel"]) < -0.05)


def test_lamb_takes_the_trust_ratio_of_each_layer():
  """Against NumPy, with a second layer whose norm counts as 10.

  Biases of zeros, as they start, and those without a gradient have no ratio.
  """
  params = tiny.params(tiny.model_config(cutoffs=(9,), div_val=2))
  params = params | {
    "layers": jax.tree.map(
      lambda leaf: leaf.at[1].multiply(100.0), params["layers"]
    ),
    "softmax": params["softmax"] | {"bias": jnp.zeros(23)},
  }
  config = train_config(
    optimizer="lamb",
    schedule="constant",
    learning_rate=0.1,
    weight_decay=0.01,
    clip_norm=0.0,
    adam_b2=0.75,  # Exact in float32, unlike the default.
  )
  optimizer = optimizer_lib.make_optimizer(config)
  state, gradients = optimizer.init(params), []
  update = jax.jit(optimizer.update)
  for seed in (1, 2):
    gradient = tiny.draw(params, seed=seed)
    softmax = gradient["softmax"] | {"cluster_bias": jnp.zeros(1)}
    gradients.append(gradient | {"softmax": softmax})
    updates, state = update(gradients[-1], state, params)
  decays = optimizers.decayed_parameters(params)
  rows = map(joined, [params, decays, updates, *gradients])
  found = list(map(jax.tree_util.tree_leaves_with_path, rows))
  assert len(found[0]) == len(jax.tree.leaves(params)) - 2
  for leaves in zip(*found, strict=True):
    name = leaves[0][0][0].key
    param, is_decayed, update, *slopes = (
      np.float64(leaf) for _, leaf in leaves
    )
    arrays = (param, update, *slopes)
    if name != "layers":
      arrays = tuple(array[None] for array in arrays)
    for one, moved, *slope in zip(*arrays, strict=True):
      expected = lamb(one, slope, config, decay=0.01 * np.max(is_decayed))
      comparison.assert_close(moved, -0.1 * expected, roundings=30)


def joined(tree):
  """Query, key and value as one array, which published programs have."""
  attention = dict(tree["layers"]["0"]["attention"])
  parts = [attention.pop(name) for name in ("query", "key", "value")]
  attention["qkv"] = np.stack(parts, axis=1 if np.ndim(parts[0]) else 0)
  layers = tree["layers"]["0"] | {"attention": attention}
  return tree | {"layers": {"0": layers}}


def lamb(param, slopes, config, *, decay):
  """The direction of the last update of one layer, in float64."""
  b1, b2, mean, square = 0.9, config.adam_b2, 0.0, 0.0
  for slope in slopes:
    mean = b1 * mean + (1 - b1) * slope
    square = b2 * square + (1 - b2) * slope**2
  mean, square = (
    moment / (1 - rate ** len(slopes))
    for moment, rate in ((mean, b1), (square, b2))
  )
  step = mean / (np.sqrt(square) + config.adam_epsilon) + decay * param
  norm = np.linalg.norm(param)
  length = np.linalg.norm(step)
  if norm == 0 or length == 0:
    return step
  return step * min(norm, 10.0) / length


def test_muon_takes_orthogonal_steps_in_the_matrices_of_layers():
  """All singular values of a step are alike; the rest moves as Adam moves it.

  Five iterations bring the singular values to 0.7 to 1.2, whatever they were
  (Jordan et al. 2024), but for directions that the gradient hardly has.
  """
  model = tiny.model_config(cutoffs=(9,), div_val=2, ff_dim=48)
  params = tiny.params(model)
  options = {"schedule": "constant", "learning_rate": 0.1, "clip_norm": 0.0}
  steps = {}
  for name in ("adam", "muon"):
    config = train_config(optimizer=name, **options)
    optimizer = optimizer_lib.make_optimizer(config)
    gradient = tiny.draw(params, seed=1)
    steps[name], _ = optimizer.update(gradient, optimizer.init(params), params)
  num_matrices = 0
  adam_steps = jax.tree.leaves(steps["adam"])
  muon_steps = jax.tree_util.tree_leaves_with_path(steps["muon"])
  for (path, step), adam_step in zip(muon_steps, adam_steps, strict=True):
    if path[0].key != "layers" or step.ndim < 3:
      np.testing.assert_array_equal(step, adam_step)
      continue
    for matrix in np.asarray(step, np.float64):
      size = 0.1 * 0.2 * max(matrix.shape) ** 0.5
      values = np.linalg.svd(matrix, compute_uv=False) / size
      assert 0.5 < np.median(values) < 1.3
      assert values.max() < 1.3
      num_matrices += 1
  assert num_matrices > 10


@pytest.mark.some(6)
@pytest.mark.parametrize(
  ("fields", "names"),
  [
    ({"untie_biases": True}, ("content_bias", "position_bias")),
    *(
      ({"encoding": name}, oracles.get(name, "NO_MATRICES", ()))
      for name in registry.encodings
    ),
    *(
      ({"layers": (name,)}, oracles.get(name, "NO_MATRICES", ()))
      for name in registry.mixers
    ),
    (
      {
        "encoding": kinds.learned(counts_from_segment=True),
        "layers": ("attention", kinds.recurrent()),
      },
      ("positions", "positions"),
    ),
  ],
  ids=str,
)
def test_arrays_of_layers_that_are_no_matrices_are_adams(fields, names):
  params = tiny.params(tiny.model_config(**fields))
  gradient = tiny.draw(params, seed=1)
  steps = {}
  for name in ("adam", "muon"):
    config = train_config(optimizer=name, schedule="constant", clip_norm=0.0)
    optimizer = optimizer_lib.make_optimizer(config)
    steps[name], _ = optimizer.update(gradient, optimizer.init(params), params)
  muon_steps = jax.tree_util.tree_leaves_with_path(steps["muon"]["layers"])
  adam_steps = jax.tree.leaves(steps["adam"]["layers"])
  same = [
    path[-1].key
    for (path, step), adam_step in zip(muon_steps, adam_steps, strict=True)
    if step.ndim == 3 and np.array_equal(step, adam_step)
  ]
  assert sorted(same) == sorted(names)


def _scaled_by_rates(update, config, count):
  """An update at the learning rates after some others."""
  scale = optimizer_lib.scale_by_rates(config)
  state = scale.init(update)._replace(count=jnp.asarray(count))
  return scale.update(update, state)[0]


def test_the_factor_of_the_embedding_is_that_of_its_tables():
  """Not of the projections beside them."""
  params = tiny.params(tiny.model_config(cutoffs=(9,), div_val=2))
  config = train_config(embedding_rate_factor=2.0, schedule="constant")
  ones = jax.tree.map(jnp.ones_like, params)
  update = _scaled_by_rates(ones, config, 0)
  rate = config.learning_rate
  doubled = {
    name
    for name, leaf in update["embedding"].items()
    if np.allclose(leaf, -2 * rate, rtol=1e-6)
  }
  assert doubled == {"table_0", "table_1"}
  assert set(update["embedding"]) > doubled


def test_tables_have_a_finite_rate_where_that_of_the_others_is_zero():
  params = tiny.params(tiny.model_config(cutoffs=(9,), div_val=2))
  fields = {"embedding_rate_factor": 2.0, "schedule": "linear"}
  config = train_config(**fields, num_steps=10)
  assert optimizer_lib.learning_rate_schedule(config)(jnp.asarray(10)) == 0
  ones = jax.tree.map(jnp.ones_like, params)
  update = _scaled_by_rates(ones, config, 10)
  assert np.all(np.isfinite(update["embedding"]["table_0"]))
  assert np.all(np.isfinite(update["embedding"]["table_1"]))


@pytest.mark.parametrize("name", registry.optimizers)
def test_every_optimizer_descends(name):
  rate = {"sgd": 0.1, "lamb": 0.05}.get(name, 0.1)
  config = train_config(
    optimizer=name, schedule="constant", learning_rate=rate, clip_norm=0.0
  )
  optimizer = optimizer_lib.make_optimizer(config)
  target = jnp.array([1.0, -2.0])

  def loss(params):
    return jnp.sum(jnp.square(params["kernel"] - target))

  @jax.jit
  def update(params, state):
    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state

  params = {"kernel": jnp.array([3.0, 3.0])}
  state, start = optimizer.init(params), loss(params)
  for _ in range(60):
    params, state = update(params, state)
  assert loss(params) < 0.05 * start


def test_adam_takes_the_configured_moments():
  gradient = {"kernel": jnp.array([0.5])}
  config = train_config(
    optimizer="adam",
    schedule="constant",
    learning_rate=1.0,
    clip_norm=0.0,
    adam_b2=0.75,
    adam_epsilon=0.1,
  )
  optimizer = optimizer_lib.make_optimizer(config)
  state = optimizer.init(gradient)
  _, state = optimizer.update(gradient, state, gradient)
  updates, _ = optimizer.update({"kernel": jnp.array([1.0])}, state, gradient)
  mean = (0.9 * 0.1 * 0.5 + 0.1 * 1.0) / (1 - 0.9**2)
  square = (0.75 * 0.25 * 0.25 + 0.25 * 1.0) / (1 - 0.75**2)
  expected = -mean / (math.sqrt(square) + 0.1)
  assert float(updates["kernel"][0]) == pytest.approx(expected, rel=1e-6)


def test_the_l2_penalty_goes_through_the_moments_of_adam():
  """Against NumPy: after clipping, and for biases as well."""
  params = {"kernel": jnp.array([3.0, -4.0]), "bias": jnp.array([2.0])}
  gradient = {"kernel": jnp.array([6.0, 0.0]), "bias": jnp.array([8.0])}
  config = train_config(
    optimizer="adam",
    schedule="constant",
    learning_rate=1.0,
    clip_norm=5.0,
    l2_penalty=0.5,
    adam_b2=0.75,
    adam_epsilon=1.0,
  )
  optimizer = optimizer_lib.make_optimizer(config)
  updates, _ = optimizer.update(gradient, optimizer.init(params), params)
  for name, param in params.items():
    slope = np.asarray(gradient[name]) / 2 + 0.5 * np.asarray(param)
    expected = -slope / (np.abs(slope) + 1)
    np.testing.assert_allclose(updates[name], expected, rtol=1e-6)


def test_clipping_can_be_switched_without_another_optimizer_state():
  params = {"kernel": jnp.zeros((2, 2))}
  states = [
    optimizer_lib.make_optimizer(train_config(clip_norm=norm)).init(params)
    for norm in (0.0, 1.0)
  ]
  assert len(set(map(jax.tree.structure, states))) == 1
  assert len(jax.tree.leaves(states[0])) == 4
