"""Operations of a token, counted from the model's own masks and parameters."""

import collections
import contextlib
import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import kinds
from tests import oracles
from tests import tiny
from tests.conformance import adapters
from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.model import layers
from transformer_xl.model import network
from transformer_xl.model.kernels import xla_attention
from transformer_xl.model.mixers import mixer as mixer_lib

# Segments within which every state comes round again.
PERIOD = 6
WINDOWS = ("", "mem_len", "mem_len_plus_one")  # "" without `same_length`.
# Memories that are absent, shorter than a segment of 5, and longer.
READINGS = [
  mixer_lib.Reading(segment_len=5, mem_len=mem_len, step_len=step_len)
  for mem_len in (0, 1, 3, 12)
  for step_len in (0, 1)
  if mem_len or not step_len
]
READINGS.append(mixer_lib.Reading(segment_len=5, mem_len=0, context_len=4))
READINGS.append(mixer_lib.Reading(segment_len=6, mem_len=7))
MORE_MODELS = [
  {"num_kv_heads": 1},
  {"num_kv_heads": 2, "qk_norm": True},
  {"head_dim": 3},
]


def layer_config(name, **updates):
  """A model of one layer, with biases of its own."""
  sizes = {"model_dim": 16, "num_heads": 4}
  shared = {"layers": (name,), "num_layers": 1, "untie_biases": True}
  return tiny.model_config(**sizes | shared | updates)


def pairs_and_parameters(config, reading):
  """Pairs of query and key a token, by the masks of a layer with a full state.

  The pairs are those of attention in the layer, "near", and those that the
  mixer's own file names. They are means over the tokens of whole segments in
  which the state comes round again. Of the mixer's parameters, there are the
  shapes.
  """
  name = config.layers[0]
  kind = registry.mixers[name]
  watched = oracles.get(name, "watched", contextlib.nullcontext)
  once = oracles.get(name, "ONCE_A_SEGMENT", ())
  settings = mixer_lib.Settings(same_length=reading.same_length, inspects=True)
  module = kind(config, settings)
  step_len = reading.step_len or reading.segment_len + reading.context_len
  state = kind.empty_state(
    config, batch_size=1, mem_len=reading.mem_len, step_len=step_len
  )
  masks = {}
  shapes = {}

  @jax.jit
  def read(scalars, length, position):
    """The masks, and the numbers in the next state; no array is computed."""
    masks.clear()
    leaves, tree = jax.tree.flatten(state)
    numbers = iter(scalars)
    full = [leaf if leaf.ndim else next(numbers) for leaf in leaves]
    full = jax.tree.unflatten(tree, full)
    hidden = jnp.zeros((1, step_len, config.model_dim))
    shared = layers.share(length, None, (1, step_len))
    step = mixer_lib.Step(position, first_position=position, num_tokens=None)
    shared = shared._replace(
      step=step if reading.step_len else None,
      distances=layers.encode_distances(
        config, (full,), segment_len=step_len, clamp_len=0
      ),
    )
    with watched(masks):
      # Keys of this kind compile faster.
      (_, kept), variables = module.init_with_output(
        jax.random.key(0, impl="rbg"), hidden, full, shared, mixer_lib.identity
      )
    shapes.update(jax.eval_shape(lambda: nn.unbox(variables["params"])))
    if kept.inspected is not None:
      num_keys = kept.inspected.key.shape[1]
      near = xla_attention.visible_mask(kept.inspected.reach, num_keys)
      masks["near"] = near.sum(axis=2)
    numbers = [leaf for leaf in jax.tree.leaves(kept.state) if not leaf.ndim]
    return numbers, dict(masks)

  scalars = [leaf for leaf in jax.tree.leaves(state) if not leaf.ndim]
  warmup = 40 * reading.segment_len
  counted = PERIOD * reading.segment_len
  sums = collections.Counter()
  for start in range(0, warmup + counted, step_len - reading.context_len):
    position = start % reading.segment_len
    length = 0 if reading.context_len else start
    scalars, found = read(scalars, np.int32([length]), np.int32(position))
    if start < warmup:
      continue
    for name, keys in found.items():
      num_keys = np.asarray(keys[0])
      if name in once:
        sums[name] += 0 if position else num_keys.sum() / counted
      else:
        sums[name] += num_keys[reading.context_len :].sum() / counted
  return sums, shapes


