"""NVIDIA GPUs, described to XLA's compiler, which needs none to be there.

The figures are those of XLA's own descriptions (openxla/xla,
xla/backends/gpu/target_config/specs). XLA has estimates for these GPUs, and in
jax 0.10.2 none for an A100.
"""

import importlib.util
from typing import NamedTuple

import jax
from jax.experimental import topologies

from transformer_xl import errors

# JAX's packages of XLA's compiler for GPUs, by their version of CUDA.
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
# Without a GPU, XLA states its estimate of each operation when it is asked to.
COMPILER_OPTIONS: dict[str, str | bool] = {
  "xla_gpu_collect_cost_model_stats": True
}


class _Gpu(NamedTuple):
  """What XLA asks about a GPU, beside what both have in common."""

  device_kind: str
  memory_bytes: int
  bandwidth: int  # Bytes a second.


# By the name that --topology has.
GPUS = {
  "h100": _Gpu(
    device_kind="NVIDIA H100 80GB HBM3",
    memory_bytes=84_942_979_072,
    bandwidth=3_352_320_000_000,
  ),
  "h200": _Gpu(
    device_kind="NVIDIA H200",
    memory_bytes=151_397_597_184,
    bandwidth=4_800_000_000_000,
  ),
}


def are_named(topology: str) -> bool:
  """Whether `--topology` names GPUs, and not a TPU slice."""
  return topology.partition(":")[0] in GPUS


def described(found: list[jax.Device]) -> list[jax.Device]:
  """GPUs like these, to compile for; none if they are of no kind in `GPUS`.

  XLA has no estimates for a program that it compiles for a GPU that is there.
  """
  for name, gpu in GPUS.items():
    if gpu.device_kind == found[0].device_kind:
      return devices(name, len(found))
  return []


def devices(name: str, count: int) -> list[jax.Device]:
  """GPUs of one host, to compile for.

  Raises:
    UserError: JAX's CUDA plugin is not installed.
  """
  if not any(map(importlib.util.find_spec, PLUGINS)):
    raise errors.UserError(
      f"--topology={name}:{count} needs XLA's compiler for GPUs, which runs on "
      f"any Linux machine: {errors.install('cuda')}"
    )
  found: list[jax.Device] = topologies.get_topology_desc(
    platform="cuda",
    topology_name="",
    target_config=_description(GPUS[name]),
    topology=f"1x1x{count}",  # Groups, hosts and GPUs of a host.
  ).devices
  return found


def _description(gpu: _Gpu) -> str:
  """XLA's GpuTargetConfigProto, as text."""
  return f"""
    gpu_device_info {{
      threads_per_block_limit: 1024
      threads_per_warp: 32
      threads_per_core_limit: 2048
      block_dim_limit_x: 2147483647
      block_dim_limit_y: 65535
      block_dim_limit_z: 65535
      registers_per_core_limit: 65536
      registers_per_block_limit: 65536
      core_count: 132
      fpus_per_core: 128
      clock_rate_ghz: 1.98
      device_memory_size: {gpu.memory_bytes}
      memory_bandwidth: {gpu.bandwidth}
      l2_cache_size: 52428800
      shared_memory_per_block: 49152
      shared_memory_per_core: 233472
      shared_memory_per_block_optin: 232448
      cuda_compute_capability {{ major: 9 }}
    }}
    platform_name: "CUDA"
    dnn_version_info {{ major: 9 minor: 10 }}
    device_description_str: "{gpu.device_kind}"
  """
