"""Costs of a compiled program: loops count as often as they run."""

import pytest

from transformer_xl import hlo_cost

PROGRAM = """\
HloModule jit_f, is_scheduled=true

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %a = f32[8]{0:T(256)} fusion(%p), kind=kLoop, calls=%fused, \
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
  %w = (s32[], f32[8]) while(%p), condition=%condition, body=%body
  %g = (f32[2], f32[16]) all-gather-start(%p), dimensions={0}
  ROOT %x = f32[8] conditional(%w, %p, %p), \
branch_computations={%cheap, %dear}
}
"""


def test_loops_multiply_and_conditionals_take_the_dearest_branch():
  cost = hlo_cost.program_cost(PROGRAM)
  assert cost.cycles == 5 * 10 + 100  # A fusion's own estimate, not its parts.
  assert cost.kernel_flops == 64
  assert cost.collective_bytes == {
    "all-reduce": 5 * 4 * 8 * 2,
    "all-gather": 16 * 4,  # Of a started one, what it will give.
  }


def test_a_loop_of_another_bound_costs_accordingly():
  longer = PROGRAM.replace("constant(5)", "constant(7)")
  assert hlo_cost.program_cost(longer).cycles == 7 * 10 + 100


def test_a_form_that_is_not_known_is_no_silent_zero():
  unknown = PROGRAM.replace("condition=%condition, body=%body", "loop=%body")
  with pytest.raises(ValueError, match="new form"):
    hlo_cost.program_cost(unknown)
