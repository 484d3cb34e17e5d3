"""Evaluation on cached keys and values against memory of hidden states."""

import types

import jax
import numpy as np
import pytest

from tests import corpus
from tests import kinds
from tests import tiny
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluator
from transformer_xl.evaluation import per_token
from transformer_xl.evaluation import protocol
from transformer_xl.model import network
from transformer_xl.model import reader
from transformer_xl.workdir import trained_model

# Memory in whole segments, in parts of one, shorter than one, and none; the
# split's 149 pairs divide by none of the segments. The mixers and encodings
# themselves are compared in `tests/conformance`.
CASES = {
  "masked": (16, 8, {"model.untie_biases": True, "eval.clamp_len": 5}),
  "documents": (
    *(10, 4),
    {"data.reset_at_documents": True, "model.pre_norm": True},
  ),
  "same_length": (
    *(10, 8),
    {
      "eval.same_length": True,
      "model.same_length_window": "mem_len",
      "model.cutoffs": (5, 11),
      "model.div_val": 2,
    },
  ),
  "zeros": (3, 7, {"model.memory_start": "zeros", "eval.same_length": True}),
  "warm_up": (0, 8, {"eval.warmup_len": 20}),
  "context": (0, 8, {"eval.context_len": 6, "eval.mem_len": (0,)}),
  "hybrid": (
    *(10, 8),
    {
      "model.layers": (kinds.recurrent(), "attention:4"),
      "data.reset_at_documents": True,
    },
  ),
}


# They have the rules of windows, starts, documents and context between them.
SOME = ("same_length", "zeros", "context", "hybrid")


@pytest.mark.some(2)
@pytest.mark.parametrize(
  "case",
  [
    pytest.param(name, marks=() if name in SOME else pytest.mark.rest)
    for name in CASES
  ],
)
def test_cached_keys_and_values_score_as_hidden_states(data_dir, case):
  mem_len, segment_len, updates = CASES[case]
  config = corpus.config(
    data_dir, **updates, **{"eval.segment_len": segment_len}
  )
  mesh = mesh_lib.make_mesh(config.mesh)
  params = tiny.params(config.model)
  scores, states = {}, {}
  with jax.set_mesh(mesh):
    for memory in ("hidden", "key_value"):
      chosen = load.replaced(config, {"eval.memory": memory})
      made = evaluator.Evaluator(chosen.scoring, mesh, mem_len=mem_len)
      states[memory] = jax.eval_shape(
        made.mesh_reader.start, made.mesh_reader.freeze(params)
      )
      scores[memory] = made(params)
  assert type(states["hidden"]) is network.State
  assert type(states["key_value"]) is reader.State
  assert scores["key_value"].num_tokens == scores["hidden"].num_tokens == 149
  # Sums of the same float32 products in another order.
  assert scores["key_value"].nll == pytest.approx(
    scores["hidden"].nll, rel=2e-6
  )


@pytest.mark.parametrize(
  ("device", "tensor", "updates", "expected"),
  [
    ("cpu", 1, {}, "key_value"),
    ("TPU v5 lite", 1, {}, "key_value"),
    ("TPU v4", 1, {}, "hidden"),
    ("TPU v5 lite", 2, {}, "hidden"),
    ("TPU v5 lite", 1, {"eval.segment_len": 24}, "hidden"),  # R is 120.
    ("TPU v5 lite", 1, {"model.attention": "xla"}, "hidden"),
    ("TPU v5 lite", 1, {"eval.memory": "hidden"}, "hidden"),
    ("TPU v4", 1, {"eval.memory": "key_value"}, "key_value"),
    (
      *("TPU v5 lite", 1),
      {"model.layers": (kinds.recurrent(), "attention")},
      "key_value",
    ),
    # R is 64 where the limit is 30.
    (
      *("TPU v5 lite", 1),
      {"model.layers": ("attention:30", "attention")},
      "hidden",
    ),
  ],
)
def test_a_tpu_keeps_keys_and_values_where_one_kernel_attends_to_them(
  device, tensor, updates, expected
):
  defaults = {
    **{"model.head_dim": 16, "eval.segment_len": 32, "eval.mem_len": (96,)},
    **{"eval.warmup_len": 0, "model.attention": "auto"},
  }
  config = load.from_config_dict(tiny.config_dict(**defaults | updates))
  mesh = types.SimpleNamespace(
    devices=np.array([types.SimpleNamespace(device_kind=device)]),
    shape={"data": 1, "fsdp": 1, "tensor": tensor},
  )
  caches_keys = protocol.caches_keys(
    config.model, config.eval, mesh, mem_len=96
  )
  assert caches_keys is (expected == "key_value")


