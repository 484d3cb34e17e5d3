"""Layers without a vocabulary: the network's own, on vectors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import bridge

from tests import kinds
from tests import tiny
from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.model import layers as layers_lib
from transformer_xl.model import layers_reader
from transformer_xl.model import network
from transformer_xl.model import parameters

MODELS = {
  "attention": {"untie_biases": False},
  "pre-norm, sinusoids added once": {
    **{"encoding": "absolute", "pre_norm": True, "final_norm": True},
  },
  "a hybrid": {
    "layers": (kinds.recurrent(), "attention"),
    "encoding": kinds.encoding(rotates=True),
  },
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def config(request):
  return tiny.model_config(**request.param)


@functools.cache
def inputs(config):
  """Vectors of a text, and parameters of the layers that read them."""
  generator = np.random.default_rng(0)
  shape = (tiny.LANES, 6, config.model_dim)
  vectors = jnp.asarray(generator.standard_normal(shape), jnp.float32)
  shapes = jax.eval_shape(
    lambda: layers_lib.init_params(config, jax.random.key(0))
  )
  return vectors, tiny.draw(shapes)


@functools.cache
def empty(config):
  return layers_lib.empty_state(
    config, batch_size=tiny.LANES, mem_len=8, step_len=3
  )


@functools.partial(jax.jit, static_argnums=0)
def read(config, params, vectors, state, resets=None):
  return layers_lib.Layers(config).apply(
    {"params": params}, vectors, state, resets
  )


def test_a_network_is_an_embedding_layers_and_a_softmax(config):
  params = tiny.params(config)
  tokens, _, memory = tiny.inputs(config)
  resets = jnp.zeros(tokens.shape, bool).at[0, 1].set(True)
  inside = {
    name: tree
    for name, tree in params.items()
    if name not in ("embedding", "softmax")
  }

  @jax.jit
  def both(params, inside):
    model = network.Network(config).bind({"params": params})
    vectors = model.embed(tokens)
    return (
      model(tokens, memory, resets),
      read(config, inside, vectors, memory, resets),
    )

  expected, found = both(params, inside)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  (hidden, _), (unlike, _) = found, tiny.apply(config, params, tokens, memory)
  assert np.abs(hidden[0] - unlike[0]).max() > 0.01


def test_layers_are_an_nnx_module_by_flax_own_bridge(config):
  vectors, params = inputs(config)
  state = empty(config)

  @nnx.jit
  def drawn():
    model = bridge.ToNNX(layers_lib.Layers(config), rngs=nnx.Rngs(0))
    return bridge.lazy_init(model, vectors, state)

  graph, own, rest = nnx.split(drawn(), nnx.Param, ...)
  named = nnx.to_pure_dict(own)
  assert jax.tree.structure(named) == jax.tree.structure(params)
  nnx.replace_by_pure_dict(own, params)
  model = nnx.merge(graph, own, rest)

  def loss(model):
    outputs, after = model(vectors, state)
    return jnp.mean(jnp.square(outputs)), (outputs, after)

  def linen_loss(params):
    outputs, after = read(config, params, vectors, state)
    return jnp.mean(jnp.square(outputs)), (outputs, after)

  gradient, found = nnx.jit(nnx.grad(loss, has_aux=True))(model)
  of_params = jax.jit(jax.grad(linen_loss, has_aux=True))
  expected_gradient, expected = of_params(params)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  jax.tree.map(
    lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5),
    nnx.to_pure_dict(gradient),
    expected_gradient,
  )


def started(config, params, *, segment_len=3, step_len=0):
  """A reader, the parameters as it takes them, and its first state."""
  reader = layers_reader.LayersReader(
    config,
    mem_len=8,
    segment_len=segment_len,
    clamp_len=0,
    same_length=False,
    step_len=step_len,
  )
  frozen = reader.freeze(params)
  return reader, frozen, reader.start(frozen, batch_size=tiny.LANES)


@pytest.mark.parametrize(
  "config",
  [
    pytest.param(
      model, id=name, marks=() if "layers" in model else pytest.mark.rest
    )
    for name, model in MODELS.items()
  ],
  indirect=True,
)
def test_a_reader_with_fixed_parameters_gives_the_same_in_any_steps(config):
  vectors, params = inputs(config)
  expected = []
  state = empty(config)
  for start in (0, 3):
    part, state = read(config, params, vectors[:, start : start + 3], state)
    expected.append(part)
  reader, frozen, state = started(config, params)
  found, state = reader.read(frozen, state, vectors[:, :3])
  parts = [found]
  reader, frozen, state = reader.for_tokens(frozen, state)
  for place in range(3, 6):
    part, state = reader.read(frozen, state, vectors[:, place : place + 1])
    parts.append(part)
  np.testing.assert_allclose(
    np.concatenate(parts, axis=1),
    np.concatenate(expected, axis=1),
    rtol=2e-4,
    atol=2e-5,
  )


@pytest.mark.parametrize(("step_len", "most"), [(0, 3), (2, 2)])
def test_a_reader_refuses_a_step_that_is_too_long_for_it(step_len, most):
  """Its ring of keys would be written in other places."""
  config = tiny.model_config()
  vectors, params = inputs(config)
  reader, frozen, state = started(config, params, step_len=step_len)
  said = f"{most + 1} vectors and this reader takes {most} at most"
  with pytest.raises(errors.UserError, match=said):
    reader.read(frozen, state, vectors[:, : most + 1])
  reader.read(frozen, state, vectors[:, :most])


def test_a_reader_refuses_a_step_around_its_ring():
  """Two segments of memory and one step are twelve slots."""
  config = tiny.model_config()
  vectors, params = inputs(config)
  reader, frozen, state = started(config, params, segment_len=4)
  for num_vectors in (4, 3, 4):
    _, state = reader.read(frozen, state, vectors[:, :num_vectors])
  with pytest.raises(errors.UserError, match="2 vectors does not fit"):
    reader.read(frozen, state, vectors[:, :2])
  reader.read(frozen, state, vectors[:, :1])


def test_a_reader_refuses_resets_beside_padding():
  config = tiny.model_config()
  vectors, params = inputs(config)
  reader, frozen, state = started(config, params)
  resets = jnp.zeros((tiny.LANES, 3), bool)
  count = jnp.int32(2)
  with pytest.raises(errors.UserError, match="resets and padding"):
    reader.read(frozen, state, vectors[:, :3], resets, count)


def test_layers_refuse_explicit_axes_and_64_bits():
  config = tiny.model_config()
  vectors, params = inputs(config)
  mesh = jax.make_mesh((1,), ("data",))
  with jax.set_mesh(mesh), pytest.raises(errors.UserError, match="Auto"):
    read(config, params, vectors, empty(config))
  with jax.enable_x64(True), pytest.raises(errors.UserError, match="64-bit"):
    read(config, params, vectors, empty(config))
  reader = layers_reader.LayersReader(
    config, mem_len=8, segment_len=3, clamp_len=0, same_length=False
  )
  with jax.enable_x64(True), pytest.raises(errors.UserError, match="64-bit"):
    reader.freeze(params)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", registry.mixers)
def test_parameters_are_computed_with_as_a_reader_rounds_them(name):
  """Training and a reader would differ otherwise."""
  updates = {
    path.removeprefix("model."): value
    for path, value in kinds.model(name).items()
    if path.startswith("model.")
  }
  updates |= {"dtype": "bfloat16", "pre_norm": True, "num_layers": 1}
  config = tiny.model_config(**updates)
  vectors, params = inputs(config)
  rounded = jax.tree.map(
    lambda leaf: np.asarray(leaf, np.float32),
    parameters.in_compute_type(params, config),
  )
  changed = jax.tree.map(
    lambda one, other: (np.asarray(one) != other).any(), params, rounded
  )
  assert any(jax.tree.leaves(changed))
  # XLA rounds where the program does, on every processor.
  options = {"xla_allow_excess_precision": False}
  own_read = jax.jit(read, static_argnums=0, compiler_options=options)
  state = empty(config)
  vectors = vectors.astype(jnp.bfloat16)
  expected, _ = own_read(config, params, vectors, state)
  found, _ = own_read(config, rounded, vectors, state)
  np.testing.assert_array_equal(found, expected)
