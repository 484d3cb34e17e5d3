"""Losses of an adaptive softmax and their gradients, in float64 NumPy.

It shares no code with what it checks. Grave et al. 2017;
docs/specification.md, section 12.

Shapes: n tokens, D model width, V_c size and E_c width of cluster c.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]


class Weights(NamedTuple):
  """The weights of a softmax; cluster 0 is the shortlist.

  Attributes:
    kernels: for each cluster, [V_c, E_c].
    projections: for each cluster, [E_c, D].
    bias: of all words, [V].
    cluster_kernel: the rows of clusters 1, 2, ... in the head, [C, E_0].
    cluster_bias: of these rows, [C].
  """

  kernels: Sequence[np.ndarray]
  projections: Sequence[np.ndarray]
  bias: np.ndarray
  cluster_kernel: np.ndarray
  cluster_bias: np.ndarray


def losses(
  hidden: np.ndarray,
  targets: np.ndarray,
  weights: Weights,
  loss_gradient: np.ndarray,
) -> Arrays:
  """The losses in nats, and the gradients of states and weights.

  Args:
    hidden: states [n, D].
    targets: ids [n].
    weights: of the softmax.
    loss_gradient: the gradient of the losses, [n].

  Returns:
    The losses by the name "losses", and gradients by the names hidden, bias,
    cluster_kernel, cluster_bias, kernel_0, projection_0, kernel_1, ...
  """
  sizes = [len(kernel) for kernel in weights.kernels]
  ends = np.cumsum(sizes)
  cluster = np.searchsorted(ends, targets, side="right")
  result = {
    "losses": np.zeros(len(targets)),
    "hidden": np.zeros_like(hidden),
    "bias": np.zeros_like(weights.bias),
  }
  for index, size in enumerate(sizes):
    first = ends[index] - size
    rows = cluster == index
    kernel = weights.kernels[index]
    bias = weights.bias[first : first + size]
    column = targets - first
    if index == 0:  # All tokens; those of a tail choose its row.
      rows = np.ones_like(rows)
      kernel = np.concatenate([kernel, weights.cluster_kernel])
      bias = np.concatenate([bias, weights.cluster_bias])
      column = np.where(cluster == 0, targets, size + cluster - 1)
    projection = weights.projections[index]

    narrow = hidden[rows] @ projection.T
    logits = narrow @ kernel.T + bias
    logits -= logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logits)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    chosen = np.arange(len(narrow)), column[rows]
    result["losses"][rows] -= np.log(probabilities[chosen])

    of_logits = probabilities
    of_logits[chosen] -= 1
    of_logits *= loss_gradient[rows, None]
    of_kernel = of_logits.T @ narrow
    of_narrow = of_logits @ kernel
    of_bias = of_logits.sum(axis=0)
    result["hidden"][rows] += of_narrow @ projection
    result[f"projection_{index}"] = of_narrow.T @ hidden[rows]
    result[f"kernel_{index}"] = of_kernel[:size]
    result["bias"][first : first + size] = of_bias[:size]
    if index == 0:
      result["cluster_kernel"] = of_kernel[size:]
      result["cluster_bias"] = of_bias[size:]
  return result
