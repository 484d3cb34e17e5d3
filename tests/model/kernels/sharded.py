"""Fused attention on a mesh of eight devices equals that on one.

Fails, as `python -m tests.kernels.sharded`, where it does not.
"""

import functools
import os

import jax

from tests.model.kernels import cases
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import schema
from transformer_xl.model.kernels import dispatch

os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)


def main():
  # Lanes and heads that the devices divide, and those that they do not.
  for lanes, heads in ((4, 2), (3, 3)):
    arrays = cases.arguments(lanes, 3, 12, heads, 4)
    dropout = cases.dropout(arrays, 0.4)
    attend = functools.partial(dispatch.relative_attention, dropout=dropout)
    alone = cases.value_and_gradients(
      functools.partial(attend, implementation="reference"), arrays
    )
    mesh = mesh_lib.make_mesh(schema.MeshConfig(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(mesh):
      together = cases.value_and_gradients(
        functools.partial(attend, implementation="pallas"), arrays
      )
    cases.assert_close(together, alone)


if __name__ == "__main__":
  main()
