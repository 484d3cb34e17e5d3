"""Weights and updates of the published Penn Treebank program, in ours."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from tests.parity import published_ptb as published
from transformer_xl.config import load
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib

# Float32 in another order; then eight updates of it.
TOLERANCES = (2e-5, *[2e-4] * (len(published.LENGTHS) - 1))
LONGEST = max(published.LENGTHS)


@pytest.fixture(scope="module")
def config():
  train = {f"train.{name}": value for name, value in published.OPTIONS.items()}
  return load.from_config_dict(
    tiny.config_dict(
      **{
        "model.vocab_size": published.VOCABULARY,
        "model.num_layers": published.LAYERS,
        "model.model_dim": published.WIDTH,
        "model.num_heads": published.HEADS,
        "model.head_dim": published.HEAD_WIDTH,
        "model.ff_dim": published.INNER,
        "model.encoding": "relative_tied",
      },
      **train,
      **{
        "train.batch_size": published.LANES,
        "train.segment_len": 6,
        "train.segment_len_std": 0.5,
        "train.context_len": published.CONTEXT,
        "train.mem_len": 0,
        "train.segments_per_call": 1,
        "train.schedule": "constant",
        "train.asgd_start_step": published.MEAN_START,
      },
    )
  )


def from_published(named):
  """The package's tree of parameters, from PyTorch's names."""

  def rows(part):
    return np.stack(
      [named[f"layers.{i}.{part}"] for i in range(published.LAYERS)]
    )

  def matrices(part):
    return rows(part).swapaxes(1, 2)  # PyTorch has [outputs, inputs].

  def norm(part):
    return {
      "scale": rows(f"{part}.layer_norm.weight"),
      "bias": rows(f"{part}.layer_norm.bias"),
    }

  joined = np.split(matrices("dec_attn.qkv_net.0.weight"), 3, axis=2)
  attention = dict(zip(("query", "key", "value"), joined, strict=True))
  layers = {
    "attention": {**attention, "output": matrices("dec_attn.o_net.weight")},
    "mixer_norm": norm("dec_attn"),
    "feed_forward": {
      "in_kernel": matrices("pos_ff.CoreNet.0.weight"),
      "in_bias": rows("pos_ff.CoreNet.0.bias"),
      "out_kernel": matrices("pos_ff.CoreNet.3.weight"),
      "out_bias": rows("pos_ff.CoreNet.3.bias"),
    },
    "feed_forward_norm": norm("pos_ff"),
  }
  return {
    "embedding": {"table_0": named["word_emb.weight"]},
    "layers": {"0": layers},
    "softmax": {"bias": named["out_layer.bias"]},
  }


def segments():
  """Each update's tokens, padded to one shape."""
  context, text = published.CONTEXT, published.text()
  padded = np.pad(text, ((0, 0), (context, LONGEST)))
  start = 0
  for length in published.LENGTHS:
    inputs = padded[:, start : start + context + LONGEST]
    targets = padded[:, start + context + 1 :][:, :LONGEST]
    resets = np.zeros(inputs.shape, bool)
    if start < context:
      resets[:, context - start] = True
    weights = np.zeros(targets.shape, np.float32)
    weights[:, :length] = 1
    yield segment_lib.Segment(inputs, targets, resets, weights)
    start += length


def tree_of(prefix):
  stored = published.stored()
  return from_published(
    {name: stored[f"{prefix}/{name}"] for name in published.parameters()}
  )


def test_the_published_model_has_the_same_parameters(config):
  params = from_published(published.drawn())
  expected = network.abstract_params(config.model)
  assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, expected)


def test_losses_and_updates_are_the_published_ones(config):
  params = jax.tree.map(jnp.asarray, from_published(published.drawn()))
  shapes = jax.eval_shape(functools.partial(programs.init_state, config))
  state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  state = state._replace(params=params, average=params)
  update = jax.jit(functools.partial(step_lib.train_step, recipe=config.recipe))
  nll = jax.jit(
    functools.partial(
      step_lib.make_model(config.model, config.train).apply, method="nll"
    )
  )
  memory = programs.init_memory(config.recipe)
  stored = published.stored()
  steps = zip(segments(), published.LENGTHS, TOLERANCES, strict=True)
  for index, (segment, length, tolerance) in enumerate(steps):
    losses, _ = nll(
      {"params": state.params},
      *(segment.inputs, segment.targets, memory, segment.resets),
    )
    expected = stored[f"losses_{index}"]
    found = np.asarray(losses)[:, :length]
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
    (state, memory), metrics = update((state, memory), segment)
    mean = float(metrics.sums.nll / metrics.sums.num_tokens)
    assert mean == pytest.approx(float(expected.mean()), rel=1e-4)
  for name, found in (("parameters", state.params), ("mean", state.average)):
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-4),
      found,
      tree_of(name),
    )
  moved = jax.tree.map(
    lambda a, b: float(jnp.abs(a - b).max()), params, state.params
  )
  assert min(jax.tree.leaves(moved)) > 1e-2  # A hundred times the tolerance.


@pytest.mark.rest
def test_keys_and_values_in_a_ring_give_the_published_losses(config):
  reader = reader_lib.Reader(
    config.model,
    mem_len=0,
    segment_len=published.CONTEXT + LONGEST,
    clamp_len=0,
    same_length=False,
  )
  params = from_published(published.drawn())
  frozen = reader.freeze(jax.tree.map(jnp.asarray, params))
  state = reader.start(frozen, batch_size=published.LANES)
  segment = next(segments())
  losses, _ = reader.nll(
    frozen, state, *(jnp.asarray(array) for array in segment[:3])
  )
  expected = published.stored()["losses_0"]
  np.testing.assert_allclose(
    losses[:, : published.LENGTHS[0]], expected, rtol=0, atol=2e-5
  )
