"""Planning for a TPU slice, where its compiler is installed."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests import corpus
from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import schema
from transformer_xl.planning import plan as plan_lib
from transformer_xl.planning import prices
from transformer_xl.planning import topology
from transformer_xl.training import programs

ROOT = pathlib.Path(__file__).parents[2]
CONTRACT = {
  "fits",
  "hbm_bytes_per_chip",
  "hbm_capacity_bytes",
  "argument_bytes",
  "temp_bytes",
  "flops_per_step",
  "executed_flops_per_step",
  "estimated_cycles",
  "estimated_step_seconds",
  "estimated_mfu",
  "estimated_tokens_per_second_per_chip",
  "estimated_step_seconds_at_most",
  "collective_bytes",
  "collective_seconds",
}

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None,
  reason="needs libtpu: pip install '.[tpu]'",
)


def plan(workdir, *flags):
  command = [sys.executable, "-m", "transformer_xl.main", "--mode=plan"]
  command += [f"--workdir={workdir}", *flags]
  return subprocess.run(
    command,
    cwd=ROOT,
    capture_output=True,
    text=True,
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
    check=False,
  )


@pytest.mark.slow
def test_a_plan_has_the_fields_of_its_contract(tmp_path):
  data_dir = corpus.write(tmp_path / "data")
  flags = corpus.config_flags(data_dir)
  done = plan(
    tmp_path / "run",
    "--topology=v5e:2x2",
    "--config=experiments/base.py",
    *flags,
    "--config.train.eval_every_steps=2",
  )
  assert done.returncode == 0, done.stderr
  path = tmp_path / "run" / "results" / "plan.json"
  result = json.loads(path.read_text())
  assert result["num_chips"] == 4
  assert result["cost"]["dollars_on_demand"] == pytest.approx(
    prices.PRICES["v5e"].on_demand * result["chip_hours"]
  )
  for program in ("training", "evaluation with a memory of", "generation"):
    assert f"Compiling {program}" in done.stderr
    assert re.search(rf"Compiled {program}.* in \d+ s\.", done.stderr)
  assert result["num_parameters"] == sum(result["parameters"].values())
  for kind in ("train", "eval", "generate"):
    parts = result[kind]["cycles_by_part"].values()
    cycles = sum(value for part in parts for value in part.values())
    cycles += result[kind]["kernel_cycles"]
    assert cycles == pytest.approx(result[kind]["estimated_cycles"])
    assert set(result[kind]) >= CONTRACT
    assert result[kind]["fits"]
    assert 0 < result[kind]["estimated_step_seconds"] < 1
    # A generated token takes eight rows of the matrix units.
    at_most = 16 if kind == "generate" else 4
    assert 1 < result[kind]["executed_over_useful"] < at_most
  evaluating = result["eval"]["hbm_bytes_while_evaluating"]
  # Parameters and the two moments of Adam; of them evaluation has the first.
  moments = 2 * 4 * result["num_parameters"]
  assert evaluating > result["eval"]["hbm_bytes_per_chip"] + moments
  assert evaluating < result["eval"]["hbm_bytes_per_chip"] + 2 * moments


@pytest.mark.slow
# The tests' compile cache is on, unlike the command's: JAX cannot read programs
# that were compiled for other devices.
@pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache")
def test_a_plan_that_does_not_fit_names_one_that_does(tmp_path, monkeypatch):
  sizes = {"model.model_dim": 128, "model.ff_dim": 512, "train.batch_size": 8}
  config = corpus.config(corpus.write(tmp_path / "data"), **sizes)
  topology.compile_only()
  devices = topology.slice_devices("v5e:2x2")
  # Half a step's memory: less than unsharded parameters take.
  mesh = programs.make_mesh(config.recipe, config.mesh, devices=devices)
  planned = plan_lib.train_plan(
    config.recipe, config.data, mesh, count=config.updates_per_call
  )
  held = planned["hbm_bytes_per_chip"]
  chip = hardware.CHIPS["TPU v5 lite"]._replace(hbm_bytes=held // 2)
  monkeypatch.setitem(hardware.CHIPS, "TPU v5 lite", chip)
  result = plan_lib.run(config, str(tmp_path / "run"), "v5e:2x2")
  assert not result["train"]["fits"]
  nearest = result["train"]["nearest_that_fits"]
  assert "--config.mesh.fsdp=4" in nearest["change"]
  assert nearest["hbm_bytes_per_chip"] <= held // 2
  assert result["hours"] > 0


@pytest.mark.slow
def test_an_unknown_slice_is_one_line(tmp_path):
  done = plan(
    tmp_path,
    "--topology=v99:1x1",
    "--config=experiments/enwik8_base.py",
  )
  assert done.returncode == 2
  last = done.stderr.splitlines()[-1]
  assert last.startswith("error: libtpu knows no TPU slice 'v99:1x1'")
  assert "Traceback" not in done.stderr


def test_a_v4_slice_has_a_device_for_each_chip():
  topology.compile_only()
  devices = topology.slice_devices("v4:2x2x1")
  mesh = mesh_lib.make_mesh(schema.MeshConfig(-1, -1, -1), devices=devices)
  assert mesh.size == len(devices) == 4


def test_several_slices_are_data_parallel():
  topology.compile_only()
  devices = topology.slice_devices("v5e:2x2x2slices")
  config = schema.MeshConfig(data=-1, fsdp=4, tensor=1)
  mesh = mesh_lib.make_mesh(config, devices=devices)
  found = [[chip.slice_index for chip in row.flat] for row in mesh.devices]
  assert found == [[0] * 4, [1] * 4]


def test_a_mesh_may_split_the_axes_of_a_slice():
  topology.compile_only()
  devices = topology.slice_devices("v5p:4x8x8")  # No axis has 2 chips.
  config = schema.MeshConfig(data=-1, fsdp=2, tensor=1)
  mesh = mesh_lib.make_mesh(config, devices=devices)
  assert dict(mesh.shape) == {"data": 128, "fsdp": 2, "tensor": 1}
  assert len({device.id for device in mesh.devices.flat}) == 256
