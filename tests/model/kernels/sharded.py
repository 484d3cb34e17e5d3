"""Attention on a mesh of eight devices is that of the definition.

Fails, as `python -m tests.model.kernels.sharded`, where it does not.
"""

import os

import jax

from tests.model.kernels import cases
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import schema

os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)


def main():
  # Lanes and heads that the devices divide, and those that they do not.
  # These are all terms that there are.
  for lanes, heads, terms in (
    (4, 2, "biased keys"),
    (3, 3, "biased keys"),
    (3, 3, "slopes"),
  ):
    arrays = cases.arguments(lanes, 3, 12, heads, 4, terms=terms)
    dropout = cases.dropout(arrays, 0.4)

    expected = cases.defined_value_and_gradients(arrays, dropout)
    mesh = mesh_lib.make_mesh(schema.MeshConfig(data=2, fsdp=2, tensor=2))
    for form in cases.FORMS:
      with jax.set_mesh(mesh):
        actual = cases.value_and_gradients(form, arrays, dropout)
      cases.assert_close(actual, expected)


if __name__ == "__main__":
  main()
