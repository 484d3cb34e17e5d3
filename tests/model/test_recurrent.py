"""LSTM and QRNN equal their equations, token after token in float64."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import oracle_recurrent
from tests import tiny
from transformer_xl.config import model_fields
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import kinds
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import recurrent

KINDS = ("lstm", "qrnn")
LANES, LENGTH = 3, 5
# Float32 against float64. A reset that is left out changes log-probabilities by
# more than 1 %.
ROUNDINGS = 30
# The rows of the oracle's states that a layer remembers.
REMEMBERED = {"lstm": [[0, 1]] * 3, "qrnn": [[1, 2], [1], [1]]}


def draw_tokens(config, num_segments):
  generator = np.random.default_rng(2)
  shape = (num_segments, LANES, LENGTH)
  return generator.integers(config.vocab_size, size=shape, dtype=np.int32)


@pytest.mark.parametrize("kind", KINDS)
def test_three_segments_equal_the_equations(kind):
  config = tiny.model_config(
    kind=kind, num_layers=3, cutoffs=(5, 11), div_val=2, embed_dim=12
  )
  params = tiny.params(config)
  states = oracle_recurrent.start(config, batch_size=LANES)
  state = kinds.empty_memory(config, batch_size=LANES, mem_len=1)
  for index, tokens in enumerate(draw_tokens(config, 3)):
    resets = np.zeros(tokens.shape, bool)
    resets[index - 1, 2 * index] = index > 0  # Inside, and at the last token.
    actual, state = tiny.apply(
      config, params, tokens, state, resets, method="log_probs"
    )
    expected, states = oracle_recurrent.segment(
      params, config, tokens, states, resets=resets
    )
    comparison.assert_close(actual, expected, roundings=ROUNDINGS)
    for layer, rows in enumerate(REMEMBERED[kind]):
      found = states[:, layer][:, rows]
      comparison.assert_close(state.layers[layer], found, roundings=ROUNDINGS)


@pytest.mark.parametrize("kind", KINDS)
def test_one_mask_of_weights_serves_a_segment(kind):
  """The equations with the weights that were left give the same."""
  rate = 0.3
  config = tiny.model_config(kind=kind, model_dim=32, weight_dropout_rate=rate)
  params, (tokens,) = tiny.params(config), draw_tokens(config, 1)
  pairs = []

  def watch(call, args, kwargs, context):
    result = call(*args, **kwargs)
    module = context.module
    if isinstance(module, dropout_lib.Dropout) and module.rate == rate:
      pairs.append((np.asarray(args[0]), np.asarray(result)))
    return result

  state = kinds.empty_memory(config, batch_size=LANES, mem_len=1)
  model = kinds.of(config).network(config, clamp_len=0, same_length=False)
  with nn.intercept_methods(watch):
    hidden, _ = model.apply(
      {"params": params},
      *(jnp.asarray(tokens), state),
      dropout_lanes=jnp.arange(LANES),
      rngs={"dropout": jax.random.key(0)},
    )
  left = jax.tree.map(lambda leaf: leaf, params)
  for layer in range(config.num_layers):
    own = left[f"layers_{layer}"]
    places = [own]
    if kind == "lstm":  # The recurrent matrices alone.
      places = [own["cell"][f"h{gate}"] for gate in "ifgo"]
    for place in places:
      weights, dropped = pairs.pop(0)
      np.testing.assert_array_equal(weights, place["kernel"])
      is_left = dropped != 0
      # A thousand weights and more: four standard deviations are 0.06.
      assert np.mean(is_left) == pytest.approx(1 - rate, abs=0.06)
      scaled = weights[is_left] / (1 - rate)
      np.testing.assert_allclose(dropped[is_left], scaled, rtol=1e-6)
      place["kernel"] = dropped
  assert not pairs
  head = model.bind({"params": params}).head()
  log_probs = adaptive_softmax.log_probs(hidden, head)
  expected, _ = oracle_recurrent.segment(
    left, config, tokens, oracle_recurrent.start(config, batch_size=LANES)
  )
  comparison.assert_close(log_probs, expected, roundings=ROUNDINGS)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_carries_a_state_in_single(kind):
  config = tiny.model_config(kind=kind, dtype="bfloat16")
  state = kinds.empty_memory(config, batch_size=LANES, mem_len=1)
  (tokens,) = draw_tokens(config, 1)
  hidden, state = tiny.apply(config, tiny.params(config), tokens, state)
  assert hidden.dtype == jnp.bfloat16
  assert {leaf.dtype for leaf in state.layers} == {np.dtype("float32")}


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_counted_as_work(kind):
  """Each entry of a matrix is one multiply-add for a token."""
  config = tiny.model_config(kind=kind, num_layers=3)
  params = jax.tree.leaves(
    {n: own for n, own in tiny.params(config).items() if "layers" in n}
  )
  matrices = sum(leaf.size for leaf in params if leaf.ndim == 2)
  flops = recurrent.layer_flops(config, segment_len=4, mem_len=1)
  assert flops == 2 * matrices


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_are_split_merged_and_added(kind):
  config = tiny.model_config(kind=kind)
  state = kinds.empty_memory(config, batch_size=4, mem_len=1)
  state = jax.tree.map(
    lambda leaf: leaf + jnp.arange(4.0)[:, None, None], state
  )
  parts = memory_lib.split_lanes(state, 2)
  assert parts.layers[0][:, :, 0, 0].tolist() == [[0, 2], [1, 3]]
  jax.tree.map(
    np.testing.assert_array_equal, memory_lib.merge_lanes(parts), state
  )


def test_configuration_and_table_have_the_same_kinds():
  assert tuple(kinds.KINDS) == model_fields.KINDS
