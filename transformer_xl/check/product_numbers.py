"""Products of matrices, against float64."""

import jax
import numpy as np

from transformer_xl import mesh as mesh_lib
from transformer_xl.check import finding
from transformer_xl.check import on_mesh
from transformer_xl.model.kernels import dense

# Several times the largest errors that were seen on x86-64 processors and on an
# H100, in the roundings of each format.
LIMITS = {"float32": 40, "bfloat16": 40}


def check_products(
  mesh: jax.sharding.Mesh, dtype: str, length: int
) -> finding.Finding:
  """Products of matrices whose results are sums in float32."""
  num_rows = 64 * mesh_lib.num_shards(mesh)
  draw = np.random.default_rng(0)
  left = np.asarray(draw.standard_normal((num_rows, length)), dtype)
  right = np.asarray(draw.standard_normal((length, 96)), dtype)

  def multiply(
    rows: dict[str, jax.Array], others: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    left = rows["left"]
    right = others["right"]
    return {
      "product": dense.product(left, right),
      "logits": dense.logits(left, right.T),
    }

  expected = left.astype(np.float64) @ right.astype(np.float64)
  return finding.compare(
    on_mesh.call(mesh, multiply, {"left": left}, {"right": right}),
    {"product": expected, "logits": expected},
    part="products",
    case=f"{dtype}, sums of {length} terms in float32",
    limit=LIMITS[dtype],
    dtype="float32",
  )
