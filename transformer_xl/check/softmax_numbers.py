"""The adaptive softmax, against the equations in float64."""

import functools
from collections.abc import Callable

import jax
import numpy as np

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.check import finding
from transformer_xl.check import on_mesh
from transformer_xl.conformance.equations import softmax as equations
from transformer_xl.model import adaptive_softmax

# Several times the largest errors that were seen on x86-64 processors and on an
# H100, in the roundings of each format.
LIMITS = {"float32": 100, "bfloat16": 12}
ROOM = (0.25, 0.25)  # In the clusters of a softmax, as shares of the tokens.


def check_softmax(
  mesh: jax.sharding.Mesh,
  dtype: str,
  capacities: tuple[float, ...],
  has_many: bool,
) -> finding.Finding:
  """Losses and gradients of an adaptive softmax with two tail clusters.

  Args:
    mesh: of the devices.
    dtype: of the states.
    capacities: room in the clusters, as shares of the tokens; () for no limit.
    has_many: more targets are in the tails than there is room for.
  """
  lanes = max(2, mesh_lib.num_shards(mesh))
  segment_len, width = 64, 32
  sizes, widths = (50, 40, 60), (32, 16, 8)
  draw = np.random.default_rng(3)

  def normal(*shape: int) -> np.ndarray:
    return draw.standard_normal(shape).astype(np.float32)

  pairs = list(zip(sizes, widths, strict=True))
  # Rounded as the model rounds them, so that both sides have the same numbers.
  kernels = [_rounded(normal(*pair), dtype) for pair in pairs]
  projections = [_rounded(normal(part, width) / 6, dtype) for part in widths]
  bias = normal(sum(sizes))
  cluster_kernel = _rounded(normal(2, width), dtype)
  cluster_bias = normal(2)
  hidden = np.asarray(normal(lanes, segment_len, width), dtype)
  in_tail = draw.random((lanes, segment_len)) < (0.9 if has_many else 0.1)
  ids = draw.integers(sizes[0], size=in_tail.shape)
  tail_ids = draw.integers(sizes[0], sum(sizes), size=in_tail.shape)
  targets = np.where(in_tail, tail_ids, ids).astype(np.int32)
  loss_gradient = normal(lanes, segment_len)

  rows = {"hidden": hidden, "targets": targets, "loss_gradient": loss_gradient}
  weights = (
    tuple(kernels),
    tuple(projections),
    bias,
    cluster_kernel,
    cluster_bias,
  )
  found = on_mesh.call(mesh, _losses_and_gradients(capacities), rows, weights)
  expected = equations.losses(
    hidden.astype(np.float64).reshape(-1, width),
    targets.reshape(-1),
    equations.Weights(
      [kernel.astype(np.float64) for kernel in kernels],
      [projection.astype(np.float64) for projection in projections],
      bias.astype(np.float64),
      cluster_kernel.astype(np.float64),
      cluster_bias.astype(np.float64),
    ),
    loss_gradient.astype(np.float64).reshape(-1),
  )
  flat = {name: found[name].reshape(expected[name].shape) for name in expected}
  room = "without room" if has_many else "with room"
  clusters = (
    f"capacities {capacities} {room}" if capacities else "no capacities"
  )
  return finding.compare(
    flat,
    expected,
    part="softmax",
    case=f"{dtype}, {clusters}, {lanes} lanes, {on_mesh.describe(mesh)}",
    limit=LIMITS[dtype],
    dtype=dtype,
  )


@functools.cache
def _losses_and_gradients(
  capacities: tuple[float, ...],
) -> Callable[..., dict[str, jax.Array]]:
  """What is compiled: once for few targets in the tails, and for many."""

  def losses_and_gradients(
    rows: dict[str, jax.Array], weights: shapes.PyTree
  ) -> dict[str, jax.Array]:
    def losses(hidden: jax.Array, weights: shapes.PyTree) -> jax.Array:
      head = adaptive_softmax.SoftmaxWeights(*weights)
      room = adaptive_softmax.Capacities(capacities)
      head = head._replace(capacities=room)
      return adaptive_softmax.nll(hidden, rows["targets"], head)

    result, pull = jax.vjp(losses, rows["hidden"], weights)
    of_hidden, of_weights = pull(rows["loss_gradient"])
    of_kernels, of_projections, *others = of_weights
    return {
      "losses": result,
      "hidden": of_hidden,
      **{f"kernel_{i}": array for i, array in enumerate(of_kernels)},
      **{f"projection_{i}": array for i, array in enumerate(of_projections)},
      **dict(
        zip(("bias", "cluster_kernel", "cluster_bias"), others, strict=True)
      ),
    }

  return losses_and_gradients


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
  """Numbers of a format, in float32."""
  return array.astype(dtype).astype(np.float32)
