"""The network as a whole; that its numbers are right is in `conformance`."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from transformer_xl import mesh as mesh_lib
from transformer_xl.model import block
from transformer_xl.model import network
from transformer_xl.model import pattern
from transformer_xl.model import reader as reader_lib
from transformer_xl.model.mixers import attention
from transformer_xl.model.mixers import mixer

ADAPTIVE = {"cutoffs": (5, 11), "div_val": 2}


def test_without_resets_no_document_starts(strict_dtypes):
  config = tiny.model_config()
  inputs, _, memory = tiny.inputs(config)
  arguments = (config, tiny.params(config), inputs, memory)
  nowhere = jnp.zeros(inputs.shape, bool)
  without = tiny.apply(*arguments, method="log_probs")
  expected = tiny.apply(*arguments, nowhere, method="log_probs")
  comparison.assert_close(without, expected, roundings=30)


def test_parameters_do_not_depend_on_lengths():
  config = tiny.model_config(**ADAPTIVE)
  short = jax.eval_shape(
    lambda key: network.init_params(config, key), jax.random.key(0)
  )
  settings = mixer.Settings(clamp_len=2, same_length=True)
  model = network.Network(config, settings)
  inputs, targets, memory = tiny.inputs(config, mem_len=9)
  long = jax.eval_shape(
    lambda key: model.init(key, inputs, targets, memory, method="nll"),
    jax.random.key(0),
  )
  assert nn.unbox(long["params"]) == short


def test_a_pattern_of_equal_layers_is_the_layers_in_one_scan():
  """Each place of the pattern has its own parameters and its own memory."""
  options = {"num_layers": 4, "untie_biases": True}
  plain = tiny.model_config(**options)
  pattern = tiny.model_config(layers=("attention", "attention"), **options)
  inputs, targets, memory = tiny.inputs(plain)
  params = tiny.params(plain)

  def by_place(tree):
    """Layers 0 and 2, and layers 1 and 3, of stacked arrays."""
    return [
      jax.tree.map(lambda leaf, place=place: leaf[place::2], tree)
      for place in range(2)
    ]

  def read(config, params, memory):
    def loss(params):
      losses, after = tiny.apply(
        config, params, inputs, targets, memory, method="nll"
      )
      return jnp.mean(losses), after

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

  (value, after), gradient = read(plain, params, memory)
  after = tuple(by_place(after.layers[0]))
  expected = (value, after, tiny.in_places(gradient, 2))
  places = memory._replace(layers=tuple(by_place(memory.layers[0])))
  (value, after), gradient = read(pattern, tiny.in_places(params, 2), places)
  assert len(after.layers) == 2
  # The same sums, compiled in another loop.
  comparison.assert_close(
    (value, after.layers, gradient), expected, roundings=100
  )


def test_bfloat16_is_close_to_float32_and_keeps_float32_parameters(
  strict_dtypes,
):
  """Within a few of its roundings."""
  wide = tiny.model_config(**ADAPTIVE)
  narrow = tiny.model_config(dtype="bfloat16", **ADAPTIVE)
  params = tiny.params(wide)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
  results = []
  for config in (wide, narrow):
    inputs, _, memory = tiny.inputs(config)
    assert memory.layers[0].hiddens.dtype == config.dtype
    log_probs, after = tiny.apply(
      config, params, inputs, memory, method="log_probs"
    )
    assert log_probs.dtype == jnp.float32
    assert after.layers[0].hiddens.dtype == config.dtype
    results.append(log_probs)
  wide_log_probs, narrow_log_probs = results
  rounding = float(jnp.finfo(jnp.bfloat16).eps)
  assert (
    0 < comparison.difference(narrow_log_probs, wide_log_probs) < 4 * rounding
  )


@functools.cache
def _gradient(config):
  def loss(params):
    return tiny.mean_nll(config, params, key=5)

  return jax.jit(jax.grad(loss))(tiny.params(config))


@pytest.mark.some(1)
@pytest.mark.parametrize(
  "options",
  [
    {"remat": "full"},
    pytest.param({"remat": "dots"}, marks=pytest.mark.rest),
    {"remat": "attention"},
    pytest.param({"scan_unroll": 2}, marks=pytest.mark.rest),
    pytest.param({"scan_unroll": 2, "remat": "full"}, marks=pytest.mark.rest),
  ],
  ids=str,
)
def test_how_it_is_computed_does_not_change_the_gradient(options):
  """Also with dropout, whose masks are drawn anew when recomputed."""
  common = {"dropout_rate": 0.25, "attention_dropout_rate": 0.5}
  plain, other = (
    tiny.model_config(**common),
    tiny.model_config(**common, **options),
  )
  assert plain != other
  expected, actual = _gradient(plain), _gradient(other)
  assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 0.01
  # Sums in another order.
  comparison.assert_close(actual, expected, roundings=100)


def _losses_program(config, mesh_shape):
  """The program of a segment's losses, on a mesh of so many devices."""
  tokens, targets, memory = tiny.inputs(config)
  params = tiny.params(config)

  def losses(params):
    return network.Network(config, mixer.Settings()).apply(
      {"params": params}, tokens, targets, memory, method="nll"
    )

  types = (jax.sharding.AxisType.Auto,) * len(mesh_lib.AXES)
  mesh = jax.sharding.AbstractMesh(mesh_shape, mesh_lib.AXES, axis_types=types)
  with jax.sharding.use_abstract_mesh(mesh):
    return jax.make_jaxpr(losses)(params)


