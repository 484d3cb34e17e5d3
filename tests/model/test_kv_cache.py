"""Cached keys and values give what memory of hidden states gives."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from transformer_xl.model import kinds
from transformer_xl.model import kv_cache
from transformer_xl.model import parameters
from transformer_xl.model import transformer_xl
from transformer_xl.model.encodings import table

LANES = 3
VARIANTS = {
  "masked": ({"untie_biases": True, "cutoffs": (5, 11), "div_val": 2}, False),
  "zeros": ({"memory_start": "zeros"}, True),
  "pre_norm": ({"pre_norm": True, "same_length_window": "mem_len"}, True),
  "pre_norm_zeros": ({"pre_norm": True, "memory_start": "zeros"}, False),
  "shaw": ({"encoding": "shaw", "num_positions": 4}, False),
  "shaw_zeros": (
    {"encoding": "shaw", "pre_norm": True, "memory_start": "zeros"},
    True,
  ),
  "tied": ({"encoding": "relative_tied"}, False),
  "tied_zeros": (
    {"encoding": "relative_tied", "pre_norm": True, "memory_start": "zeros"},
    True,
  ),
  "absolute": ({"encoding": "absolute"}, False),
  "absolute_zeros": (
    {
      "encoding": "absolute",
      "memory_start": "zeros",
      "same_length_window": "mem_len",
    },
    True,
  ),
  "per_layer": ({"encoding": "absolute_per_layer", "pre_norm": True}, False),
  "per_layer_zeros": (
    {
      "encoding": "absolute_per_layer",
      "pre_norm": True,
      "memory_start": "zeros",
    },
    True,
  ),
  "rope": ({"encoding": "rope"}, False),
  "rope_zeros": (
    {"encoding": "rope", "pre_norm": True, "memory_start": "zeros"},
    True,
  ),
  "alibi": ({"encoding": "alibi", "num_heads": 3}, False),
  "alibi_zeros": (
    {"encoding": "alibi", "pre_norm": True, "memory_start": "zeros"},
    True,
  ),
  "none": ({"encoding": "none", "same_length_window": "mem_len"}, True),
  "few": ({"num_layers": 3, "memory_lens": ((1, 2), (1, 0), (1, 5))}, False),
  "few_zeros": (
    {
      "encoding": "rope",
      "pre_norm": True,
      "memory_start": "zeros",
      "memory_lens": ((1, 0), (1, 2)),
    },
    True,
  ),
}
# Memory longer and shorter than the segment, in whole segments and not; none.
LENGTHS = ((6, 3), (7, 3), (2, 4), (0, 3))
RELATIVE = ("masked", "zeros", "pre_norm", "pre_norm_zeros")
# Each of these and each pair of lengths is in one case that is always tried.
CASES = [
  pytest.param(
    variant, lengths, marks=() if first == second else pytest.mark.rest
  )
  for first, variant in enumerate(RELATIVE)
  for second, lengths in enumerate(LENGTHS)
]
OTHERS = [
  ("shaw", (7, 3)),
  ("tied_zeros", (2, 4)),
  ("absolute", (7, 3)),
  ("per_layer_zeros", (2, 4)),
  ("rope_zeros", (2, 4)),
  ("alibi", (7, 3)),
  ("few", (7, 3)),
  *(
    pytest.param(*case, marks=pytest.mark.rest)
    for case in (
      ("shaw_zeros", (2, 4)),
      ("tied", (7, 3)),
      ("absolute_zeros", (6, 3)),
      ("per_layer", (7, 3)),
      ("rope", (7, 3)),
      ("alibi_zeros", (2, 4)),
      ("none", (7, 3)),
      ("few_zeros", (6, 3)),
    )
  ),
]


def both(variant, mem_len, segment_len):
  """A model and a reader with the same parameters and lengths."""
  fields, same_length = VARIANTS[variant]
  config = tiny.model_config(**fields)
  clamp_len = 4 if table.of(config).clamps else 0
  lengths = {"clamp_len": clamp_len, "same_length": same_length}
  model = transformer_xl.TransformerXL(config, **lengths)
  reader = kv_cache.Reader(
    config, mem_len=mem_len, segment_len=segment_len, **lengths
  )
  return model, reader


def chunks(config, mem_len, segment_len, *, resets_inside):
  """Segments, part of one, then single tokens, with documents in between.

  Where positions count from the start of a segment, or without memory, the
  model of hidden states cannot read single tokens, so there are only segments
  and part of one.
  """
  random, vocab_size = np.random.default_rng(0), config.vocab_size
  steps = [segment_len] * 4 + [2] + [1] * 16
  if table.of(config).counts_from_segment or mem_len == 0:
    steps = [segment_len] * 9 + [2]
  for index, length in enumerate(steps):
    tokens = random.integers(vocab_size, size=(LANES, length), dtype=np.int32)
    resets = np.zeros((LANES, length), bool)
    resets[1, 0] = index in (2, 8)
    resets[2, -1] = resets_inside and index == 3
    yield jnp.asarray(tokens), jnp.asarray(resets)


@pytest.mark.parametrize(("variant", "lengths"), [*CASES, *OTHERS])
def test_a_ring_of_keys_and_values_is_a_memory_of_hidden_states(
  variant, lengths
):
  model, reader = both(variant, *lengths)
  params = tiny.params(model.config)
  frozen = jax.jit(reader.freeze)(params)
  state = reader.start(frozen, batch_size=LANES)
  memory = kinds.empty_memory(
    model.config, batch_size=LANES, mem_len=lengths[0]
  )
  assert len(jax.tree.leaves(state)) != len(jax.tree.leaves(memory))

  @jax.jit
  def expected(memory, tokens, resets):
    return model.apply(
      {"params": params}, tokens, memory, resets, method="log_probs"
    )

  step = jax.jit(reader.step)
  tokens_read = 0
  inside = model.config.memory_start == "masked"
  for tokens, resets in chunks(model.config, *lengths, resets_inside=inside):
    want, memory = expected(memory, tokens, resets)
    got, state = step(frozen, state, tokens, resets)
    # Sums in another order.
    comparison.assert_close(got, want, roundings=30)
    tokens_read += tokens.shape[1]
  assert tokens_read > 2 * np.max(reader.num_slots)  # The ring went around.


@pytest.mark.parametrize(
  ("variant", "mem_len"),
  [
    ("absolute_zeros", 6),
    ("per_layer_zeros", 6),
    ("absolute", 0),
    ("masked", 0),
    ("rope_zeros", 0),
    ("alibi", 0),
  ],
)
def test_single_tokens_read_as_whole_segments_do(variant, mem_len):
  """Positions are those in segments, and without memory all that is seen.

  With a memory and `same_length` nothing else depends on the cuts.
  """
  model, reader = both(variant, mem_len, 4)
  params = tiny.params(model.config)
  tokens = jnp.asarray(
    np.random.default_rng(3).integers(23, size=(LANES, 24)), jnp.int32
  )
  memory = kinds.empty_memory(model.config, batch_size=LANES, mem_len=mem_len)
  segment = jax.jit(
    lambda memory, tokens: model.apply(
      {"params": params}, tokens, memory, method="log_probs"
    )
  )
  expected = []
  for start in range(0, 24, 4):
    want, memory = segment(memory, tokens[:, start : start + 4])
    expected.append(want)
  expected = jnp.concatenate(expected, axis=1)
  frozen = reader.freeze(params)
  state = reader.start(frozen, batch_size=LANES)
  step = jax.jit(reader.step)
  for start in (0, 4, 8):  # The last one in part.
    chunk = tokens[:, start : min(start + 4, 10)]
    _, state = step(frozen, state, chunk)
  reader, frozen, state = reader.for_tokens(frozen, state)
  step = jax.jit(reader.step)
  for index in range(10, 24):
    token = tokens[:, index : index + 1]
    got, state = step(frozen, state, token)
    comparison.assert_close(got[:, 0], expected[:, index], roundings=30)


@pytest.mark.parametrize("variant", ["masked", "rope_zeros"])
def test_a_reset_without_memory_hides_the_segment_so_far(variant):
  _, reader = both(variant, 0, 8)
  frozen = reader.freeze(tiny.params(reader.config))
  reader, frozen, state = reader.for_tokens(
    frozen, reader.start(frozen, batch_size=LANES)
  )
  fresh = state
  step = jax.jit(reader.step)
  tokens = jnp.asarray(
    np.random.default_rng(4).integers(23, size=(LANES, 6)), jnp.int32
  )
  for index in range(6):
    token = tokens[:, index : index + 1]
    # The last two lanes start a document with their third token.
    resets = jnp.zeros((LANES, 1), bool).at[1:].set(index == 2)
    got, state = step(frozen, state, token, resets)
    if index >= 2:
      want, fresh = step(frozen, fresh, token)
      np.testing.assert_allclose(got[1:], want[1:], rtol=1e-5, atol=2e-5)
      assert index == 2 or np.abs(got[0] - want[0]).max() > 1e-3


def test_a_layer_has_the_ring_of_its_own_memory():
  _, reader = both("few", 7, 3)
  frozen = jax.eval_shape(reader.freeze, tiny.params(reader.config))
  state = jax.eval_shape(
    functools.partial(reader.start, batch_size=LANES), frozen
  )
  assert [cache.keys.shape[-1] for cache in state.layers] == [6, 12, 9]
  assert [terms.keys.once.shape[-1] for terms in frozen.distances] == [6, 12, 9]


def token_loop(reader):
  """Reads tokens [B, S] one by one in a compiled loop."""

  def loop(frozen, state, tokens):
    def body(state, token):
      log_probs, state = reader.step(frozen, state, token[:, None])
      return state, log_probs[:, 0]

    state, log_probs = jax.lax.scan(body, state, tokens.T)
    return jnp.swapaxes(log_probs, 0, 1), state

  return jax.jit(loop, donate_argnums=1)


@pytest.mark.parametrize("lanes", [1, LANES])
def test_a_loop_reads_as_single_steps_do(lanes):
  _, reader = both("masked", 6, 3)
  frozen = reader.freeze(tiny.params(reader.config))
  state = reader.start(frozen, batch_size=lanes)
  tokens = jnp.asarray(
    np.random.default_rng(1).integers(23, size=(lanes, 20)), jnp.int32
  )
  got, after = token_loop(reader)(frozen, state, tokens)
  step = jax.jit(reader.step)
  state = reader.start(frozen, batch_size=lanes)
  for index in range(tokens.shape[1]):
    want, state = step(frozen, state, tokens[:, index : index + 1])
    # The same products, compiled in another shape.
    comparison.assert_close(got[:, index], want[:, 0], roundings=30)
  comparison.assert_close(after, state, roundings=30)


@pytest.mark.parametrize(
  ("variant", "tokens_before"),
  [
    ("masked", 2),
    ("masked", 21),
    ("zeros", 7),
    ("rope", 21),
    ("rope_zeros", 7),
    ("alibi", 21),
    ("few", 21),
    pytest.param("few_zeros", 7, marks=pytest.mark.rest),
  ],
)
def test_tokens_go_on_in_rings_without_slots_to_spare(variant, tokens_before):
  _, reader = both(variant, 6, 4)
  frozen = reader.freeze(tiny.params(reader.config))
  tokens = jnp.asarray(
    np.random.default_rng(2).integers(23, size=(LANES, 40)), jnp.int32
  )
  step = jax.jit(reader.step)
  state = reader.start(frozen, batch_size=LANES)
  read = 0
  while read < tokens_before:  # Segments, then part of one.
    count = min(reader.segment_len, tokens_before - read)
    _, state = step(frozen, state, tokens[:, read : read + count])
    read += count
  tight, tight_frozen, tight_state = reader.for_tokens(frozen, state)
  counts = np.max(tight.num_slots), np.max(reader.num_slots)
  assert counts == (7, 12)
  tight_step = jax.jit(tight.step)
  for index in range(tokens_before, 40):
    token = tokens[:, index : index + 1]
    want, state = step(frozen, state, token)
    got, tight_state = tight_step(tight_frozen, tight_state, token)
    # The same sums, of which some have fewer zeros in them.
    comparison.assert_close(got, want, roundings=30)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_token_copies_no_rings(lanes):
  _, reader = both("masked", 60, 4)
  frozen = reader.freeze(tiny.params(reader.config))
  state = reader.start(frozen, batch_size=lanes)
  tokens = jnp.zeros((lanes, 5), jnp.int32)
  # As users compile, not as the tests do.
  options = {"xla_backend_optimization_level": "3"} | tiny.TO_THE_BIT
  lowered = token_loop(reader).lower(frozen, state, tokens)
  text = lowered.compile(compiler_options=options).as_text()
  copied = re.findall(r"= f32\[([\d,]*)\]\S* copy\(", text)
  sizes = [math.prod(map(int, shape.split(","))) for shape in copied if shape]
  assert "while" in text
  assert max(sizes, default=0) < state.layers[0].keys.size


@pytest.mark.parametrize(
  "variant", [{}, {"cutoffs": (9,), "div_val": 2}, {"tie_weights": False}]
)
def test_no_step_casts_a_matrix_that_could_be_cast_once(variant, monkeypatch):
  config = tiny.model_config(dtype="bfloat16", **variant)
  reader = kv_cache.Reader(
    config, mem_len=6, segment_len=3, clamp_len=0, same_length=False
  )
  params, (tokens, _, _) = tiny.params(config), tiny.inputs(config)
  step = jax.jit(reader.step)

  def read():
    frozen = reader.freeze(params)
    state = reader.start(frozen, batch_size=tiny.LANES)
    return frozen, step(frozen, state, tokens)

  frozen, found = read()
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    (frozen.params, frozen.layers)
  ):
    is_wide = path[-1].key.endswith("bias") or path[-1].key == "scale"
    assert leaf.dtype == ("float32" if is_wide else "bfloat16")
  monkeypatch.setattr(parameters, "in_compute_type", lambda params, _: params)
  _, expected = read()
  for leaf, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_array_equal(
      np.asarray(leaf, "float32"), np.asarray(other, "float32")
    )
