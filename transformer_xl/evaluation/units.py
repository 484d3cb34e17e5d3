"""Units of the loss."""

import math


def perplexity(nll: float) -> float:
  """Perplexity of a mean loss in nats; infinite from 700 nats."""
  return math.exp(nll) if nll < 700 else math.inf


def bits(nll: float) -> float:
  """Converts nats to bits."""
  return nll / math.log(2)