@pytest.mark.parametrize(("setting", "unroll"), [(0, 3), (1, 1), (2, 2)])
def test_layers_are_unrolled_unless_told_otherwise(setting, unroll):
  config = tiny.model_config(scan_unroll=setting, num_layers=3)
  program = _losses_program(config, (1, 1, 1))
  scans = [line for line in program.eqns if line.primitive.name == "scan"]
  assert [line.params["unroll"] for line in scans] == [unroll]


@pytest.mark.parametrize(
  ("mesh_shape", "expected"),
  [((1, 2, 1), [("data", "fsdp")] * 2), ((1, 1, 2), []), ((1, 1, 1), [])],
)
def test_each_layer_keeps_the_rows_of_lanes_on_their_devices(
  mesh_shape, expected
):
  config = tiny.model_config(
    num_layers=4, layers=("attention", "attention:4"), scan_unroll=1
  )
  program = _losses_program(config, mesh_shape)
  (scan,) = [line for line in program.eqns if line.primitive.name == "scan"]
  found = [
    line.params["sharding"].spec[0]
    for line in scan.params["jaxpr"].eqns
    if line.primitive.name == "sharding_constraint"
  ]
  assert found == expected


@pytest.mark.parametrize(
  "pre_norm", [pytest.param(False, marks=pytest.mark.rest), True]
)
def test_memory_that_is_constant_leaves_the_gradient_of_one_segment(pre_norm):
  """A pre-norm model's norm learns from the rows of memory as well."""
  config = tiny.model_config(pre_norm=pre_norm)
  tokens, targets, memory = tiny.inputs(config)

  def gradient(trains_memory):
    settings = mixer.Settings(returns_losses=True, trains_memory=trains_memory)
    model = network.Network(config, settings)

    def loss(params):
      losses, _ = model.apply(
        {"params": params}, tokens, targets, memory, method="nll"
      )
      return jnp.mean(losses)

    return jax.jit(jax.grad(loss))(tiny.params(config))

  constant, trained = gradient(False), gradient(True)
  assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(trained)) > 0.01
  # Sums in another order.
  comparison.assert_close(constant, trained, roundings=100)


def test_remat_recomputes():
  """Else the equality above would compare a program with itself."""
  texts = set()
  for remat in ("none", *block.REMAT_POLICIES):
    config = tiny.model_config(remat=remat)
    params = tiny.params(config)
    gradient = jax.grad(
      lambda params, config=config: tiny.mean_nll(config, params)
    )
    texts.add(str(jax.make_jaxpr(gradient)(params)))
  assert len(texts) == 1 + len(block.REMAT_POLICIES)


def test_states_of_the_last_layer_are_from_before_the_final_norm():
  """As `hidden_states` returns them; the softmax reads what is normalised."""
  config = tiny.model_config(final_norm=True)
  reader = reader_lib.Reader(
    config, mem_len=4, segment_len=3, clamp_len=0, same_length=False
  )
  frozen = reader.freeze(tiny.params(config))
  tokens, _, _ = tiny.inputs(config)
  state = reader.start(frozen, batch_size=tokens.shape[0])
  outputs, _ = reader.read_layers(frozen, state, tokens)
  read, _ = reader.read(frozen, state, tokens)
  model = network.Network(config).bind({"params": frozen.outside})
  np.testing.assert_array_equal(model.body.finish(outputs[-1]), read)
  assert np.abs(outputs[-1] - read).max() > 0.1


class WithLoss(attention.Attention):
  """Attention with a loss of each token: its place in the segment."""

  @nn.compact
  def __call__(self, hidden, state, shared, norm):
    output, kept = super().__call__(hidden, state, shared, norm)
    places = jnp.arange(hidden.shape[1], dtype=jnp.float32)
    loss = jnp.broadcast_to(places, hidden.shape[:2])
    return output, kept._replace(loss=loss)


def test_losses_of_mixers_are_those_of_the_targets(monkeypatch):
  monkeypatch.setattr(pattern.Place, "mixer", WithLoss)
  config = tiny.model_config(num_layers=3)
  model = network.Network(config, mixer.Settings(returns_losses=True))
  tokens = jnp.ones((2, 5), jnp.int32)
  state = network.empty_state(config, batch_size=2, mem_len=4, step_len=5)
  read = functools.partial(
    model.apply, dropout_lanes=None, method="training_losses"
  )
  losses, auxiliary, _ = jax.jit(read)(
    {"params": tiny.params(config)},
    tokens,
    tokens[:, 2:],  # The first two tokens are context, and have none.
    state,
    jnp.zeros((2, 5), bool),
  )
  assert losses.shape == (2, 3)
  np.testing.assert_array_equal(auxiliary.mixers, [[6, 9, 12]] * 2)
