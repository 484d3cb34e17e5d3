"""Planning for a TPU slice, where its compiler is installed."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests import corpus

ROOT = pathlib.Path(__file__).parents[1]
CONTRACT = {
  "fits",
  "hbm_bytes_per_chip",
  "hbm_capacity_bytes",
  "argument_bytes",
  "temp_bytes",
  "flops_per_step",
  "estimated_cycles",
  "estimated_step_seconds",
  "estimated_tokens_per_second_per_chip",
  "collective_bytes",
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
def test_a_plan_has_what_its_contract_says_for_both_programs(tmp_path):
  data_dir = corpus.write(tmp_path / "data")
  flags = corpus.config_flags(data_dir)
  done = plan(
    tmp_path / "run",
    "--topology=v5e:2x2",
    "--config=experiments/base.py",
    *flags,
  )
  assert done.returncode == 0, done.stderr
  path = tmp_path / "run" / "results" / "plan.json"
  result = json.loads(path.read_text())
  assert result["num_chips"] == 4
  assert result["num_parameters"] == sum(result["parameters"].values())
  for kind in ("train", "eval"):
    assert set(result[kind]) >= CONTRACT
    assert result[kind]["fits"]
    assert 0 < result[kind]["estimated_step_seconds"] < 1


@pytest.mark.slow
def test_a_slice_that_is_not_known_is_one_line(tmp_path):
  done = plan(
    tmp_path,
    "--topology=v99:1x1",
    "--config=experiments/enwik8_base.py",
  )
  assert done.returncode == 2
  last = done.stderr.splitlines()[-1]
  assert last.startswith("error: no TPU slice 'v99:1x1'")
  assert "Traceback" not in done.stderr