def counted_by_hand(config, reading, score_products):
  """Operations of a layer's mixer for a token.

  Every entry of a matrix is one multiply-add a token, but where the mixer's own
  file says how often it multiplies, and every visible pair one for each channel
  and product.
  """
  pairs, params = pairs_and_parameters(config, reading)
  # Keys of distances are those of all tokens.
  times = {"position": 0, "distances": 0}
  total = 0.0
  if own := oracles.get(config.layers[0], "work"):
    more, own_times = own(config, reading, pairs)
    total += 2 * more
    times |= own_times
  for path, leaf in jax.tree.leaves_with_path(params):
    names = [entry.key for entry in path]
    if leaf.ndim < 2 or names[-1].endswith(("bias", "scale")):
      continue
    total += 2 * leaf.size * times.get(names[0], 1)
  width = config.num_heads * config.head_dim
  total += 2 * width * score_products * pairs["near"]
  return total


def assert_counted(config, reading, score_products=3):
  mixer = registry.mixers[config.layers[0]]
  right = counted_by_hand(config, reading, score_products)
  assert mixer.flops(config, reading) == pytest.approx(right, rel=1e-6)


@pytest.mark.some(41)  # With 40, all would have one of two readings.
@pytest.mark.parametrize("reading", READINGS, ids=str)
@pytest.mark.parametrize(
  ("name", "window"),
  [
    # Only attention has a window.
    pytest.param(
      name,
      window,
      marks=pytest.mark.rest if window and not mixer.attends else (),
    )
    for name, mixer in registry.mixers.items()
    for window in WINDOWS
  ],
)
def test_a_mixer_counts_the_keys_that_its_masks_show(name, window, reading):
  config = layer_config(name, same_length_window=window or "mem_len")
  reading = reading._replace(same_length=bool(window))
  assert_counted(config, reading)


@pytest.mark.some(12)
@pytest.mark.parametrize("model", MORE_MODELS, ids=str)
@pytest.mark.parametrize("name", [*registry.mixers])
def test_a_mixer_counts_the_matrices_that_it_has(name, model):
  try:
    config = layer_config(name, **model)
  except errors.UserError as error:
    assert "num_kv_heads" in model
    pytest.skip(str(error))
  assert_counted(config, mixer_lib.Reading(5, 12, same_length=True))


@pytest.mark.parametrize(
  ("name", "field", "value"),
  [
    (name, field, value)
    for name in registry.mixers
    for field, values in adapters.choices(name).items()
    for value in values
  ],
)
def test_each_choice_of_a_mixer_counts_its_matrices(name, field, value):
  config = layer_config(name, **{f"{name}.{field}": value})
  assert_counted(config, mixer_lib.Reading(4, 5))


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
  "name", [name for name in registry.mixers if oracles.get(name, "VALUES")]
)
def test_other_sizes_of_a_mixer_count(name, index):
  values = oracles.get(name, "VALUES").items()
  own = {f"{name}.{field}": both[index] for field, both in values}
  reading = mixer_lib.Reading(5, 12, same_length=bool(index))
  assert_counted(layer_config(name, **own), reading)


def products(function, *args):
  """Operations of all matrix products of a function, masked ones as well."""

  def count(jaxpr):
    total = 0
    for equation in jaxpr.eqns:
      if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        size = math.prod(left[axis] for axis in contracted)
        total += 2 * size * math.prod(equation.outvars[0].aval.shape)
      inner = jax.core.jaxprs_in_params(equation.params)
      total += equation.params.get("length", 1) * sum(map(count, inner))
    return total

  return count(jax.make_jaxpr(function)(*args).jaxpr)


