"""Hooks: the log lines, evaluations and checkpoints between updates.

Hooks on metrics run as soon as the metrics of a chunk are on the host, while
the devices compute the next chunk. Hooks on the run get all of it while the
devices wait. All metrics have been read before, so they never see a state whose
loss is not finite. Those that are due are called in the order of their list.
"""

import math
import time
from typing import NamedTuple, Protocol

import jax
import optax
from absl import logging

from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.evaluation import attention_use
from transformer_xl.evaluation import evaluator
from transformer_xl.evaluation import settings as settings_lib
from transformer_xl.model import lora
from transformer_xl.model import nats
from transformer_xl.training import divergence
from transformer_xl.training import log_window
from transformer_xl.training import preemption
from transformer_xl.training import profiling
from transformer_xl.training import programs
from transformer_xl.training import unigram_loss
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import goodput as goodput_lib
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import run_state
from transformer_xl.workdir import save_policy
from transformer_xl.workdir import trained_model


class MetricsHook(Protocol):
  """Called with the metrics since the last log line."""

  def is_due(self, step: int) -> bool:
    """Whether to call it after `step` updates."""

  def __call__(
    self, step: int, window: log_window.Window, writer: metrics_log.Writer
  ) -> None:
    """Reports the window."""


class RunHook(Protocol):
  """Called with the run, which it can change."""

  activity: str  # One of `goodput.OVERHEAD`.

  def is_due(self, step: int) -> bool:
    """Whether to call it after `step` updates; the same in all processes."""

  def __call__(
    self, run: run_state.RunState, writer: metrics_log.Writer
  ) -> run_state.RunState:
    """Returns the run to continue with."""


class TimeLeft:
  """How long training will take: its updates and its validations."""

  def __init__(
    self, train: schema.TrainConfig, evaluation: "Evaluation | None"
  ):
    self._train = train
    self._evaluation = evaluation

  def seconds(self, step: int, speed: float | None) -> float | None:
    """The time after `step` updates at a speed in tokens a second.

    None if the speed is not known.
    """
    if speed is None:
      return None
    train = self._train
    per_update = segment_lengths.tokens_per_update(train)
    seconds = (train.num_steps - step) * per_update / speed
    if self._evaluation is None:
      return seconds
    every = train.eval_every_steps
    validations = math.ceil(train.num_steps / every) - step // every
    measured = self._evaluation.seconds
    if measured is None:
      # A forward pass costs a third of an update.
      measured = self._evaluation.num_tokens / 3 / speed
    return seconds + validations * measured


class LogLine:
  """A line every `train.log_every_steps`, and after the last update."""

  def __init__(self, train: schema.TrainConfig, time_left: TimeLeft):
    self._train = train
    self._time_left = time_left

  def is_due(self, step: int) -> bool:
    """Whether `step` is a multiple of the period, or the last step."""
    return log_window.ends(self._train, step)

  def __call__(
    self, step: int, window: log_window.Window, writer: metrics_log.Writer
  ) -> None:
    """Writes and prints the line; starts a new window."""
    line = window.close(step)
    writer.write(line)
    left = self._time_left.seconds(step, line["tokens_per_second"])
    writer.progress(line, left)


class TimeEstimate:
  """Says how long training will take, once its first updates are timed."""

  # After the first call, which waits for the compiler and is not timed.
  _TIMED_UPDATES = 10

  def __init__(self, num_steps: int, time_left: TimeLeft):
    self._num_steps = num_steps
    self._time_left = time_left
    self._due_at: int | None = None
    self._is_said = False

  def is_due(self, step: int) -> bool:
    """Whether enough updates of this process were timed by `step`."""
    if self._due_at is None:  # The end of the first call.
      self._due_at = step + self._TIMED_UPDATES
    return step >= self._due_at and not self._is_said

  def __call__(
    self, step: int, window: log_window.Window, writer: metrics_log.Writer
  ) -> None:
    """Logs the time that is left, with its validations."""
    del writer
    self._is_said = True
    seconds = self._time_left.seconds(step, window.tokens_per_second)
    if seconds is None or step >= self._num_steps:
      return
    if seconds > 120:  # More would be false precision.
      seconds = 60 * round(seconds / 60)
    logging.info(
      "Training will take about %s more on this machine, by its speed until "
      "step %d.",
      goodput_lib.duration(seconds),
      step,
    )


