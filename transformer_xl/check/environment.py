"""What computed: devices, driver, packages and the commit of the code."""

import importlib.metadata
import pathlib
import platform

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl import hardware
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record

# Plugins of accelerators, beside the packages that every run records.
_PLUGINS = (
  "libtpu",
  "jax-cuda12-plugin",
  "jax-cuda13-plugin",
  "jax-rocm7-plugin",
)
_NVIDIA_DRIVER = pathlib.Path("/proc/driver/nvidia/version")
# The largest error of a product in each format, in roundings of float32.
_PRODUCT_ERRORS = {"float32": 2.0**7, "TF32 (10 bits)": 2.0**14}


def describe() -> metrics_log.Json:
  """Devices, driver, packages and the commit, for an issue report.

  It has no environment variables, no paths and no names of hosts.
  """
  device = jax.devices()[0]
  stats = jax.local_devices()[0].memory_stats() or {}
  return {
    "platform": device.platform,
    "device_kind": device.device_kind,
    "num_devices": jax.device_count(),
    "num_processes": jax.process_count(),
    "device_memory_bytes": stats.get("bytes_limit"),
    "runtime": " ".join(device.client.platform_version.split()),
    "nvidia_driver": _first_line(_NVIDIA_DRIVER),
    "processor": hardware.processor(),
    "float32_products": format_of_products(),
    "system": f"{platform.system()} {platform.release()}",
    "python": platform.python_version(),
    "versions": {
      name: version
      for name in (*run_record.PACKAGES, *_PLUGINS)
      if (version := _version(name))
    },
    "git_commit": run_record.git_commit(),
  }


def format_of_products() -> str:
  """The format to which a float32 product rounds its factors by default.

  A TPU rounds them to bfloat16, and a GPU may round them to TF32, unless
  JAX_DEFAULT_MATMUL_PRECISION says otherwise.
  """
  draw = np.random.default_rng(0)
  left = draw.standard_normal((128, 128)).astype(np.float32)
  right = draw.standard_normal((128, 128)).astype(np.float32)
  found = np.asarray(jax.jit(jnp.matmul)(left, right), np.float64)
  expected = left.astype(np.float64) @ right.astype(np.float64)
  error = np.abs(found - expected).max() / np.abs(expected).max()
  roundings = error / float(jnp.finfo(jnp.float32).eps)
  for name, largest in _PRODUCT_ERRORS.items():
    if roundings < largest:
      return name
  return "bfloat16 (7 bits)"


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _first_line(path: pathlib.Path) -> str | None:
  return path.read_text("utf-8").splitlines()[0] if path.exists() else None
