"""Several processes find each other by the environment; one waits for none."""

import json
import os
import socket
import subprocess
import sys

import pytest

from tests import test_main
from transformer_xl import processes

pytestmark = pytest.mark.slow

ALONE = [0, 1, False]
BOTH = [[0, 2, True], [1, 2, True]]


def slurm(index, count=2):
  return {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": str(count),
    "SLURM_PROCID": str(index),
    "SLURM_LOCALID": str(index),
  }


def open_mpi(index, count=2):
  return {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": str(count),
    "OMPI_COMM_WORLD_RANK": str(index),
    "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
  }


def workers(index, hosts="localhost,localhost"):
  return {"TPU_WORKER_HOSTNAMES": hosts, "TPU_WORKER_ID": str(index)}


def slices(index):
  return {
    "MEGASCALE_COORDINATOR_ADDRESS": "localhost:8080",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": str(index),
  }


def machine(index, hosts=2):
  """Metadata of a virtual machine with TPU chips."""
  addresses = ",".join(f"unknown:{index}:127.0.0.1" for _ in range(hosts))
  return {
    "worker-network-endpoints": addresses,
    "agent-worker-number": str(index),
    "tpu-env": "ACCELERATOR_TYPE: 'v5litepod-16'\n",
  }


def without(environment, name):
  return {key: environment[key] for key in environment if key != name}


def case(*environments, is_tpu=False, metadata=None, **options):
  return {
    "environments": environments,
    "options": options,
    "is_tpu": is_tpu,
    "metadata": metadata or [{"tpu-env": ""}] * len(environments),
  }


JOINED = {
  "slurm": case(slurm(0), slurm(1)),
  "open mpi": case(open_mpi(0), open_mpi(1)),
  # JAX asks Open MPI first, and here the job has one task.
  "open mpi in slurm": case(
    slurm(0, 1) | open_mpi(0), slurm(0, 1) | open_mpi(1)
  ),
  "gke": case(workers(0), workers(1), is_tpu=True),
  "gke in slurm of one task": case(
    slurm(0, 1) | workers(0), slurm(0, 1) | workers(1), is_tpu=True
  ),
  "slices": case(
    workers(0, "localhost") | slices(0),
    workers(0, "localhost") | slices(1),
    is_tpu=True,
  ),
  "virtual machines": case(
    {}, {}, is_tpu=True, metadata=[machine(0), machine(1)]
  ),
}
LEFT_ALONE = {
  "laptop": case({}),
  "slurm of one task": case(slurm(0, 1)),
  # `sbatch --ntasks=4` and no srun.
  "batch script": case(without(slurm(0, 4), "SLURM_STEP_NODELIST")),
  "open mpi of one rank": case(open_mpi(0, 1)),
  "one tpu host": case(workers(0, "localhost"), is_tpu=True),
  "one virtual machine": case({}, is_tpu=True, metadata=[machine(0, 1)]),
  "no metadata": case({}, is_tpu=True, metadata=[{}]),
  "colab": case(
    {
      "TPU_PROCESS_ADDRESSES": "local",
      "TPU_WORKER_ID": "0",
      "TPU_SKIP_MDS_QUERY": "1",
    },
    is_tpu=True,
  ),
  "nomultihost": case(slurm(0), multihost=False),
  # As for a report on a host of a slice, with JAX_PLATFORMS=cpu.
  "a slice without its chips": case(workers(0)),
}
HALF_SET = {
  "slurm without id": (
    case(without(slurm(0), "SLURM_PROCID")),
    "that of SLURM without SLURM_PROCID: set what is missing",
  ),
  "slurm without count": (
    case(without(slurm(1), "SLURM_NTASKS")),
    "SLURM_PROCID=1 must be below 1, as SLURM_NTASKS says",
  ),
  "open mpi 5": (
    case(without(open_mpi(0), "OMPI_MCA_orte_hnp_uri")),
    "Open MPI without OMPI_MCA_orte_hnp_uri",
  ),
  "open mpi without rank": (
    case(without(open_mpi(0), "OMPI_COMM_WORLD_RANK")),
    "Open MPI without OMPI_COMM_WORLD_RANK",
  ),
  "no number": (
    case(slurm(0) | {"SLURM_NTASKS": "2(x3)"}),
    "SLURM_NTASKS=2(x3) must be a whole number",
  ),
  "gke without id": (
    case(without(workers(0), "TPU_WORKER_ID"), is_tpu=True),
    "a TPU slice without TPU_WORKER_ID",
  ),
  "gke of too few": (
    case(workers(2), is_tpu=True),
    "TPU_WORKER_ID=2 must be below 2, as TPU_WORKER_HOSTNAMES says",
  ),
  "gke without names": (
    case({"TPU_WORKER_ID": "1", "TPU_SKIP_MDS_QUERY": "1"}, is_tpu=True),
    "a TPU slice without TPU_WORKER_HOSTNAMES",
  ),
  "slices without id": (
    case(workers(0) | without(slices(0), "MEGASCALE_SLICE_ID"), is_tpu=True),
    "several TPU slices without MEGASCALE_SLICE_ID",
  ),
  "slices without count": (
    case(workers(0) | without(slices(0), "MEGASCALE_NUM_SLICES"), is_tpu=True),
    "several TPU slices without MEGASCALE_NUM_SLICES",
  ),
  "coordinator without numbers": (
    case({"JAX_COORDINATOR_ADDRESS": "localhost:9"}),
    "(Number of processes must be defined): give every process",
  ),
  "multihost": (
    case({}, multihost=True),
    "(coordinator_address should be defined): give every process",
  ),
}


@pytest.fixture(scope="module")
def results():
  cases = JOINED | LEFT_ALONE | {name: HALF_SET[name][0] for name in HALF_SET}
  for one in JOINED.values():
    with socket.socket() as listener:
      listener.bind(("localhost", 0))
      port = {"JAX_COORDINATOR_PORT": str(listener.getsockname()[1])}
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
  assert results[name] == BOTH


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_a_process_that_is_alone_joins_nobody(results, name):
  assert results[name] == [ALONE]


@pytest.mark.parametrize("name", HALF_SET)
def test_an_environment_that_is_half_set_is_refused(results, name):
  (text,) = results[name]
  assert HALF_SET[name][1] in text
  assert "--coordinator=HOST:PORT" in text


def test_a_pod_of_an_indexed_job_asks_kubernetes(tmp_path, monkeypatch):
  for name in ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"):
    monkeypatch.setenv(name, "0")
  assert processes.launcher() is None  # JAX could not ask.
  (tmp_path / "kubernetes.py").touch()
  monkeypatch.syspath_prepend(tmp_path)
  assert processes.launcher().name == "Kubernetes"
