"""Costs of a compiled program: loops count as often as they run."""

import functools
import json
import re

import jax
import pytest

from tests import kinds
from tests import tiny
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.model import network
from transformer_xl.planning import hlo_cost
from transformer_xl.planning import plan
from transformer_xl.training import loss

PROGRAM = """\
HloModule jit_f, is_scheduled=true

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %a = f32[8]{0:T(256)} fusion(%p), kind=kLoop, calls=%fused, \
metadata={op_name="jit(f)/transpose(jvp(Network.nll))/while/body/layers\
/feed_forward/dot_general"}, \
backend_config={"estimated_cycles":"10"}
  %r = bf16[4,8]{1,0} all-reduce(%a), to_apply=%add
  ROOT %t = (s32[], f32[8]) tuple(%p)
}

%fused (q: f32[8]) -> f32[8] {
  ROOT %m = f32[8] multiply(%q, %q), backend_config={"estimated_cycles":"999"}
}

%condition (p: (s32[], f32[8])) -> pred[] {
  %bound = s32[] constant(5)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%i, %bound), direction=LT
}

%cheap (p: f32[8]) -> f32[8] {
  ROOT %c = f32[8] copy(%p), backend_config={"estimated_cycles":"1"}
}

%dear (p: f32[8]) -> f32[8] {
  %k = f32[8] custom-call(%p), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"cost_estimate":{"flops":"64"}}}
  ROOT %d = f32[8] copy(%k), backend_config={"estimated_cycles":"100"}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  %w = (s32[], f32[8]) while(%p), condition=%condition, body=%body
  %g = (f32[8], f32[16]) all-gather-start(%p), dimensions={0}
  ROOT %x = f32[8] conditional(%w, %p, %p), \
branch_computations={%cheap, %dear}
}
"""


def test_loops_multiply_and_conditionals_take_the_given_branch():
  cost = hlo_cost.program_cost(PROGRAM)
  assert cost.cycles == 5 * 10 + 100  # A fusion's own estimate, not its parts.
  assert cost.kernel_flops == 64
  expected = hlo_cost.program_cost(PROGRAM, is_expected=True)
  assert expected.cycles == 5 * 10 + 1
  assert expected.kernel_flops == 0
  for found in (cost, expected):
    assert found.collective_bytes == {
      "all-reduce": 5 * 4 * 8 * 2,
      "all-gather": 16 * 4,  # The result of an asynchronous one.
    }
    assert found.traffic() == 2 * 5 * 4 * 8 * 2 + 16 * 4


@pytest.mark.some(1)
@pytest.mark.parametrize("layers", ["shared", "own"])
def test_predictions_of_layers_count_as_on_average(layers):
  """Layer l of n predicts until l / 2n of all updates are done."""
  updates = {"model.num_layers": 3, "model.auxiliary.layers": layers}
  config = load.from_config_dict(tiny.config_dict(**updates))
  mesh = mesh_lib.of_one_device(jax.devices()[0])
  lowered = plan.lower_updates(config.recipe, config.data, mesh, count=1)
  text = lowered.compile().as_text()
  most = hlo_cost.program_cost(text).flops
  expected = hlo_cost.program_cost(text, is_expected=True).flops
  # Once forward and twice backward, in two layers.
  train = config.train
  tokens = train.batch_size * train.segment_len
  model = config.model
  softmax = 2 * tokens * model.model_dim * model.vocab_size
  predictions = 2 * 3 * softmax
  assert most - expected == pytest.approx(0.75 * predictions)
  num_updates = 600
  silent = [
    loss.num_silent_layers(3, num_updates, step) for step in range(num_updates)
  ]
  assert 1 - sum(silent) / (2 * num_updates) == pytest.approx(0.25)


def test_cycles_are_those_of_the_parts_of_the_model():
  assert hlo_cost.program_cost(PROGRAM).by_part(steps=2) == {
    "other": {"forward": 100 / 2, "backward": 0},
    "feed-forward": {"forward": 0, "backward": 5 * 10 / 2},
  }


@pytest.mark.rest
def test_operations_of_a_hybrid_belong_to_its_parts():
  """The names are those that JAX gives them, each with ten cycles."""
  recurrent = kinds.recurrent()
  updates = {
    "model.layers": (recurrent, "attention:4"),
    "model.cutoffs": (5, 11),
  }
  config = load.from_config_dict(tiny.config_dict(**updates))
  mesh = mesh_lib.of_one_device(jax.devices()[0])
  lowered = plan.lower_updates(config.recipe, config.data, mesh, count=1)
  names = re.findall(r'op_name="([^"]*)"', lowered.compile().as_text())
  assert any("layers/1/attention/" in name for name in names)
  instructions = [
    f"  %i{index} = f32[8] copy(%p), metadata={{op_name={json.dumps(name)}}}, "
    'backend_config={"estimated_cycles":"10"}'
    for index, name in enumerate(names)
  ]
  program = "\n".join(["ENTRY %main (p: f32[8]) -> f32[8] {", *instructions])
  parts = hlo_cost.program_cost(program).by_part()
  learned = (recurrent, "attention", "norms", "feed-forward", "embedding")
  for part in (*learned, "softmax"):
    assert parts[part]["forward"] > 0, part
    assert parts[part]["backward"] > 0, part
  assert parts["optimizer"]["forward"] > 0
  in_layers = ("attention/", f"{recurrent}/", "feed_forward/", "norm/")
  named = sum(any(mark in name for mark in in_layers) for name in names)
  counted = (recurrent, "attention", "norms", "feed-forward")
  assert sum(sum(parts[part].values()) for part in counted) >= 10 * named


