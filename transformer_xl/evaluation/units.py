"""Units of loss."""

import math


def perplexity(nll: float) -> float:
  """From mean nats per token."""
  return math.exp(nll) if nll < 700 else math.inf


def bits(nll: float) -> float:
  """From nats."""
  return nll / math.log(2)