@pytest.mark.some(4)
@pytest.mark.parametrize("encoding", [*registry.encodings])
def test_an_encoding_has_the_products_that_attention_computes(encoding):
  """Those whose size grows with queries and keys, from the program itself."""
  config = layer_config("attention", encoding=encoding, num_positions=64)
  module = registry.mixers["attention"](config, mixer_lib.Settings())

  def work(segment_len, mem_len):
    state = module.empty_state(
      config, batch_size=1, mem_len=mem_len, step_len=segment_len
    )
    shared = layers.share(jnp.zeros(1, jnp.int32), None, (1, segment_len))
    shared = shared._replace(
      distances=layers.encode_distances(
        config, (state,), segment_len=segment_len, clamp_len=0
      )
    )

    def read(hidden):
      return module.init_with_output(
        jax.random.key(0), hidden, state, shared, mixer_lib.identity
      )

    return products(read, jnp.zeros((1, segment_len, config.model_dim)))

  # Work that grows with segment or memory alone cancels.
  both = work(10, 14) - work(6, 14) - work(10, 8) + work(6, 8)
  width = config.num_heads * config.head_dim
  found = both / (2 * width * (10 - 6) * (14 - 8))
  assert found == registry.encodings[encoding].score_products


@pytest.mark.parametrize(
  "encoding",
  [
    # Models of other tests have the usual encoding, of three products.
    pytest.param(
      encoding,
      marks=(
        () if encoding == kinds.encoding(score_products=2) else pytest.mark.rest
      ),
    )
    for encoding in registry.encodings
  ],
)
@pytest.mark.parametrize("name", kinds.mixers(attends=True))
def test_a_mixer_counts_the_products_of_its_encoding(name, encoding):
  config = layer_config(name, encoding=encoding, num_positions=64)
  products = registry.encodings[encoding].score_products
  assert_counted(config, mixer_lib.Reading(5, 12), products)


ENDS = [
  {},
  {"embed_dim": 6},
  {"embed_dim": 6, "tie_weights": False, "tie_projections": "none"},
  {"embed_dim": 6, "cutoffs": (5, 9)},
  {"cutoffs": (5, 9), "div_val": 2},
  {"cutoffs": (5, 9), "div_val": 2, "project_equal_width": False},
  {"embed_dim": 4, "cutoffs": (5, 9), "div_val": 2},
]


@pytest.mark.some(7)
@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize(
  ("feed_forward", "residual"),
  [("relu", "add"), ("swiglu", "gru"), ("geglu", "add")],
)
def test_a_model_counts_its_shortlist_layers_and_projections(
  ends, feed_forward, residual
):
  """Of matrices, those that a word of the shortlist is multiplied by."""
  config = tiny.model_config(
    **ends,
    feed_forward=feed_forward,
    residual=residual,
    layers=("attention:2", kinds.recurrent()),
  )
  params = network.abstract_params(config)
  ends = (*config.cutoffs, config.vocab_size)
  total = 2 * config.embed_dim * (ends[0] + len(config.cutoffs))
  projection = params["embedding"].get("projection_0")
  if projection is not None:  # Of the input and of the output.
    total += 2 * 2 * projection.size
  for place in params["layers"].values():
    parts = ("feed_forward", "mixer_gate", "feed_forward_gate")
    leaves = jax.tree.leaves({part: place.get(part) for part in parts})
    total += sum(2 * leaf.size for leaf in leaves if leaf.ndim == 3)
  for window in (False, True):
    layers = [
      registry.mixers[name].flops(
        config, mixer_lib.Reading(4, mem_len, same_length=window)
      )
      for name, mem_len in (("attention", 2), (kinds.recurrent(), 7))
    ]
    assert network.forward_flops_per_token(
      config, segment_len=4, mem_len=7, same_length=window
    ) == pytest.approx(total + sum(layers))


def test_heads_of_keys_that_queries_share_cost_less():
  """A model whose operations were counted by hand."""
  plain = tiny.model_config(
    num_layers=12,
    model_dim=512,
    num_heads=16,
    head_dim=32,
    ff_dim=1024,
    encoding=kinds.encoding(rotates=True),
  )
  shared = dataclasses.replace(plain, num_kv_heads=1)
  works = [
    network.forward_flops_per_token(config, segment_len=128, mem_len=128)
    for config in (plain, shared)
  ]
  # 15 heads of 32 channels less, for keys and values, in 12 layers.
  assert works[0] - works[1] == 12 * 2 * 2 * 512 * 15 * 32


@pytest.mark.parametrize("name", [*registry.mixers])
def test_without_memory_single_tokens_cost_what_segments_do(name):
  """What was read of the segment is held, so a token sees as much."""
  config = layer_config(name)
  works = [
    network.forward_flops_per_token(
      config, segment_len=5, mem_len=0, step_len=step_len
    )
    for step_len in (0, 1)
  ]
  assert works[0] == works[1]
