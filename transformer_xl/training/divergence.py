"""Divergence: how it is detected, and what a run does about it.

A loss that is not finite is detected at once. A spike is detected when the
median of the newest WINDOW losses is `spike_nats` above the lowest median so
far: single bad segments do not move a median, and a slow rise is found as well
as a jump. Detection is late, so a checkpoint counts as good only if it is
WINDOW updates old. A checkpoint that fails again at once is too recent, so the
next retry rewinds further.

The guard's state is saved with each checkpoint and is a function of the losses.
A run that is killed in between detects the same, responds the same and ends
with the same bits as an uninterrupted one, provided that it rewinds only to
checkpoints of regular steps (`checkpoint.every_steps`).
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.training import step as step_lib
from transformer_xl.workdir import metrics_log

WINDOW = 100  # Updates over which the median loss is taken.
TRIES = 3  # Retries at one place in training before the run stops.
RATE_FACTOR = 0.5  # On the learning rate, in each retry of lower_rate.

_LOWER = (
  "Lower --config.train.learning_rate or --config.train.clip_norm or lengthen "
  "--config.train.warmup_steps"
)
_REWIND = (
  "Run again with --config.divergence.action=skip or lower_rate to rewind, or "
  "with --config.divergence.spike_nats=0 to continue."
)


class Diverged(Exception):  # noqa: N818
  """Training has diverged at a step; the loop rewinds or stops."""

  def __init__(self, what: str, step: int, *, spiked: bool = False):
    super().__init__(what)
    self.what = what
    self.step = step
    self.spiked = spiked


class Recovery(NamedTuple):
  """How the run has recovered from divergence so far, in all tries together."""

  skipped: int = 0  # Segments; update k reads S from k S + skipped on.
  rate_factor: float = 1.0  # Multiplies the configured learning rate.
  events: tuple[metrics_log.Json, ...] = ()  # As in `metrics.jsonl`.


def no_losses() -> metrics_log.Json:
  """The result of `Guard.metadata` before the first update.

  Checkpoints name the recovery "answer".
  """
  return {"losses": [], "lowest": None, "answer": []}


def recovery_of(saved: metrics_log.Json | None) -> Recovery:
  """The recovery that a checkpoint states; none before a checkpoint."""
  return Recovery(*(saved or no_losses())["answer"])


class Rules(NamedTuple):
  """The rules by which a run recovers from divergence, or stops."""

  config: schema.DivergenceConfig
  every_steps: int  # From one regular checkpoint to the next.
  gradient_segments: int  # Of an update.

  @property
  def num_kept(self) -> int:
    """Number of regular checkpoints to keep: all to rewind to, and one more."""
    if self.config.action == "stop":
      return 0
    return math.ceil(WINDOW / self.every_steps) + 2

  def respond(
    self, recovery: Recovery, trouble: Diverged, saved: Sequence[int]
  ) -> Recovery:
    """Decides what to do; the last event says which step to rewind to.

    Args:
      recovery: from what happened before.
      trouble: what has happened now.
      saved: the steps of all checkpoints, ascending.

    Raises:
      DivergenceError: the configuration says to stop, there were too many
        tries, or no checkpoint is old enough.
    """
    config = self.config
    now = trouble.step
    if now == 0:
      raise errors.DivergenceError(
        f"{trouble.what} at step 0, before any update: the parameters are "
        "those of --config.train.init_from; start from others."
      )
    delay = WINDOW if trouble.spiked else 0
    good = [step for step in saved if step <= now - delay]
    last_good = f"step {good[-1]}" if good else "none"
    if config.action == "stop":
      mend = _REWIND if trouble.spiked else f"{_LOWER}, and run again."
      raise errors.DivergenceError(
        f"{trouble.what} at step {now}; the last good checkpoint is "
        f"{last_good}. {mend}"
      )
    step = self._target(now, saved)
    if step is None:
      raise errors.DivergenceError(
        f"{trouble.what} at step {now}, and no older checkpoint was kept to "
        f"rewind to; the last good one is {last_good}. {_LOWER}, and run again."
      )
    # Earlier tries here: no good checkpoint was saved beyond these since.
    events = recovery.events
    passed = max(self._regular(good), default=0)
    tries = sum(event["detected_at"] > passed for event in events)
    if tries >= TRIES:
      raise errors.DivergenceError(
        f"{trouble.what} at step {now} after {tries} tries to get past it; "
        f"the last good checkpoint is {last_good}. {_LOWER}, and run again."
      )
    skipped, factor, events = recovery
    if config.action == "skip":
      skipped += (now - step) * self.gradient_segments
    else:
      factor *= RATE_FACTOR
    event = {
      "step": step + 1,  # The first to be repeated.
      "divergence": trouble.what,
      "detected_at": now,
      "rewound_to": step,
      "action": config.action,
      "skipped": skipped,
      "rate_factor": factor,
      "tries": tries + 1,
    }
    return Recovery(skipped, factor, (*events, event))

  def _target(self, step: int, saved: Sequence[int]) -> int | None:
    """The step of the newest good checkpoint, 0 to start over, or None."""
    good = step - WINDOW
    regular = [each for each in self._regular(saved) if each <= good]
    if regular:
      return max(regular)
    return 0 if good < self.every_steps else None

  def _regular(self, saved: Sequence[int]) -> list[int]:
    """The steps that an uninterrupted run has saved, too."""
    return [step for step in saved if step % self.every_steps == 0]


class Guard:
  """Detects divergence of one run."""

  def __init__(self, rules: Rules, saved: metrics_log.Json | None = None):
    """Starts with no losses, or from the metadata of a checkpoint."""
    saved = saved or no_losses()
    self._config = rules.config
    self._losses: list[float] = list(saved["losses"])
    self._lowest: float | None = saved["lowest"]
    self.recovery = recovery_of(saved)

  def metadata(self) -> dict[str, object]:
    """The state that a checkpoint stores as JSON."""
    return {
      "losses": self._losses,
      "lowest": self._lowest,
      "answer": list(self.recovery),
    }

  def watch(self, metrics: step_lib.UpdateMetrics, step: int) -> None:
    """Adds the metrics [C] of the updates up to `step`, read from devices.

    Raises:
      Diverged: a loss or gradient is not finite, or the loss has spiked.
    """
    rows = zip(*metrics.sums, metrics.gradient_norm, strict=True)
    for nll, tokens, norm in rows:
      if not math.isfinite(nll):
        raise Diverged("the loss is not finite", step)
      if not math.isfinite(norm):
        raise Diverged("the norm of the gradient is not finite", step)
      if tokens:
        self._add(float(nll) / float(tokens), step)

  def _add(self, loss: float, step: int) -> None:
    self._losses = [*self._losses, loss][-WINDOW:]
    if len(self._losses) < WINDOW:
      return
    median = statistics.median(self._losses)
    lowest = median if self._lowest is None else self._lowest
    limit = self._config.spike_nats
    if limit and median > lowest + limit:
      raise Diverged(
        f"the loss stays at {median:.3f}, more than divergence.spike_nats="
        f"{limit} above its lowest, {lowest:.3f},",
        step,
        spiked=True,
      )
    self._lowest = min(median, lowest)
