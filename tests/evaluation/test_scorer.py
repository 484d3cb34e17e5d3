"""Evaluation on cached keys and values against memory of hidden states."""

import types

import jax
import numpy as np
import pytest

from tests import corpus
from tests import tiny
from tests.evaluation import splits
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import scorer

# Memory in whole segments, in parts of one, shorter than one, and none; the
# split's 149 pairs divide by none of the segments.
CASES = (
  ("masked", 16, 8),
  ("documents", 10, 4),
  ("same_length", 10, 8),
  ("zeros", 3, 7),
  ("warm_up", 0, 8),
  ("context", 0, 8),
  ("relative_tied", 10, 8),
  ("shaw", 10, 8),
  ("absolute", 10, 8),
  ("absolute_per_layer", 10, 8),
  ("rope", 10, 8),
  ("alibi", 10, 8),
)
VARIANTS = {
  "masked": {"model.untie_biases": True, "eval.clamp_len": 5},
  "documents": {"data.reset_at_documents": True, "model.pre_norm": True},
  "same_length": {
    "eval.same_length": True,
    "model.same_length_window": "mem_len",
    "model.cutoffs": (5, 11),
    "model.div_val": 2,
  },
  "zeros": {"model.memory_start": "zeros", "eval.same_length": True},
  "warm_up": {"eval.warmup_len": 20, "eval.segments_per_call": 3},
  "context": {"eval.context_len": 6, "eval.mem_len": (0,)},
  "relative_tied": {"model.encoding": "relative_tied"},
  "shaw": {"model.encoding": "shaw"},
  "absolute": {"model.encoding": "absolute", "eval.same_length": True},
  "rope": {"model.encoding": "rope", "data.reset_at_documents": True},
  "alibi": {"model.encoding": "alibi", "eval.same_length": True},
  "absolute_per_layer": {
    "model.encoding": "absolute_per_layer",
    "model.memory_start": "zeros",
  },
}


RECURRENT = {"model.kind": "lstm", "train.mem_len": 1, "eval.mem_len": (1,)}


def score(data_dir, memory, *, mem_len, segment_len, variant):
  """The split's score, and how its memory is kept."""
  config = corpus.config(
    data_dir,
    **VARIANTS[variant],
    **{"eval.memory": memory, "eval.segment_len": segment_len},
  )
  mesh = mesh_lib.make_mesh(config.mesh)
  with jax.set_mesh(mesh):
    made = scorer.Scorer(config, mesh, mem_len=mem_len)
    start = made.start(made.freeze(tiny.params(config.model)))
  result = splits.score(config, mem_len=mem_len)
  return result, jax.tree.map(np.shape, start)


@pytest.mark.parametrize(("variant", "mem_len", "segment_len"), CASES)
def test_cached_keys_and_values_score_as_hidden_states(
  data_dir, variant, mem_len, segment_len
):
  found = {
    memory: score(
      data_dir,
      memory,
      mem_len=mem_len,
      segment_len=segment_len,
      variant=variant,
    )
    for memory in ("hidden", "key_value")
  }
  hidden, cached = found["hidden"][0], found["key_value"][0]
  assert found["hidden"][1] != found["key_value"][1]
  assert cached.num_tokens == hidden.num_tokens == 149
  # Sums of the same float32 products in another order.
  assert cached.nll == pytest.approx(hidden.nll, rel=2e-6)


@pytest.mark.parametrize("variant", ["masked", "absolute"])
def test_without_a_choice_the_device_decides(data_dir, variant):
  found = {
    memory: score(data_dir, memory, mem_len=8, segment_len=8, variant=variant)
    for memory in ("auto", "key_value")
  }
  assert found["auto"][1] == found["key_value"][1]


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
    ("TPU v5 lite", 1, {"model.memory_lens": ((1, 30), (1, 0))}, "hidden"),
    ("TPU v5 lite", 1, RECURRENT, "hidden"),
    ("cpu", 1, RECURRENT, "key_value"),
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
  assert scorer.memory_kind(config, mesh, mem_len=96) == expected


@pytest.mark.parametrize(
  ("memory", "dtype"),
  [("hidden", "bfloat16"), ("key_value", "float32"), ("key_value", "bfloat16")],
)
def test_parameters_are_scored_without_a_copy(data_dir, memory, dtype):
  updates = {"eval.memory": memory, "model.dtype": dtype}
  config = corpus.config(data_dir, **updates, **{"model.cutoffs": (5, 11)})
  mesh = mesh_lib.make_mesh(config.mesh)
  with jax.set_mesh(mesh):
    made = scorer.Scorer(config, mesh, mem_len=8)
    params = tiny.params(config.model)
    params = jax.device_put(params, mesh_lib.parameters(mesh, params))
    frozen = made.freeze(params)
  if memory == "key_value":  # Query, key and value of layers are joined.
    frozen, params = frozen.params, dict(params)
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
    made = scorer.Scorer(config, mesh, mem_len=8)
    frozen = made.freeze(tiny.params(config.model))
    segments = stream.read(stream.num_steps, 4, slice(None))
    _, sums = made.score(frozen, made.start(frozen), segments)
  assert float(sums.num_tokens) == float(sums.nll) == 0.0
