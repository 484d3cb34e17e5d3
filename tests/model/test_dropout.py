"""Dropout: everywhere it is published to be, with a mask of its own.

Attention's is no module; what is dropped there is in test_attention.py.
"""

import collections
import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import network

DROPPING = tiny.model_config(
  dropout_rate=0.25,
  attention_dropout_rate=0.5,
  input_dropout_rate=0.4,
  output_dropout_rate=0.75,
)

LOCKED = tiny.model_config(
  dropout_rate=0.25, attention_dropout_rate=0.5, locked_dropout=True
)


def _masks(config, *, keys) -> list[dict[str, list[np.ndarray]]]:
  """What dropout multiplies with, by the place of it, for each key."""
  masks = collections.defaultdict(list)

  def recorded(mask, place):
    def record(mask):
      masks[place].append(np.array(mask))
      return masks[place][-1]

    # Unlike a debug callback, nothing that a scan of Flax could stumble over.
    return jax.pure_callback(record, jax.typeof(mask), mask)

  def intercept(call, args, kwargs, context):
    drops = (
      isinstance(context.module, dropout_lib.Dropout) and context.module.rate
    )
    if not drops:
      return call(*args, **kwargs)
    mask = call(jnp.ones_like(args[0]), **kwargs)
    values = nn.relu(args[0]) if kwargs.get("relu") else args[0]
    return values * recorded(mask, "/".join(context.module.path))

  def intercepted_drop(weights, dropout, **options):
    if dropout is None:
      return weights
    mask = drop(jnp.ones_like(weights), dropout, **options)
    return weights * recorded(mask, "attention")

  @jax.jit
  def run(params, key):
    inputs, _, memory = tiny.inputs(config)
    with nn.intercept_methods(intercept):
      return tiny.apply(config, params, inputs, memory, key=key)

  drop = dropout_lib.drop_weights
  dropout_lib.drop_weights = intercepted_drop
  try:
    return _recorded_masks(run, tiny.params(config), masks, keys)
  finally:
    dropout_lib.drop_weights = drop


def _recorded_masks(run, params, masks, keys):

  results = []
  for key in keys:
    run(params, key)
    jax.effects_barrier()
    # Callbacks may come in any order.
    results.append(
      {place: sorted(rows, key=_key) for place, rows in masks.items()}
    )
    masks.clear()
  return results


def _key(mask: np.ndarray) -> tuple:
  return mask.ndim, mask.shape, mask.tobytes()


@pytest.fixture(scope="module")
def masks():
  """For one key, for the same key again, and for another."""
  return _masks(DROPPING, keys=(0, 0, 1))


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_the_gradient_has_the_same_mask_and_none_is_kept(locked, relu):
  dropout = dropout_lib.Dropout(0.25, locked)
  generator = np.random.default_rng(0)
  values, weights = generator.standard_normal((2, 3, 40, 64), np.float32)

  def drop(values):
    key = jax.random.key(3)
    options = {"dropout_lanes": jnp.arange(3), "relu": relu}
    return dropout.apply({}, values, rngs={"dropout": key}, **options)

  output, backward = jax.vjp(drop, jnp.asarray(values))
  (gradient,) = backward(jnp.asarray(weights))
  passed = np.asarray(output) != 0
  factor = np.float32(1 / 0.75)
  np.testing.assert_array_equal(output, np.where(passed, values * factor, 0))
  np.testing.assert_array_equal(gradient, np.where(passed, weights * factor, 0))
  assert not relu or (values[passed] > 0).all()
  shown = passed[values > 0] if relu else passed
  # Of 3,840 and more elements; locked, of 192 that all rows share.
  assert shown.mean() == pytest.approx(0.75, abs=0.15 if locked else 0.03)
  if locked and not relu:
    for lane in passed:
      assert_rows_alike(lane)
  kept = jax.tree.leaves(backward)
  # A seed for each lane, or the output, which the next product keeps anyway.
  assert [leaf.size for leaf in kept] == [values.size if relu else 3]