def test_a_loop_of_another_bound_costs_accordingly():
  longer = PROGRAM.replace("constant(5)", "constant(7)")
  assert hlo_cost.program_cost(longer).cycles == 7 * 10 + 100


def test_an_unknown_form_is_an_error():
  unknown = PROGRAM.replace("condition=%condition, body=%body", "loop=%body")
  with pytest.raises(ValueError, match="unknown form"):
    hlo_cost.program_cost(unknown)


OVERLAPPED = """\
%start (p: bf16[4,8]) -> (bf16[4,8], bf16[4,64]) {
  %p = bf16[4,8]{1,0} parameter(0)
  %g = bf16[4,64]{1,0} all-gather(%p), channel_id=3, dimensions={1}
  ROOT %c = (bf16[4,8], bf16[4,64]) custom-call(%g), \
custom_call_target="AsyncCollectiveStart"
}

%step (p: bf16[4,8]) -> bf16[4,64] {
  %p = bf16[4,8]{1,0} parameter(0)
  ROOT %g = bf16[4,64]{1,0} all-gather(%p), channel_id=3, dimensions={1}
}

%all-reduce-scatter.1 (p: f32[16]) -> f32[2] {
  %p = f32[16]{0} parameter(0)
  %r = f32[16]{0} all-reduce(%p), channel_id=4, to_apply=%add
  ROOT %s = f32[2]{0} dynamic-slice(%r), dynamic_slice_sizes={2}
}

ENTRY %main (p: bf16[4,8], q: f32[16]) -> f32[2] {
  %p = bf16[4,8]{1,0} parameter(0)
  %q = f32[16]{0} parameter(1)
  %a = (bf16[4,8], bf16[4,64]) fusion(%p), calls=%start
  %b = bf16[4,64]{1,0} fusion(%p), calls=%step
  %m = (f32[16], f32[16], u32[], u32[]) collective-permute-start(%q), \
channel_id=5
  ROOT %s = f32[2]{0} fusion(%q), calls=%all-reduce-scatter.1
}
"""


def test_a_collective_that_overlaps_counts_where_it_starts():
  cost = hlo_cost.program_cost(OVERLAPPED)
  assert cost.collective_bytes == {
    "all-gather": 4 * 64 * 2,  # Counted once, not in the fusion it overlaps.
    "reduce-scatter": 16 * 4,  # A fusion that reduces and scatters.
    "collective-permute": 16 * 4 + 8,
  }


@pytest.mark.parametrize(
  ("product", "flops"),
  [
    (
      "f32[2,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}, "
      "rhs_contracting_dims={0}",
      2 * 2 * 3 * 5,
    ),
    ("f32[2,5]{1,0} convolution(%a, %b), dim_labels=bf_io->bf", 2 * 2 * 3 * 5),
    # A batch of seven products, written as a convolution.
    (
      "f32[7,2,5]{2,1,0} convolution(%c, %d), window={size=7 stride=6 "
      "pad=0_0 lhs_dilate=7}, dim_labels=0bf_0io->0bf",
      2 * 7 * 2 * 3 * 5,
    ),
    # A sum over seven lanes.
    (
      "f32[3,5,1]{1,0,2} convolution(%e, %f), window={size=7}, "
      "dim_labels=0fb_0io->bf0",
      2 * 7 * 3 * 2 * 5,
    ),
  ],
)
def test_products_are_counted_without_padding(product, flops):
  shapes = {"a": "2,3", "b": "3,5", "c": "7,2,3", "d": "7,3,5"}
  shapes |= {"e": "7,2,3", "f": "7,2,5"}
  lines = [
    f"  %{name} = f32[{size}] parameter(0)" for name, size in shapes.items()
  ]
  text = "\n".join(
    ["ENTRY %main (p: f32[]) -> f32[] {", *lines, f"  ROOT %r = {product}", "}"]
  )
  assert hlo_cost.program_cost(text).flops == flops


def test_a_model_without_kernels_executes_its_own_products():
  config = tiny.model_config(num_layers=3)
  tokens, targets, memory = tiny.inputs(config)
  model = network.Network(config)
  score = functools.partial(model.apply, method="nll")
  params = {"params": tiny.params(config)}
  compiled = jax.jit(score).lower(params, tokens, targets, memory).compile()
  lanes, segment = tokens.shape
  context = segment + tiny.MEMORY
  width = config.num_heads * config.head_dim
  projections = 2 * lanes * segment + 2 * lanes * context + context
  layer = (
    2 * config.model_dim * width * projections  # Q, O; K, V; distances.
    # Content and values; distances, with one more for the shift.
    + 2 * lanes * segment * (2 * context + context + 1) * width
    + 4 * lanes * segment * config.model_dim * config.ff_dim
  )
  softmax = 2 * lanes * segment * config.model_dim * config.vocab_size
  found = hlo_cost.program_cost(compiled.as_text()).flops
  assert found == config.num_layers * layer + softmax