class Evaluation:
  """Scores the validation split every `train.eval_every_steps`."""

  activity = "evaluating"

  def __init__(
    self,
    train: schema.TrainConfig,
    scoring: schema.Scoring,
    mesh: jax.sharding.Mesh,
    checkpoints: checkpoint.Checkpoints,
    stop: preemption.StopSignal,
  ):
    self._train = train
    self._is_raw = scoring.eval.parameters == "raw"
    self._checkpoints = checkpoints
    self._stop = stop
    mem_len = train.mem_len
    validation = programs.validation(scoring, mem_len)
    trained_model.warn_of_untrained_segments(
      validation.model,
      train,
      segment_len=validation.eval.read_len,
      mem_len=mem_len,
    )
    self._evaluator = evaluator.Evaluator(validation, mesh, mem_len=mem_len)
    self._settings = settings_lib.of_evaluation(validation, mem_len)
    data = validation.data
    # Losses on other tokens, or with other resets, are not comparable.
    self._text = (
      f"{self._evaluator.stream.file.sha256} targets={data.targets} "
      f"resets={data.reset_at_documents}"
    )
    # The shortest that one took, once one has ended: the first compiles, too.
    self.seconds: float | None = None
    self._memory_use = None
    if train.log_memory_use:
      self._memory_use = attention_use.Report(validation, mesh, mem_len=mem_len)

  def is_due(self, step: int) -> bool:
    """Whether to call it after `step` updates: also after the last one."""
    train = self._train
    return step >= train.num_steps or step % train.eval_every_steps == 0

  @property
  def num_tokens(self) -> int:
    """The length of the text that is scored."""
    return len(self._evaluator.stream.file.tokens)

  def __call__(
    self, run: run_state.RunState, writer: metrics_log.Writer
  ) -> run_state.RunState:
    """Adds the validation loss; owes it if a signal prevents the evaluation.

    Checkpoints are ranked by this loss, so a loss that was owed is added to its
    checkpoint as well.

    Raises:
      Diverged: the loss is not finite.
    """
    metadata = run.metadata
    record = None
    if not self._stop.requested:
      record = self._score(run.state)
    if record is None:
      return run._replace(metadata=metadata._replace(owes_evaluation=True))
    writer.write(record)
    logging.info(
      "step %d  valid nll %.4f  perplexity %.3f  [memory %s]",
      record["step"],
      record["nll"],
      record["perplexity"],
      settings_lib.memory_text(self._settings),
    )
    was_owed = metadata.owes_evaluation
    metadata = metadata._replace(owes_evaluation=False)
    run = run._replace(
      metadata=metadata,
      validation_loss=record["nll"],
      validation_text=self._text,
    )
    if was_owed:
      self._checkpoints.add_evaluation(run)
    return run

  def _score(self, state: run_state.TrainState) -> metrics_log.Json | None:
    """The line of `metrics.jsonl`; None if a signal comes meanwhile."""
    trained = state.params if self._is_raw else state.average
    params = lora.with_adapters(trained, state.base, self._train)
    began = time.perf_counter()
    score = self._evaluator.score_until(params, should_stop=self._stop.poll)
    if score is None:
      return None
    step = int(state.step)
    nll = score.nll / score.num_tokens
    if not math.isfinite(nll):
      raise divergence.Diverged("the validation loss is not finite", step)
    record = {
      "step": step,
      "split": "valid",
      "nll": nll,
      "perplexity": nats.perplexity(nll),
      "num_tokens": score.num_tokens,
      "mem_len": self._train.mem_len,
      "settings": self._settings,
    }
    if self._memory_use is not None:
      use = self._memory_use(params, should_stop=self._stop.poll)
      if use is None:
        return None
      record |= use
    took = time.perf_counter() - began
    self.seconds = took if self.seconds is None else min(self.seconds, took)
    return record


class Saving:
  """Saves by the policy, after each evaluation, and at the end or a signal."""

  activity = "saving"

  def __init__(
    self,
    config: schema.ExperimentConfig,
    workdir: str,
    checkpoints: checkpoint.Checkpoints,
    stop: preemption.StopSignal,
    evaluation: Evaluation | None,
    goodput: goodput_lib.Goodput,
  ):
    self._config = config
    self._workdir = workdir
    self._num_steps = config.train.num_steps
    self._checkpoints = checkpoints
    self._stop = stop
    self._evaluation = evaluation
    self._goodput = goodput
    self._policy = save_policy.SavePolicy(config.checkpoint)

  def is_due(self, step: int) -> bool:
    """Whether to save: at the end, by the policy, or after an evaluation."""
    is_last = step >= self._num_steps or self._stop.requested
    evaluates = self._evaluation is not None and self._evaluation.is_due(step)
    return is_last or self._policy.is_due(step) or evaluates

  def __call__(
    self, run: run_state.RunState, writer: metrics_log.Writer
  ) -> run_state.RunState:
    """Starts to save the run.

    Raises:
      Diverged: a parameter is not finite; the loss was computed before the
        last update.
    """
    del writer
    norm = jax.jit(optax.global_norm)(run.state.params)
    if not math.isfinite(norm):
      raise divergence.Diverged(
        "the norm of the parameters is not finite", int(run.state.step)
      )
    step = int(run.state.step)
    # Before, so that a bucket has the line with its checkpoint.
    self._goodput.record(step, is_last=step >= self._num_steps)
    run_record.write_again_if_gone(
      self._config,
      self._workdir,
      step=step,
      initialised_from=run.metadata.initialised_from,
    )
    self._checkpoints.save(run)
    self._policy.saved()
    logging.info("step %d  saving  %s", step, self._goodput)
    return run


class Hooks(NamedTuple):
  """The hooks of a run."""

  on_metrics: list[MetricsHook]
  on_run: list[RunHook]
  evaluation: Evaluation | None  # Also in `on_run`.


def make(
  config: schema.ExperimentConfig,
  mesh: jax.sharding.Mesh,
  workdir: str,
  checkpoints: checkpoint.Checkpoints,
  stop: preemption.StopSignal,
  goodput: goodput_lib.Goodput,
) -> Hooks:
  """The hooks of a configuration, in the order in which they are called."""
  train = config.train
  evaluation: Evaluation | None = None
  on_run: list[RunHook] = []
  if train.profile_steps:  # First, so that the trace has updates alone.
    per_call = config.updates_per_call
    on_run.append(profiling.Trace(train, per_call, workdir, stop))
  if train.eval_every_steps:
    evaluation = Evaluation(train, config.scoring, mesh, checkpoints, stop)
    on_run.append(evaluation)
  # Last, so that a checkpoint has the validation loss of its own step.
  on_run.append(Saving(config, workdir, checkpoints, stop, evaluation, goodput))
  time_left = TimeLeft(train, evaluation)
  # The log line last, since it starts a new window.
  on_metrics: list[MetricsHook] = [
    TimeEstimate(train.num_steps, time_left),
    unigram_loss.UnigramLoss(
      train, config.data, workdir, pre_norm=config.model.pre_norm
    ),
    LogLine(train, time_left),
  ]
  return Hooks(on_metrics, on_run, evaluation)