def test_dropout_is_in_each_published_place(masks):
  places = dict(masks[0])
  states, context = (
    (tiny.LANES, tiny.SEGMENT, DROPPING.model_dim),
    tiny.MEMORY + tiny.SEGMENT,
  )
  # Position encodings, for all lanes and layers; embedding; output.
  for name, shape in (
    ("position_dropout", (context, DROPPING.model_dim)),
    ("input_dropout", states),
    ("output_dropout", states),
  ):
    assert [mask.shape for mask in places.pop(name)] == [shape]
  scores = (tiny.LANES, DROPPING.num_heads, tiny.SEGMENT, context)
  inner = (tiny.LANES, tiny.SEGMENT, DROPPING.ff_dim)
  # Each of these is called in each of two layers.
  shapes = [[mask.shape for mask in rows] for rows in places.values()]
  assert sorted(shapes) == sorted(
    [[scores] * 2, [states] * 2, sorted([inner, states] * 2)]
  )


def test_dropout_rates_are_those_of_their_place(masks):
  rates = {
    **{"attention": 0.5, "input_dropout": 0.4, "position_dropout": 0.4},
    "output_dropout": 0.75,
  }
  assert rates.keys() <= masks[0].keys()
  for place, rows in masks[0].items():
    rate = rates.get(place, 0.25)
    values = np.unique(np.concatenate([mask.ravel() for mask in rows]))
    np.testing.assert_allclose(values, [0, 1 / (1 - rate)], rtol=1e-6)


def test_what_enters_and_leaves_the_layers_has_the_rate_of_the_layers():
  """Unless it has one of its own."""
  config = tiny.model_config(dropout_rate=0.25)
  assert config.input_dropout_rate == config.output_dropout_rate == 0.25


def test_dropout_masks_differ_by_layer_place_lane_and_key(masks):
  first, again, other = masks
  seen = set()
  for mask in itertools.chain(*first.values(), *other.values()):
    for lane in mask if mask.ndim > 2 else [mask]:
      assert lane.size >= 24  # Not alike by chance.
      assert lane.tobytes() not in seen
      seen.add(lane.tobytes())
  jax.tree.map(np.testing.assert_array_equal, first, again)


def test_locked_dropout_has_one_mask_for_all_tokens_of_a_lane():
  (masks,) = _masks(LOCKED, keys=(0,))
  (positions,) = masks.pop("position_dropout")
  assert_rows_alike(positions)
  attention_masks = masks.pop("attention")
  assert any((mask[..., :1, :] != mask).any() for mask in attention_masks)
  locked = [mask for rows in masks.values() for mask in rows]
  assert len(locked) == 2 + 3 * LOCKED.num_layers
  differ = []
  for lanes in locked:
    for lane in lanes:
      assert_rows_alike(lane)
    differ.append((lanes[0] != lanes[1]).any())
  assert np.mean(differ) > 0.5  # Masks of eight channels can agree by chance.


def assert_rows_alike(mask):
  np.testing.assert_array_equal(mask, np.broadcast_to(mask[:1], mask.shape))
  assert 0 < np.count_nonzero(mask[0]) < mask[0].size


@pytest.mark.parametrize(
  ("encoding", "locked", "qkv_bias"),
  [
    ("relative", False, False),
    ("relative_tied", True, False),
    ("relative_tied", False, True),
  ],
)
def test_projection_dropout_has_a_mask_for_each_projection(
  encoding, locked, qkv_bias
):
  config = tiny.model_config(
    projection_dropout_rate=0.5,
    locked_dropout=locked,
    encoding=encoding,
    qkv_bias=qkv_bias,
  )
  (masks,) = _masks(config, keys=(0,))
  (rows,) = masks.values()
  assert set(masks) == {"layers/0/attention/projection_dropout"}
  width, context = (
    config.num_heads * config.head_dim,
    tiny.MEMORY + tiny.SEGMENT,
  )
  expected = [
    (tiny.LANES, length, width) for length in (tiny.SEGMENT, context, context)
  ]
  if encoding == "relative_tied":  # Keys of distances; query of distance 0.
    expected += [(context, width), (1, width)]
  shapes = sorted(mask.shape for mask in rows)
  assert shapes == sorted(expected * config.num_layers)
  seen = {mask[..., 0, :].tobytes() for mask in rows}
  assert len(seen) == len(rows)
  for mask in rows:
    np.testing.assert_allclose(np.unique(mask), [0, 2])
    alike = (mask == mask[..., :1, :]).all()
    assert alike == (locked or mask.shape[-2] == 1)


