"""Planning for GPUs: the cost of a program, and plans where that compiles."""

import importlib.util
import json
import types

import pytest

from tests import corpus
from tests.planning import test_plan
from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl.planning import gpus
from transformer_xl.planning import hlo_cost
from transformer_xl.planning import topology

NAMES = sorted(gpus.GPUS)

# As XLA prints them: a product, whose time depends on tiles that are not chosen
# yet; a softmax with an estimate that reads its array for every tile, and one
# without bound, as jax 0.11.2 has on an H100; and an all-reduce, which has an
# estimate of communication alone.
PROGRAM = """\
HloModule jit_f, is_scheduled=true

%product (p: bf16[64,32], q: bf16[32,16]) -> bf16[64,16] {
  %p = bf16[64,32]{1,0} parameter(0)
  %q = bf16[32,16]{1,0} parameter(1)
  ROOT %d = bf16[64,16]{1,0} dot(%p, %q), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

ENTRY %main (p: bf16[64,32], q: bf16[32,16]) -> bf16[64,16] {
  %p = bf16[64,32]{1,0} parameter(0)
  %q = bf16[32,16]{1,0} parameter(1)
  %g = bf16[64,16]{1,0} fusion(%p, %q), kind=kCustom, calls=%product, \
backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"},\
"reification_cost":[{"end_to_end_cycles":8000,"exec_time_us":4,\
"compute_time_us":4,"memory_access_time_us":0.5,"name":""}]}
  %s = bf16[64,16]{1,0} fusion(%g), kind=kCustom, calls=%softmax, \
backend_config={"fusion_backend_config":{"kind":"__triton"},\
"reification_cost":[{"end_to_end_cycles":46807318.7,"exec_time_us":23640.05,\
"compute_time_us":911.9,"memory_access_time_us":23594.4,"name":""},\
{"end_to_end_cycles":300,"exec_time_us":0.15,"compute_time_us":0.1,\
"memory_access_time_us":0.1,"name":"indexing-cost-model"},\
{"end_to_end_cycles":"Infinity","exec_time_us":"Infinity",\
"compute_time_us":"Infinity","memory_access_time_us":0.1,"name":""},\
{"end_to_end_cycles":0,"exec_time_us":0.01,"compute_time_us":0,\
"memory_access_time_us":0,"name":"sol"}]}
  ROOT %r = bf16[64,16]{1,0} all-reduce(%s), to_apply=%add, \
backend_config={"reification_cost":[{"end_to_end_cycles":0,"exec_time_us":7,\
"compute_time_us":0,"memory_access_time_us":0,"name":"sol"}]}
}
"""


def test_products_count_traffic_and_flops_and_others_the_lowest_estimate():
  cost = hlo_cost.program_cost(PROGRAM)
  assert cost.cycles == pytest.approx(8000 * 0.5 / 4 + 300)
  assert cost.kernel_flops == 2 * 64 * 32 * 16
  assert cost.flops == 0
  assert cost.collective_bytes == {"all-reduce": 64 * 16 * 2}


def test_without_the_plugin_the_error_names_the_extra(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(errors.UserError, match=r"install .* -e '\.\[cuda\]'"):
    topology.slice_devices("h100:8")


@pytest.mark.parametrize(
  "name", ["h100:0", "h100:x", "h100:2x2", "h100", "a100"]
)
def test_what_is_no_number_of_gpus_is_refused_with_their_names(name):
  with pytest.raises(errors.UserError, match=r"GPUs.*\(h100, h200\)"):
    topology.slice_devices(name)


def test_a_gpu_that_is_there_is_planned_for_by_its_kind(monkeypatch):
  monkeypatch.setattr(gpus, "devices", lambda name, count: [name] * count)

  def present(kind):
    return [types.SimpleNamespace(device_kind=kind)] * 2

  assert gpus.described(present("NVIDIA H200")) == ["h200", "h200"]
  assert gpus.described(present("NVIDIA A100-SXM4-80GB")) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_gpu_has_the_published_figures_that_a_plan_needs(name):
  gpu = gpus.GPUS[name]
  chip = hardware.CHIPS[gpu.device_kind]
  assert chip.hbm_bytes == pytest.approx(0.75 * gpu.memory_bytes, rel=1e-3)
  bandwidth = hardware.PEAK_BANDWIDTH[gpu.device_kind]
  assert bandwidth == pytest.approx(gpu.bandwidth, rel=1e-2)
  assert gpu.device_kind in hardware.PEAK_FLOPS


@pytest.mark.slow
@pytest.mark.skipif(
  not any(map(importlib.util.find_spec, gpus.PLUGINS)),
  reason="needs XLA's compiler for GPUs: pip install '.[cuda]'",
)
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_for_two_gpus_states_memory_time_and_work(tmp_path, name):
  data_dir = corpus.write(tmp_path / "data")
  done = test_plan.plan(
    tmp_path / "run",
    f"--topology={name}:2",
    "--config=experiments/base.py",
    *corpus.config_flags(data_dir),
    "--config.model.dtype=bfloat16",
  )
  assert done.returncode == 0, done.stderr
  path = tmp_path / "run" / "results" / "plan.json"
  result = json.loads(path.read_text())
  assert result["num_chips"] == 2
  assert result["cost"] is None  # No list of prices has GPUs.
  assert "docs/gpu.md" in done.stderr
  train = result["train"]
  # Parameters, two moments of Adam, and no more than as much again.
  state = 3 * 4 * result["num_parameters"]
  assert state < train["argument_bytes"] < 2 * state
  assert train["collective_bytes"]["all-reduce"] > 2 * result["num_parameters"]
  for program in (train, result["eval"], result["generate"]):
    assert program["fits"]
    assert 0 < program["estimated_mfu"] < 1
  for program in (train, result["eval"]):
    assert 0 < program["kernel_cycles"] < program["estimated_cycles"]
    assert 0.9 < program["executed_over_useful"] < 4
