"""Writes the reference that `--mode=check` compares a small run with.

    python -m tests.check.write_reference

Only where the model, the optimizer or JAX's random numbers are meant to have
changed. Say in the commit which.
"""

import json
import pathlib

import jax

from transformer_xl import mesh as mesh_lib
from transformer_xl.check import on_mesh
from transformer_xl.check import small_run
from transformer_xl.config import schema


def main():
  mesh = mesh_lib.make_mesh(schema.MeshConfig(data=1, fsdp=1, tensor=1))
  result = {}
  for dtype in on_mesh.DTYPES:
    with on_mesh.exact_products(dtype):
      found = small_run.train(dtype, mesh)
    result[dtype] = {
      "losses": [round(float(loss), 7) for loss in found.losses],
      "evaluation": [round(float(loss), 7) for loss in found.evaluation],
      "tokens": found.tokens.tolist(),
    }
  path = pathlib.Path(small_run.__file__).with_name(small_run.REFERENCE)
  text = json.dumps(result)
  for name in ('"bfloat16"', '"losses"', '"evaluation"', '"tokens"'):
    text = text.replace(f" {name}", f"\n {name}")
  path.write_text(text + "\n", encoding="utf-8")
  print(jax.devices()[0].device_kind, text)


if __name__ == "__main__":
  main()
