"""The package's network and reader equal the brute-force oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import kinds
from tests import oracle
from tests import oracles
from tests import tiny
from tests.conformance import adapters
from tests.oracles.cases import MASKED
from tests.oracles.cases import MODERN
from tests.oracles.cases import ZEROS
from tests.oracles.cases import Case
from transformer_xl.config import registry
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.model.mixers import mixer as mixer_lib

# Float32 against float64, in shares of the largest log-probability: some ten
# roundings. A wrong distance or window changes results by a thousand times as
# much; see `test_mutants`.
ROUNDING = 2e-6


# These concern all mixers and encodings; each has cases of its own in its file.
CASES = (
  # Memory longer than, as long as and shorter than the segment, and none.
  Case(3, 7, 0, None, MASKED),
  Case(5, 2, 0, None, MASKED),
  Case(4, 0, 0, None, MASKED),
  Case(4, 0, 0, "mem_len_plus_one", MASKED),
  Case(1, 1, 0, "mem_len", MASKED),
  # Embeddings and softmax; `test_adaptive_softmax` has all combinations.
  Case(2, 3, 0, None, {"cutoffs": (5, 11), "div_val": 2, "embed_dim": 12}),
  # A block of today.
  Case(3, 7, 2, None, MODERN),
  # Gated residuals.
  Case(3, 4, 0, None, {"residual": "gru", "pre_norm": True}),
  # Memory tokens beside memory, and alone.
  Case(3, 7, 4, None, {"num_memory_tokens": 2}),
  Case(4, 0, 0, None, {"num_memory_tokens": 3, "pre_norm": True}),
  # Layers that remember less, repeated, with a limit that is not reached.
  Case(
    *(3, 7, 4, None),
    {"num_layers": 6, "layers": ("attention:2", "attention:2", "attention")},
  ),
  # Several mixers that hand on states.
  Case(
    *(4, 0, 0, None),
    {
      "layers": (*kinds.mixers(attends=False, Fields=None), "attention"),
      "num_layers": 3,
    },
  ),
)
# The same values in other company.
REST = (
  Case(5, 2, 6, "mem_len_plus_one", MASKED),
  Case(
    2,
    3,
    2,
    "mem_len",
    ZEROS | {"cutoffs": (4,), "div_val": 4, "pre_norm": True},
  ),
  Case(3, 4, 0, None, {"norm": "rms", "untie_biases": True}),
  Case(3, 4, 0, None, {"residual": "gru", "layers": (kinds.recurrent(),)}),
  Case(
    *(3, 4, 0, "mem_len"),
    {"num_memory_tokens": 2, "layers": (kinds.recurrent(), "attention")},
  ),
  Case(4, 4, 0, None, ZEROS),
  Case(1, 4, 0, None, ZEROS),
  Case(2, 1, 0, None, ZEROS),
  Case(5, 2, 1, "mem_len", ZEROS),
  Case(4, 0, 3, "mem_len", MASKED),
  *(
    Case(4, 3, 0, None, {"layers": (mixer,), **fields, "encoding": encoding})
    for mixer in kinds.mixers(keys_are_tokens=False)
    for fields in adapters.each_choice(mixer)
    for encoding in registry.encodings
  ),
  *(
    Case(
      *(4, 6, 0, None),
      {"layers": (kinds.recurrent(), "attention:3"), "encoding": name},
    )
    for name in registry.encodings
  ),
)


def _owned(what):
  """The cases of single mixers and encodings, with the names of these."""
  return [
    (name, case)
    for name in (*registry.mixers, *registry.encodings)
    for case in oracles.get(name, what, ())
  ]


def _name(case):
  lengths = f"{case.segment_len}-{case.mem_len}-{case.clamp_len}"
  layers = case.model.get("layers", ())
  encoding = case.model.get("encoding", "relative")
  return "-".join([lengths, str(case.window), encoding, *case.model, *layers])


ALL = [
  *(pytest.param(case, id=_name(case)) for case in CASES),
  *(
    pytest.param(case, id=f"{name}-{_name(case)}")
    for name, case in _owned("CASES")
  ),
  *(
    pytest.param(case, id=_name(case), marks=pytest.mark.rest) for case in REST
  ),
  *(
    pytest.param(case, id=f"{name}-{_name(case)}", marks=pytest.mark.rest)
    for name, case in _owned("REST")
  ),
]


def _adapter(case: Case, kind=adapters.Package):
  return kind(
    mem_len=case.mem_len,
    same_length=case.window is not None,
    clamp_len=case.clamp_len,
    **{"same_length_window": case.window or "mem_len"} | case.model,
  )


def test_every_mixer_has_rules_and_a_case():
  tried = {"attention": CASES}
  for name in registry.mixers:
    tried[name] = tried.get(name) or oracles.get(name, "CASES")
    assert any(
      name in tiny.model_config(**case.model).mixers for case in tried[name]
    )


def test_every_encoding_has_a_case():
  for name in registry.encodings:
    tried = oracles.get(name, "CASES") + oracles.get(name, "REST")
    assert any(case.model.get("encoding", "relative") == name for case in tried)


@pytest.mark.parametrize("name", [*registry.mixers])
def test_a_mixer_says_what_it_costs_and_how_far_it_reaches(name):
  config = tiny.model_config(layers=(name,))
  mixer = registry.mixers[name]
  flops = mixer.flops(config, mixer_lib.Reading(segment_len=4, mem_len=8))
  assert flops > config.model_dim
  reach = mixer.remembered_tokens(config, 8)
  hands_on_vectors = not mixer.attends or mixer.writes_segments
  assert (reach is None) == hands_on_vectors
  assert reach is None or reach >= 8
  assert mixer.remembered_tokens(config, 0) == 0


@pytest.mark.some(16)
@pytest.mark.parametrize("case", ALL)
def test_segments_of_the_network_equal_the_oracle(
  case, strict_dtypes, counting
):
  adapter = _adapter(case)
  counting("oracle", adapter)
  # After a reset of the whole lane another segment is read.
  lengths = [case.segment_len] * (11 if adapter.compresses else 5)
  assert worst_difference(adapter, lengths) < ROUNDING


@pytest.mark.some(11)
@pytest.mark.parametrize("case", ALL)
def test_steps_of_the_reader_equal_the_oracle(case, strict_dtypes, counting):
  """Segments, one of which a single token counts, and then single tokens."""
  adapter = _adapter(case)
  counting("oracle", _adapter(case, adapters.FrozenPackage))
  reader = reader_lib.Reader(
    adapter.config,
    mem_len=case.mem_len,
    segment_len=case.segment_len,
    clamp_len=case.clamp_len,
    same_length=adapter.same_length,
  )
  frozen = jax.jit(reader.freeze)(adapter.init(0))
  state = reader.start(frozen, batch_size=2)
  lengths = [case.segment_len] * (10 if adapter.compresses else 5)
  num_segments = len(lengths)
  if not (adapter.own_positions or adapter.writes) and case.mem_len:
    lengths += [1] * 6
  step = jax.jit(reader.step)
  worst = 0.0
  for index, found in enumerate(_steps(adapter, lengths)):
    tokens, resets, expected = found
    if index == num_segments:  # The first token of a padded segment.
      padded = jnp.tile(tokens, (1, case.segment_len))
      _, state = jax.jit(reader.read)(frozen, state, padded, count=1)
      reader, frozen, state = reader.for_tokens(frozen, state)
      step = jax.jit(reader.step)
      continue
    log_probs, state = step(frozen, state, tokens, resets)
    worst = max(worst, _relative(log_probs, expected))
  assert worst < ROUNDING


def worst_difference(adapter, lengths: list[int]) -> float:
  """Worst relative difference over segments of these lengths.

  States must keep their shapes and types, as a scan needs.
  """
  params = adapter.init(0)
  memory = network.empty_state(
    adapter.config,
    batch_size=2,
    mem_len=adapter.mem_len,
    step_len=lengths[0],
  )
  worst = 0.0
  for tokens, resets, expected in _steps(adapter, lengths):
    before = _types(memory)
    actual, memory = adapter.step(params, tokens, memory, resets)
    assert _types(memory) == before
    worst = max(worst, _relative(actual, expected))
  return worst


def _types(tree):
  return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def _relative(actual, expected: np.ndarray) -> float:
  return float(np.abs(actual - expected).max() / np.abs(expected).max())


def _steps(adapter, lengths: list[int]):
  """Yields tokens and resets of steps, and what the oracle makes of them."""
  config = adapter.config
  params = tiny.params(config)
  generator = np.random.default_rng(2)
  lanes = oracle.start(config, batch_size=2, mem_len=adapter.mem_len)
  num_read = 0
  for index, length in enumerate(lengths):
    shape = (2, length)
    tokens = generator.integers(adapter.vocab_size, size=shape, dtype=np.int32)
    resets = np.zeros(shape, bool)
    resets[0, 0] = index == 3
    if index in (2, 9):  # Attended zeros: only whole lanes can be reset.
      resets[1, length // 2 if adapter.masks_empty else 0] = True
    if index == 4 and adapter.masks_empty:
      resets[1, -1] = True
    expected, lanes = oracle.segment(
      params,
      config,
      tokens,
      lanes,
      mem_len=adapter.mem_len,
      clamp_len=adapter.clamp_len,
      same_length=adapter.same_length,
      waiting=oracle.waiting(config, num_read),
      resets=resets,
    )
    num_read += length
    yield jnp.asarray(tokens), jnp.asarray(resets), expected
