"""The window of training that one log line reports."""

import time
from typing import Any

from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.model import flops
from transformer_xl.training import step as step_lib


class Window:
  """Metrics since the last log line.

  Checkpoints hold the sums, so that a resumed run logs the numbers of the
  uninterrupted one. The speed excludes compilation, evaluation and saving.
  """

  def __init__(self, sums: dict[str, float] | None = None):
    """Starts a window, from the sums of a checkpoint if there are any."""
    self.sums = dict(sums) if sums else {"nll": 0.0, "num_tokens": 0.0}
    self._last: dict[str, float] = {}
    self._seconds, self._timed_tokens = 0.0, 0.0
    self._clock: float | None = None  # None until the first chunk is done.

  def add(self, metrics: step_lib.UpdateMetrics) -> None:
    """Adds the metrics of one chunk; they must be on the host already."""
    now = time.perf_counter()
    tokens = float(metrics.sums.num_tokens.sum(dtype="float64"))
    self.sums["nll"] += float(metrics.sums.nll.sum(dtype="float64"))
    self.sums["num_tokens"] += tokens
    self._last = {
      "learning_rate": float(metrics.learning_rate[-1]),
      "gradient_norm": float(metrics.gradient_norm[-1]),
    }
    if self._clock is not None:
      self._seconds += now - self._clock
      self._timed_tokens += tokens
    self._clock = now

  def continue_timing(self) -> None:
    """Excludes the time since the last chunk from the speed."""
    self._clock = time.perf_counter()

  def record(
    self, step: int, config: schema.ExperimentConfig
  ) -> dict[str, Any]:
    """Returns the log line after `step` updates and starts a new window."""
    train, speed = config.train, None
    lengths = segment_lengths.of(config)
    if self._seconds:
      speed = self._timed_tokens / self._seconds
    result = {
      "step": step,
      "tokens": train.batch_size * lengths.tokens_before(step),
      "loss": self.sums["nll"] / self.sums["num_tokens"],
      **self._last,
      "tokens_per_second": speed,
      "mfu": speed
      and flops.mfu(
        speed,
        config.model,
        segment_len=round(lengths.mean),
        mem_len=train.mem_len,
      ),
    }
    self.sums = {"nll": 0.0, "num_tokens": 0.0}
    self._seconds, self._timed_tokens = 0.0, 0.0
    return result
