"""Encodings of order: causal, trained, and leaving memory as it was.

That they are causal and their numbers right is in `tests/conformance`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests import kinds
from tests import oracle
from tests import oracles
from tests import tiny
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import reader as reader_lib

LEARNED = kinds.encodings(has_table=True)
ABSOLUTE = kinds.encodings(counts_from_segment=True)


def small(encoding, **updates):
  return tiny.model_config(encoding=encoding, num_positions=16, **updates)


# The oracle reads several segments with each of the others.
@pytest.mark.parametrize("encoding", [*ABSOLUTE, "none"])
def test_memory_is_read_and_not_changed(encoding):
  """What is remembered stays as it was however many segments pass by."""
  config = small(encoding)
  inputs, _, memory = tiny.inputs(config, mem_len=9)
  before = np.array(memory.layers[0].hiddens)
  for _ in range(2):
    _, memory = tiny.apply(config, tiny.params(config), inputs, memory)
  shift = 2 * inputs.shape[1]
  np.testing.assert_array_equal(
    memory.layers[0].hiddens[:, :, : 9 - shift], before[:, :, shift:]
  )


def paths(params):
  """Of all parameters, as "layers/0/attention/query"."""
  found = jax.tree_util.tree_leaves_with_path(params)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in found
  }


@pytest.mark.parametrize("encoding", [*registry.encodings])
def test_an_encoding_has_what_its_terms_need_and_nothing_else(encoding):
  plain = paths(tiny.params(small("none")))
  own = set(oracles.get(encoding, "PARAMETERS", ()))
  assert not plain & own
  assert paths(tiny.params(small(encoding))) == plain | own


@pytest.mark.some(1)
@pytest.mark.parametrize("encoding", LEARNED)
def test_gradient_of_the_table_is_that_of_the_oracle(encoding):
  """By central differences of the oracle, in float64."""
  config = small(encoding)
  params = tiny.params(config)
  inputs, targets, memory = tiny.inputs(config)
  hiddens = np.asarray(memory.layers[0].hiddens)
  move = np.random.default_rng(5).standard_normal(table(encoding, params).shape)

  def slow(step):
    lanes = [[*hiddens[:, row], None] for row in range(2)]
    log_probs, _ = oracle.segment(
      with_table(
        encoding, params, np.float64(table(encoding, params)) + step * move
      ),
      config,
      inputs,
      lanes,
      mem_len=tiny.MEMORY,
    )
    chosen = np.take_along_axis(log_probs, np.array(targets)[..., None], 2)
    return -chosen.mean()

  def fast(rows):
    changed = with_table(encoding, params, rows)
    losses, _ = tiny.apply(
      config, changed, inputs, targets, memory, method="nll"
    )
    return jnp.mean(losses)

  expected = (slow(1e-5) - slow(-1e-5)) / 2e-5
  products = np.array(jax.grad(fast)(table(encoding, params))) * move
  # Float32, of a sum whose terms cancel.
  tolerance = 1e-5 * np.abs(products).sum()
  np.testing.assert_allclose(products.sum(), expected, atol=tolerance)
  assert np.count_nonzero(products) > 10


def table(encoding, params):
  (path,) = oracles.get(encoding, "PARAMETERS")
  return functools.reduce(lambda tree, key: tree[key], path.split("/"), params)


def with_table(encoding, params, rows):
  (path,) = oracles.get(encoding, "PARAMETERS")
  return traverse_util.unflatten_dict(
    traverse_util.flatten_dict(params, sep="/") | {path: rows}, sep="/"
  )


def test_too_long_a_segment_is_one_line():
  config = tiny.model_config(
    encoding=kinds.learned(counts_from_segment=True), num_positions=2
  )
  inputs, _, memory = tiny.inputs(config)
  with pytest.raises(errors.UserError, match="has learned 2 positions"):
    tiny.apply(config, tiny.params(config), inputs, memory)


def test_a_reader_of_too_long_segments_is_one_line():
  """Single tokens reach the same positions, where nothing would be checked."""
  config = tiny.model_config(
    encoding=kinds.learned(counts_from_segment=True), num_positions=2
  )
  with pytest.raises(errors.UserError, match="has learned 2 positions"):
    reader_lib.Reader(
      config, mem_len=4, segment_len=3, clamp_len=0, same_length=True
    )


def test_the_choices_are_what_is_registered():
  assert schema.choices("model.encoding") == tuple(registry.encodings)
  for name, encoding in registry.encodings.items():
    assert encoding.registered_name == name
    # Only those add something that depends on the place in a segment.
    adds = oracles.get(name, "embedded") or oracles.get(name, "added")
    assert encoding.counts_from_segment == bool(adds)


@pytest.mark.parametrize("encoding", kinds.encodings(rotates=True))
def test_rotated_heads_have_an_even_width(encoding):
  config = tiny.config_dict(**{"model.encoding": encoding, "model.head_dim": 5})
  with pytest.raises(errors.UserError, match="it is 5; try 6"):
    load.from_config_dict(config)


@pytest.mark.parametrize("length", ["train.clamp_len", "eval.clamp_len"])
@pytest.mark.parametrize("encoding", kinds.encodings(clamps=False))
def test_nothing_but_relative_distances_is_clamped(encoding, length):
  config = tiny.config_dict(**{"model.encoding": encoding, length: 3})
  with pytest.raises(errors.UserError, match=f"{length}=3 clamps distances"):
    load.from_config_dict(config)
