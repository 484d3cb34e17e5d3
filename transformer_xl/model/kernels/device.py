"""The kind of device that a program is compiled for."""

import jax


def device_kind() -> str:
  """Kind of the ambient mesh's devices, or of this machine's without a mesh.

  The two differ when a machine without a TPU compiles for one.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.devices()[0].device_kind if device is None else device.device_kind
