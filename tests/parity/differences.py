"""How far two runs of a model are apart."""

from typing import NamedTuple

import numpy as np

from tests.parity import ours

# What parity allows: absolute, in float32, and relative for gradients.
TOLERANCES = {"log_probs": 1e-4, "memories": 1e-4, "gradients": 1e-3}


class Differences(NamedTuple):
  """The worst of each kind."""

  log_probs: float  # Absolute, in nats, over all words and segments.
  memories: float  # Absolute, over all layers and segments.
  gradients: float  # Norm of the difference by the norm, worst parameter.


def between(run: ours.Run, reference: ours.Run) -> Differences:
  """How far a run is from its reference."""
  return Differences(
    log_probs=_largest(run.log_probs, reference.log_probs),
    memories=_largest(run.memories, reference.memories),
    gradients=max(
      relative(run.gradients[name], gradient)
      for name, gradient in reference.gradients.items()
    ),
  )


def relative(value: np.ndarray, reference: np.ndarray) -> float:
  """The norm of a difference by that of the reference; 0 if both are 0."""
  difference = float(np.linalg.norm(value - reference))
  if difference == 0:
    return 0.0
  return difference / max(float(np.linalg.norm(reference)), 1e-30)


def _largest(values, references) -> float:
  return max(
    float(np.abs(value - reference).max())
    for value, reference in zip(values, references, strict=True)
  )
