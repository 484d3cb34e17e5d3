"""An adaptive softmax and the gradients of its losses, in float64 NumPy.

Grave et al. 2017; docs/specification.md, section 12.

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


def log_probs(hidden: np.ndarray, weights: Weights) -> np.ndarray:
  """Log-probabilities of all words [n, V] for states [n, D]."""
  first, *tails = _clusters(hidden, weights)
  size = len(weights.kernels[0])
  parts = [first.log_probs[:, :size]]
  for row, tail in enumerate(tails):
    of_cluster = first.log_probs[:, size + row, None]
    parts.append(of_cluster + tail.log_probs)
  return np.concatenate(parts, axis=1)


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
  tokens = np.arange(len(targets))
  result = {
    "losses": -log_probs(hidden, weights)[tokens, targets],
    "hidden": np.zeros_like(hidden),
  }
  sizes = [len(kernel) for kernel in weights.kernels]
  ends = np.cumsum(sizes)
  cluster_of = np.searchsorted(ends, targets, side="right")
  biases = []
  for index, cluster in enumerate(_clusters(hidden, weights)):
    # A token has a loss in its own cluster and, for the row of that, in the
    # first one.
    counts = (cluster_of == index) | (index == 0)
    row = targets - ends[index] + sizes[index]
    if index == 0:
      row = np.where(cluster_of, sizes[0] + cluster_of - 1, targets)
    of_logits = np.exp(cluster.log_probs)
    of_logits[tokens[counts], row[counts]] -= 1
    of_logits *= (loss_gradient * counts)[:, None]
    of_kernel = of_logits.T @ cluster.narrow
    of_narrow = of_logits @ cluster.kernel
    result["hidden"] += of_narrow @ weights.projections[index]
    result[f"projection_{index}"] = of_narrow.T @ hidden
    result[f"kernel_{index}"] = of_kernel[: sizes[index]]
    of_bias = of_logits.sum(axis=0)
    biases.append(of_bias[: sizes[index]])
    if index == 0:
      result["cluster_kernel"] = of_kernel[sizes[0] :]
      result["cluster_bias"] = of_bias[sizes[0] :]
  return result | {"bias": np.concatenate(biases)}


class _Cluster(NamedTuple):
  """One cluster for all states: the first one has rows of the others, too."""

  narrow: np.ndarray  # [n, E_c].
  kernel: np.ndarray
  log_probs: np.ndarray  # Of its rows.


def _clusters(hidden: np.ndarray, weights: Weights) -> list[_Cluster]:
  clusters = []
  end = 0
  for index, kernel in enumerate(weights.kernels):
    bias = weights.bias[end : end + len(kernel)]
    end += len(kernel)
    if index == 0:
      kernel = np.concatenate([kernel, weights.cluster_kernel])
      bias = np.concatenate([bias, weights.cluster_bias])
    narrow = hidden @ weights.projections[index].T
    logits = narrow @ kernel.T + bias
    logits -= logits.max(axis=1, keepdims=True)
    sums = np.exp(logits).sum(axis=1, keepdims=True)
    clusters.append(_Cluster(narrow, kernel, logits - np.log(sums)))
  return clusters