def test_embedding_dropout_drops_a_word_wherever_it_stands():
  config = tiny.model_config(embedding_dropout_rate=0.5)
  params, (tokens, _, memory) = tiny.params(config), tiny.inputs(config)
  # Each word stands twice, in different lanes.
  tokens = jnp.stack([tokens[0], tokens[0, ::-1]])
  model = network.Network(config)
  embedded = model.apply(
    {"params": params}, tokens, method=lambda model, ids: model.embedding(ids)
  )
  dropped = set()

  @jax.jit
  def entering(key):
    """What `input_dropout` is given."""
    seen = []

    def intercept(call, args, kwargs, context):
      if context.module.name == "input_dropout":
        seen.append(args[0])
      return call(*args, **kwargs)

    with nn.intercept_methods(intercept):
      model.apply(
        {"params": params},
        tokens,
        memory,
        dropout_lanes=jnp.arange(len(tokens)),
        rngs={"dropout": key},
      )
    return seen[0]

  for key in range(8):
    entered = np.asarray(entering(jax.random.key(key, impl="rbg")))
    np.testing.assert_array_equal(entered[0], entered[1, ::-1])
    for vector, whole in zip(entered[0], np.asarray(embedded[0]), strict=True):
      if vector.any():
        np.testing.assert_allclose(vector, 2 * whole, rtol=1e-6)
      dropped.add(bool(vector.any()))
  assert dropped == {True, False}


@pytest.fixture(scope="module")
def params_of_twelve_layers():
  """As a run starts with: without biases."""
  config = tiny.model_config(num_layers=12)
  return jax.jit(functools.partial(network.init_params, config))(
    jax.random.key(0)
  )


@pytest.mark.some(1)
@pytest.mark.parametrize("start", ["masked", "zeros"])
def test_a_dropped_word_that_sees_no_other_leaves_the_gradient_finite(
  start, params_of_twelve_layers
):
  """Its states are 0 in all layers, where layer norm has no direction."""
  config = tiny.model_config(
    num_layers=12, embedding_dropout_rate=0.999, memory_start=start
  )
  memory = network.empty_state(config, batch_size=2, mem_len=3, step_len=1)
  tokens, _, _ = tiny.inputs(config)

  @jax.jit
  @jax.value_and_grad
  def loss(params):
    hidden, _ = tiny.apply(config, params, tokens, memory, key=0)
    return jnp.sum(hidden[..., 0])

  value, gradient = loss(params_of_twelve_layers)
  assert value == 0  # All words were dropped.
  for leaf in jax.tree.leaves(gradient):
    assert np.isfinite(leaf).all()


def test_weight_dropout_drops_single_weights_of_the_layers_matrices():
  config = tiny.model_config(weight_dropout_rate=0.5)
  (masks,) = _masks(config, keys=(0,))
  names = ("query", "key", "value", "position", "output")
  expected = {f"layers/0/attention/{name}_dropout" for name in names}
  names = ("in_kernel", "out_kernel")
  expected |= {f"layers/0/feed_forward/{name}_dropout" for name in names}
  assert set(masks) == expected
  kernels = tiny.params(config)["layers"]["0"]
  for place, (one, other) in masks.items():
    _, _, module, name = place.removesuffix("_dropout").split("/")
    assert one.shape == kernels[module][name].shape[1:]
    assert (one != other).any()  # Two layers differ.
    np.testing.assert_allclose(np.unique(one), [0, 2])


def test_dropout_changes_training_and_not_evaluation():
  plain = tiny.model_config()
  rates = [name for name in vars(plain) if name.endswith("dropout_rate")]
  assert len(rates) == 7
  dropping = tiny.model_config(**dict.fromkeys(rates, 0.5))
  params = tiny.params(plain)
  assert tiny.mean_nll(dropping, params) == tiny.mean_nll(plain, params)
  one, two = (tiny.mean_nll(dropping, params, key=key) for key in (0, 1))
  assert abs(one - two) > 1e-3
  assert tiny.mean_nll(dropping, params, key=0) == one
