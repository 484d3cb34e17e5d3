"""A device of a TPU slice to compile for, where there is no TPU."""

import os
from typing import Any

import jax
from jax.experimental import topologies

# Read by libtpu when it is loaded, with the first topology.
_ENVIRONMENT = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-16",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def device(topology: str) -> Any:
  jax.config.update("jax_platforms", "cpu")
  os.environ.update(_ENVIRONMENT)
  return topologies.get_topology_desc(
    platform="tpu", topology_name=topology
  ).devices[0]
