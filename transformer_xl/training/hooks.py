"""What happens every so many updates: a log line, an evaluation, a checkpoint.

Metrics hooks run as soon as the metrics of a chunk are on the host, while the
devices compute the next chunk. Run hooks get the whole run while the devices
wait. All metrics have been read before, so a run hook never sees a state whose
loss is not finite. Due hooks are called in the order of their list.
"""

import math
from typing import NamedTuple
from typing import Protocol

import jax
import optax
from absl import logging

from transformer_xl.config import schema
from transformer_xl.training import averaging
from transformer_xl.training import divergence
from transformer_xl.training import log_window
from transformer_xl.training import preemption
from transformer_xl.training import validation as validation_lib
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_state
from transformer_xl.workdir import save_policy


class MetricsHook(Protocol):
  """Called with the metrics since the last log line."""

  def is_due(self, step: int) -> bool:
    """Whether to call it after `step` updates."""

  def __call__(self, step: int, window: log_window.Window) -> None:
    """Reports the window."""


class RunHook(Protocol):
  """Called with the run, which it can change."""

  def is_due(self, step: int) -> bool:
    """Whether to call it after `step` updates; the same in all processes."""

  def __call__(self, run: run_state.RunState) -> run_state.RunState:
    """Returns the run to continue with."""


class LogLine:
  """Writes a line of training metrics every `train.log_every_steps`."""

  def __init__(
    self, config: schema.ExperimentConfig, writer: metrics_log.Writer
  ):
    self._config, self._writer = config, writer

  def is_due(self, step: int) -> bool:
    """At multiples of the period."""
    return step % self._config.train.log_every_steps == 0

  def __call__(self, step: int, window: log_window.Window) -> None:
    """Writes and prints the line; starts a new window."""
    record = window.record(step, self._config)
    self._writer.write(record)
    self._writer.progress(record)


class Evaluation:
  """Scores the validation split every `train.eval_every_steps`."""

  def __init__(
    self,
    config: schema.TrainConfig,
    validation: validation_lib.Validation,
    writer: metrics_log.Writer,
    stop: preemption.StopSignal,
  ):
    self._config, self._validation = config, validation
    self._writer, self._stop = writer, stop

  def is_due(self, step: int) -> bool:
    """At multiples of the period, and at the end."""
    ends = step >= self._config.num_steps
    return ends or step % self._config.eval_every_steps == 0

  def __call__(self, run: run_state.RunState) -> run_state.RunState:
    """Adds the validation loss, or a debt if a signal prevents it."""
    metadata, record = run.metadata, None
    if not self._stop.requested:
      record = self._validation.record(run.state, should_stop=self._stop.poll)
    if record is None:
      return run._replace(metadata=metadata._replace(owes_evaluation=True))
    self._writer.write(record)
    logging.info(
      "step %d  valid nll %.4f  perplexity %.3f  [memory %d]",
      *(record[name] for name in ("step", "nll", "perplexity", "mem_len")),
    )
    losses, nll = metadata.validation_losses, record["nll"]
    metadata = metadata._replace(
      owes_evaluation=False, validation_losses=(*losses, nll)
    )
    return run._replace(
      state=self._with_average(run.state, losses, nll),
      metadata=metadata,
      validation_loss=nll,
    )

  def _with_average(self, state, losses, nll) -> run_state.TrainState:
    """Starts averaging where the validation loss stops improving."""
    patience = self._config.asgd_patience
    if state.average_start is None or not patience:
      return state
    start = int(state.average_start)
    new = averaging.start_after_loss(
      start, losses, nll, step=int(state.step), patience=patience
    )
    if new == start:
      return state
    logging.info("Averaging starts: this loss is no longer the best.")
    return averaging.with_start(state, new)


class Saving:
  """Saves by the policy, after each evaluation, and at the end or a signal."""

  def __init__(
    self,
    config: schema.TrainConfig,
    checkpoints: checkpoint.Checkpoints,
    policy: save_policy.SavePolicy,
    stop: preemption.StopSignal,
    evaluation: Evaluation | None,
  ):
    self._num_steps, self._evaluation = config.num_steps, evaluation
    self._checkpoints, self._policy, self._stop = checkpoints, policy, stop

  def is_due(self, step: int) -> bool:
    """Whether the run ends here, or the policy or an evaluation asks for it."""
    is_last = step >= self._num_steps or self._stop.requested
    evaluates = self._evaluation is not None and self._evaluation.is_due(step)
    return is_last or self._policy.is_due(step) or evaluates

  def __call__(self, run: run_state.RunState) -> run_state.RunState:
    """Starts to save.

    Raises:
      Diverged: a parameter is not finite; the loss was computed before the
        last update.
    """
    norm = jax.jit(optax.global_norm)(run.state.params)
    if not math.isfinite(norm):
      raise divergence.Diverged(
        "the norm of the parameters is not finite", int(run.state.step)
      )
    self._checkpoints.save(run)
    self._policy.saved()
    return run


class Hooks(NamedTuple):
  """The hooks of a run."""

  on_metrics: list[MetricsHook]
  on_run: list[RunHook]
  evaluation: Evaluation | None  # Also the first of `on_run`.


def make(
  config: schema.ExperimentConfig,
  validation: validation_lib.Validation | None,
  checkpoints: checkpoint.Checkpoints,
  policy: save_policy.SavePolicy,
  writer: metrics_log.Writer,
  stop: preemption.StopSignal,
) -> Hooks:
  """The hooks of a configuration, in the order in which they are called."""
  evaluation = None
  on_run: list[RunHook] = []
  if validation is not None:
    evaluation = Evaluation(config.train, validation, writer, stop)
    on_run.append(evaluation)
  # Last, so that a checkpoint has the validation loss of its own step.
  on_run.append(Saving(config.train, checkpoints, policy, stop, evaluation))
  return Hooks([LogLine(config, writer)], on_run, evaluation)
