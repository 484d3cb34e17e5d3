"""Encodings of order: causal, trained, and leaving memory as it was.

That they are causal and their numbers right is in `tests/conformance`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import oracle
from tests import tiny
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import reader as reader_lib

LEARNED = ("shaw", "absolute_per_layer")
ABSOLUTE = ("absolute", "absolute_per_layer")
CONSTANT = ("absolute", "relative_tied", "rope", "alibi", "none")
OTHERS = (*LEARNED, *CONSTANT)


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


def test_only_relative_attention_has_what_its_terms_need():
  names = {
    encoding: set(tiny.params(small(encoding))["layers"]["0"]["attention"])
    for encoding in ("relative", *OTHERS)
  }
  plain = {"query", "key", "value", "output"}
  assert names["relative"] == plain | {"position"}
  assert names["shaw"] == plain | {"distances"}
  for encoding in ("absolute_per_layer", *CONSTANT):
    assert names[encoding] == plain
  for encoding in OTHERS:
    assert "content_bias" not in tiny.params(small(encoding))
  assert "positions" in tiny.params(small("absolute_per_layer"))["layers"]["0"]


@pytest.mark.some(1)
@pytest.mark.parametrize("encoding", LEARNED)
def test_gradient_of_the_table_is_that_of_the_oracle(encoding):
  """By central differences of the oracle, in float64."""
  config = small(encoding)
  params = tiny.params(config)
  inputs, targets, memory = tiny.inputs(config)
  hiddens = np.asarray(memory.layers[0].hiddens)
  move = np.random.default_rng(5).standard_normal(table(params).shape)

  def slow(step):
    lanes = [list(hiddens[:, row]) for row in range(2)]
    log_probs, _ = oracle.segment(
      with_table(params, np.float64(table(params)) + step * move),
      config,
      inputs,
      lanes,
      mem_len=tiny.MEMORY,
    )
    chosen = np.take_along_axis(log_probs, np.array(targets)[..., None], 2)
    return -chosen.mean()

  def fast(rows):
    changed = with_table(params, rows)
    losses, _ = tiny.apply(
      config, changed, inputs, targets, memory, method="nll"
    )
    return jnp.mean(losses)

  expected = (slow(1e-5) - slow(-1e-5)) / 2e-5
  products = np.array(jax.grad(fast)(table(params))) * move
  # Float32, of a sum whose terms cancel.
  tolerance = 1e-5 * np.abs(products).sum()
  np.testing.assert_allclose(products.sum(), expected, atol=tolerance)
  assert np.count_nonzero(products) > 10


def table(params):
  layers = params["layers"]["0"]
  return layers.get("positions", layers["attention"].get("distances"))


def with_table(params, rows):
  layers = dict(params["layers"]["0"])
  if "positions" in layers:
    layers["positions"] = rows
  else:
    layers["attention"] = layers["attention"] | {"distances": rows}
  return params | {"layers": {"0": layers}}


def test_distances_beyond_the_table_share_its_last_row():
  config = tiny.model_config(encoding="shaw", num_positions=3)
  params = tiny.params(config)
  inputs, _, memory = tiny.inputs(config)
  gradient = jax.grad(
    lambda params: tiny.apply(config, params, inputs, memory)[0].sum()
  )(params)["layers"]["0"]["attention"]["distances"]
  assert gradient.shape[1] == 3
  assert jnp.all(jnp.any(gradient != 0, axis=(0, 2)))


def test_too_long_a_segment_is_one_line():
  config = tiny.model_config(encoding="absolute_per_layer", num_positions=2)
  inputs, _, memory = tiny.inputs(config)
  with pytest.raises(errors.UserError, match="has learned 2 positions"):
    tiny.apply(config, tiny.params(config), inputs, memory)


def test_a_reader_of_too_long_segments_is_one_line():
  """Single tokens reach the same positions, where nothing would be checked."""
  config = tiny.model_config(encoding="absolute_per_layer", num_positions=2)
  with pytest.raises(errors.UserError, match="has learned 2 positions"):
    reader_lib.Reader(
      config, mem_len=4, segment_len=3, clamp_len=0, same_length=True
    )


def test_the_choices_are_what_is_registered():
  assert schema.choices("model.encoding") == tuple(registry.encodings)
  for name, encoding in registry.encodings.items():
    assert encoding.registered_name == name
    assert encoding.counts_from_segment == (name in ABSOLUTE)


def test_rotated_heads_have_an_even_width():
  config = tiny.config_dict(**{"model.encoding": "rope", "model.head_dim": 5})
  with pytest.raises(errors.UserError, match="it is 5; try 6"):
    load.from_config_dict(config)


@pytest.mark.parametrize("length", ["train.clamp_len", "eval.clamp_len"])
def test_nothing_but_relative_distances_is_clamped(length):
  config = tiny.config_dict(**{"model.encoding": "shaw", length: 3})
  with pytest.raises(errors.UserError, match=f"{length}=3 clamps distances"):
    load.from_config_dict(config)
