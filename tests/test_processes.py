"""Several processes find each other by the environment; one waits for none."""

import json
import os
import subprocess
import sys

import pytest

from tests import own_process
from tests import test_main

pytestmark = pytest.mark.slow

ALONE = [0, 1, False, True]
BOTH = [[0, 2, True, True], [1, 2, True, True]]


def slurm(index, count=2):
  return {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": str(count),
    "SLURM_PROCID": str(index),
    "SLURM_LOCALID": str(index),
  }


def open_mpi(index):
  return {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": str(index),
    "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
  }


def without(environment, name):
  return {key: environment[key] for key in environment if key != name}


def case(*environments, **options):
  return {"environments": environments, "options": options}


JOINED = {
  "slurm": case(slurm(0), slurm(1)),
  "open mpi": case(open_mpi(0), open_mpi(1)),
}
LEFT_ALONE = {
  "laptop": case({}),
  # `sbatch --ntasks=4` and no srun.
  "batch script": case(without(slurm(0, 4), "SLURM_STEP_NODELIST")),
  "nomultihost": case(slurm(0), multihost=False),
}
OF_UNEQUAL_DEVICES = case(
  slurm(0) | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
  slurm(1) | {"XLA_FLAGS": ""},
)
REFUSED = {
  "open mpi without rank": (
    case(without(open_mpi(0), "OMPI_COMM_WORLD_RANK")),
    "OMPI_COMM_WORLD_RANK",
  ),
  "coordinator without numbers": (
    case({"JAX_COORDINATOR_ADDRESS": "localhost:9"}),
    "(Number of processes must be defined)",
  ),
  "multihost": (
    case({}, multihost=True),
    "(coordinator_address should be defined)",
  ),
}


@pytest.fixture(scope="module")
def results():
  cases = JOINED | LEFT_ALONE
  cases |= {name: REFUSED[name][0] for name in REFUSED}
  cases["unequal devices"] = OF_UNEQUAL_DEVICES
  for one in (*JOINED.values(), OF_UNEQUAL_DEVICES):
    port = {"JAX_COORDINATOR_PORT": str(own_process.free_port())}
    one["environments"] = [env | port for env in one["environments"]]
  process = subprocess.run(
    [sys.executable, "-m", "tests.joining"],
    cwd=test_main.ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    input=json.dumps([*cases.values()]),
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return dict(zip(cases, json.loads(process.stdout), strict=True))


@pytest.mark.parametrize("name", JOINED)
def test_processes_join_where_the_environment_names_several(results, name):
  """And JAX takes no signals, which it would keep outside of training."""
  assert results[name] == BOTH


def test_processes_with_unequal_numbers_of_devices_say_which(results):
  for text in results["unequal devices"]:
    assert text.startswith(
      "process 1 of 2 found 1 devices, and the others 2: every process needs"
    )


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_a_process_that_is_alone_joins_nobody(results, name):
  assert results[name] == [ALONE]


@pytest.mark.parametrize("name", REFUSED)
def test_processes_that_cannot_join_say_why_and_what_to_give(results, name):
  (text,) = results[name]
  assert text.startswith("cannot join other processes (")
  assert REFUSED[name][1] in text
  assert "--coordinator=HOST:PORT" in text
  assert "--multihost=false" in text
  assert "\n" not in text


@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
def test_a_platform_that_jax_cannot_start_is_one_line(tmp_path, platform):
  finished = subprocess.run(
    [
      *(sys.executable, "-m", "transformer_xl.main", "--mode=check"),
      f"--workdir={tmp_path}",
    ],
    cwd=test_main.ROOT,
    # Flags of XLA would be read by a process of their own.
    env=os.environ | {"JAX_PLATFORMS": platform, "XLA_FLAGS": ""},
    stderr=subprocess.PIPE,
    text=True,
  )
  assert finished.returncode == 2
  *_, last = finished.stderr.splitlines()
  assert last.startswith(f"error: JAX cannot use JAX_PLATFORMS={platform}")
  assert "'.[cuda]' or '.[tpu,gcs]', or unset that variable." in last
