"""Dropout: everywhere it is published to be, with a mask of its own.

Attention's is no module; what is dropped there is in test_attention.py.
"""

import collections
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from transformer_xl import attention

DROPPING = tiny.model_config(dropout_rate=0.25, attention_dropout_rate=0.5)


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
    if not isinstance(context.module, nn.Dropout):
      return call(*args, **kwargs)
    mask = call(jnp.ones_like(args[0]), *args[1:], **kwargs)
    return args[0] * recorded(mask, "/".join(context.module.path))

  def intercepted_drop(weights, dropout, **options):
    mask = drop(jnp.ones_like(weights), dropout, **options)
    return weights * recorded(mask, "attention")

  @jax.jit
  def run(params, key):
    inputs, _, memory = tiny.inputs(config)
    with nn.intercept_methods(intercept):
      return tiny.apply(config, params, inputs, memory, key=key)

  drop = attention.drop
  attention.drop = intercepted_drop
  try:
    return _recorded_masks(run, tiny.params(config), masks, keys)
  finally:
    attention.drop = drop


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


def test_dropout_is_in_each_published_place(masks):
  places = dict(masks[0])
  states, context = (
    (tiny.LANES, tiny.SEGMENT, DROPPING.model_dim),
    tiny.MEMORY + tiny.SEGMENT,
  )
  # Of the position encodings, for all lanes and layers; embedding; output.
  assert [mask.shape for mask in places.pop("dropout")] == [
    (context, DROPPING.model_dim),
    states,
    states,
  ]
  scores = (tiny.LANES, DROPPING.num_heads, tiny.SEGMENT, context)
  inner = (tiny.LANES, tiny.SEGMENT, DROPPING.ff_dim)
  # Each of these is called in each of two layers.
  shapes = [[mask.shape for mask in rows] for rows in places.values()]
  assert sorted(shapes) == sorted(
    [[scores] * 2, [states] * 2, sorted([inner, states] * 2)]
  )


def test_dropout_rates_are_those_of_their_place(masks):
  places = [mask for rows in masks[0].values() for mask in rows]
  for rate, dimensions in ((0.5, [4]), (0.25, [2, 3])):
    chosen = [mask.ravel() for mask in places if mask.ndim in dimensions]
    values = np.unique(np.concatenate(chosen))
    np.testing.assert_allclose(values, [0, 1 / (1 - rate)], rtol=1e-6)


def test_dropout_masks_differ_by_layer_place_lane_and_key(masks):
  first, again, other = masks
  seen = set()
  for mask in itertools.chain(*first.values(), *other.values()):
    for lane in mask if mask.ndim > 2 else [mask]:
      assert lane.size >= 24  # Not alike by chance.
      assert lane.tobytes() not in seen
      seen.add(lane.tobytes())
  jax.tree.map(np.testing.assert_array_equal, first, again)


@pytest.mark.parametrize("name", ["dropout_rate", "attention_dropout_rate"])
def test_dropout_changes_training_and_not_evaluation(name):
  plain, dropping = tiny.model_config(), tiny.model_config(**{name: 0.5})
  params = tiny.params(plain)
  assert tiny.mean_nll(dropping, params) == tiny.mean_nll(plain, params)
  one, two = (tiny.mean_nll(dropping, params, key=key) for key in (0, 1))
  assert abs(one - two) > 1e-3
  assert tiny.mean_nll(dropping, params, key=0) == one