@pytest.mark.parametrize(
  ("memory", "dtype"),
  [("hidden", "bfloat16"), ("key_value", "float32"), ("key_value", "bfloat16")],
)
def test_parameters_are_scored_without_a_copy(data_dir, memory, dtype):
  updates = {"eval.memory": memory, "model.dtype": dtype}
  config = corpus.config(data_dir, **updates, **{"model.cutoffs": (5, 11)})
  mesh = mesh_lib.make_mesh(config.mesh)
  with jax.set_mesh(mesh):
    made = evaluator.Evaluator(config.scoring, mesh, mem_len=8)
    params = tiny.params(config.model)
    splits = network.splits(config.model)
    shardings = mesh_lib.shardings(mesh, params, splits)
    params = jax.device_put(params, shardings)
    frozen = made.mesh_reader.freeze(params)
  if memory == "key_value":  # Query, key and value of layers are joined.
    frozen, params = frozen.outside, dict(params)
    del params["layers"]
  pairs = zip(*map(jax.tree.leaves, (params, frozen)), strict=True)
  kept = [
    given.unsafe_buffer_pointer() == found.unsafe_buffer_pointer()
    for given, found in pairs
    if given.dtype == found.dtype  # A cast is a copy.
  ]
  assert kept
  assert all(kept)


def test_segments_past_the_end_leave_sums_alone(data_dir):
  config = corpus.config(data_dir, **{"eval.memory": "key_value"})
  mesh = mesh_lib.make_mesh(config.mesh)
  file = token_file.open_split(f"{data_dir}/{corpus.NAME}", "test")
  stream = streams.EvalStream(
    file, num_lanes=4, segment_len=8, warmup_len=8, resets="wrap"
  )
  with jax.set_mesh(mesh):
    made = evaluator.Evaluator(config.scoring, mesh, mem_len=8)
    frozen = made.mesh_reader.freeze(tiny.params(config.model))
    segments = stream.read(stream.num_steps, 4, slice(None))
    state = made.mesh_reader.start(frozen)
    _, sums = made.score_segments(frozen, state, segments)
  assert float(sums.num_tokens) == float(sums.nll) == 0.0


def test_parameters_are_no_constants_of_what_reads_each_token(data_dir):
  """As constants, those of a large model add gigabytes to the program."""
  config = corpus.config(data_dir, **{"eval.warmup_len": 0})
  mesh = mesh_lib.make_mesh(config.mesh)
  kinds = set()

  def read_segment(reader, frozen, state, segment):
    kinds.update(
      isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(frozen)
    )
    return state, segment.targets

  subject = trained_model.TrainedModel(
    config, mesh, tiny.params(config.model), step=0
  )
  found = per_token.read(subject, mem_len=8, read_segment=read_segment)
  assert kinds == {True}
  file = token_file.open_split(f"{data_dir}/{corpus.NAME}", config.eval.split)
  np.testing.assert_array_equal(found, file.tokens[1:])


def test_a_warm_up_of_no_tokens_is_none(data_dir):
  """A negative one is as long as the memory."""
  config = corpus.config(data_dir, **{"eval.warmup_len": 0})
  memory = load.replaced(config, {"eval.warmup_len": -1})
  file = token_file.open_split(f"{data_dir}/{corpus.NAME}", config.eval.split)
  none, whole = (
    streams.EvalStream(
      file, config.eval.batch_size, config.eval.segment_len, length, "wrap"
    ).num_steps
    for length in (0, 16)
  )
  assert none < whole
  assert protocol.open_stream(config.scoring, 16).num_steps == none
  assert protocol.open_stream(memory.scoring, 16).num_steps == whole


def test_a_warm_up_as_long_as_memory_counts_what_is_compressed(data_dir):
  attention = corpus.config(data_dir, **{"eval.warmup_len": -1})
  name = kinds.compressing()
  compressing = load.replaced(
    attention, kinds.model(name, "attention", num_tokens=36)
  )
  reach = registry.mixers[name].remembered_tokens(compressing.model, 16)
  assert reach > 16
  exact = load.replaced(compressing, {"eval.warmup_len": reach})
  shorter, found, expected = (
    protocol.open_stream(config.scoring, 16).num_steps
    for config in (attention, compressing, exact)
  )
  assert found == expected
  assert found > shorter


def test_evaluation_reads_with_the_first_temperature(data_dir):
  # Several may not be compared on the test split.
  updates = {"eval.temperature": (1.5, 2.0), "eval.split": "valid"}
  config = corpus.config(data_dir, **updates)
  made = protocol.make_reader(config.model, config.eval, 8)
  assert made.temperature == 1.5
  assert (
    protocol.make_network(config.model, config.eval).settings.temperature == 1.5
  )
