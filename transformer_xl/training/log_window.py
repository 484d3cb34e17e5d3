"""The window of training that one log line reports."""

import time

import jax

from transformer_xl import hardware
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.model import network
from transformer_xl.training import step as step_lib

_NOTHING = {"nll": 0.0, "num_tokens": 0.0}  # The loss in nats.


class Window:
  """Metrics since the last log line.

  Checkpoints hold the sums, so that a resumed run logs the numbers of the
  uninterrupted one. The speed excludes compilation, evaluation and saving. It
  counts all tokens that updates read, also those without loss.
  """

  def __init__(
    self,
    sums: dict[str, float] | None = None,
    *,
    tokens_read: int = 0,
    flops_per_token: float = 0.0,
  ):
    """Starts with the sums of a checkpoint and the tokens of all updates.

    The useful FLOPs are those of an update; its MFU is logged by them.
    """
    self._flops_per_token = flops_per_token
    self.sums = dict(sums or _NOTHING)
    self.tokens_read = tokens_read
    self._last: dict[str, float] = {}
    self._seconds = 0.0
    self._timed_tokens = 0
    # The end of the last chunk; None if the time since then does not count.
    self._clock: float | None = None

  def add(self, metrics: step_lib.UpdateMetrics, *, tokens_read: int) -> None:
    """Adds a chunk: metrics [C], on the host, and tokens without padding."""
    now = time.perf_counter()
    for name, values in metrics.sums._asdict().items():
      self.sums[name] += float(values.sum(dtype="float64"))
    self.tokens_read += tokens_read
    self._last = {
      "learning_rate": float(metrics.learning_rate[-1]),
      "gradient_norm": float(metrics.gradient_norm[-1]),
    }
    if self._clock is not None:
      self._seconds += now - self._clock
      self._timed_tokens += tokens_read
    self._clock = now

  def continue_timing(self) -> None:
    """Excludes the time since the last chunk from the speed."""
    self._clock = time.perf_counter()

  def leave_untimed(self) -> None:
    """Excludes the chunk that the devices compute, with its tokens.

    While the host compiled, the devices may have finished it long ago.
    """
    self._clock = None

  @property
  def tokens_per_second(self) -> float | None:
    """The speed of updates since the last log line; None before it is known."""
    return self._timed_tokens / self._seconds if self._seconds else None

  @property
  def loss(self) -> float | None:
    """The mean loss in nats; None if no target counted."""
    num_tokens = self.sums["num_tokens"]
    return self.sums["nll"] / num_tokens if num_tokens else None

  def close(self, step: int) -> dict[str, float | None]:
    """Returns the log line after `step` updates and starts a new window.

    It has no loss if no target counted, as where answers are few.
    """
    speed = self.tokens_per_second
    loss = self.loss
    result: dict[str, float | None] = {
      "step": step,
      "tokens": self.tokens_read,
      **({} if loss is None else {"loss": loss}),
      **self._last,
      "tokens_per_second": speed,
      "mfu": speed and _mfu(speed * self._flops_per_token),
    }
    self.sums = dict(_NOTHING)
    self._seconds = 0.0
    self._timed_tokens = 0
    return result


def ends(train: schema.TrainConfig, step: int) -> bool:
  """Whether a window ends after so many updates."""
  return step >= train.num_steps or step % train.log_every_steps == 0


def flops_per_token(
  model: schema.ModelConfig, train: schema.TrainConfig
) -> float:
  """Useful FLOPs of an update for each token that it reads.

  A forward pass, and a backward pass that costs twice as much.
  """
  return 3 * network.forward_flops_per_token(
    model,
    segment_len=round(segment_lengths.of(train).mean),
    mem_len=train.mem_len,
    context_len=train.context_len,
    same_length=train.same_length,
  )


def _mfu(flops_per_second: float) -> float | None:
  """Useful FLOPs over the devices' peak; None where that is not known."""
  peak = hardware.PEAK_FLOPS.get(jax.devices()[0].device_kind)
  if peak is None:
    return None
  return flops_per_second / (peak * jax.device_count())
