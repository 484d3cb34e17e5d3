"""Kinds of devices: published figures of them, and what is fast here."""

import os
import pathlib
from typing import NamedTuple

import jax


class Chip(NamedTuple):
  """A TPU chip or a GPU, each of which is one JAX device."""

  hbm_bytes: float  # Available to a program.
  clock: float  # Hz, of the compiler's cycles.
  link_bytes: float  # Per second, over all links.


# Published bandwidths of the links of TPUs in Gbit/s: 2,400, 1,600, 4,800 and
# 3,584; of NVLink in each direction: 450 Gbyte/s. JAX takes three quarters of a
# GPU's memory unless XLA_PYTHON_CLIENT_MEM_FRACTION is set.
CHIPS = {
  "TPU v4": Chip(30.75 * 2**30, 1.05e9, 300e9),
  "TPU v5 lite": Chip(15.75 * 2**30, 1.5e9, 200e9),
  "TPU v5": Chip(95.73 * 2**30, 1.75e9, 600e9),
  "TPU v6 lite": Chip(31.24 * 2**30, 1.75e9, 448e9),
  "NVIDIA H100 80GB HBM3": Chip(0.75 * 79.11 * 2**30, 1.98e9, 450e9),
  "NVIDIA H200": Chip(0.75 * 141.0 * 2**30, 1.98e9, 450e9),
}

# Published dense bfloat16 FLOP/s of one JAX device, by `device_kind`. A v4 chip
# is one device; v2 and v3 chips have two cores, each a device of its own.
PEAK_FLOPS = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5": 459e12,
  "TPU v5p": 459e12,
  "TPU v6 lite": 918e12,
  "NVIDIA A100-SXM4-40GB": 312e12,
  "NVIDIA A100-SXM4-80GB": 312e12,
  "NVIDIA H100 80GB HBM3": 989e12,
  "NVIDIA H200": 989e12,
}

# Published bytes/s of the memory of one JAX device, by `device_kind`.
PEAK_BANDWIDTH = {
  "TPU v2": 350e9,
  "TPU v3": 450e9,
  "TPU v4": 1228e9,
  "TPU v5 lite": 819e9,
  "TPU v5": 2765e9,
  "TPU v5p": 2765e9,
  "TPU v6 lite": 1640e9,
  "NVIDIA A100-SXM4-40GB": 1555e9,
  "NVIDIA A100-SXM4-80GB": 2039e9,
  "NVIDIA H100 80GB HBM3": 3350e9,
  "NVIDIA H200": 4800e9,
}

# x86-64 processors whose products of bfloat16 XLA computes in hardware.
_BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16"}
_CPU_INFO = pathlib.Path("/proc/cpuinfo")


def device_kind() -> str:
  """Kind of the ambient mesh's devices, or of this machine's without a mesh.

  The two differ when a machine without a TPU compiles for one.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.devices()[0].device_kind if device is None else device.device_kind


def is_cpu() -> bool:
  """Whether the ambient mesh's devices, or this machine's, are CPUs."""
  return device_kind() == "cpu"


def is_gpu() -> bool:
  """Whether the ambient mesh's devices, or this machine's, are GPUs."""
  kind = device_kind()
  return kind != "cpu" and not kind.startswith("TPU")


def processor() -> str | None:
  """The name of this machine's processor, where Linux says it."""
  if not _CPU_INFO.exists():
    return None
  for line in _CPU_INFO.read_text("utf-8", "replace").splitlines():
    name, _, value = line.partition(":")
    if name.strip() == "model name":
      return value.strip()
  return None


def num_cores() -> int | None:
  """Cores of the processor that this process may use, if that is known."""
  if hasattr(os, "sched_getaffinity"):  # Linux.
    return len(os.sched_getaffinity(0))
  return os.cpu_count()


def fast_dtype() -> str:
  """bfloat16 where the first device multiplies it in hardware, else float32.

  The devices that do are TPUs, NVIDIA GPUs from Ampere on, and x86-64
  processors that list it in /proc/cpuinfo.
  """
  device = jax.devices()[0]
  if device.platform == "cpu":
    has_units = _CPU_INFO.exists() and bool(
      _BFLOAT16_FLAGS.intersection(_CPU_INFO.read_text().split())
    )
  elif device.platform == "gpu":
    capability = str(getattr(device, "compute_capability", ""))
    major = capability.partition(".")[0]  # Not a number on AMD's.
    has_units = major.isdecimal() and int(major) >= 8
  else:
    has_units = device.platform == "tpu"
  return "bfloat16" if has_units else "float32"
