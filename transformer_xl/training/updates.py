"""The loop of updates. It alone decides the order of side effects.

A call of a compiled function returns before the devices have finished, and only
reading its results waits. The metrics of a chunk are read while the next one
runs, so that no device waits for the host. Before anything is evaluated or
saved, all metrics are read, so no state whose loss is not finite is ever saved.
"""

import time
from typing import NamedTuple

import jax
from absl import logging

from transformer_xl import mesh as mesh_lib
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import streams
from transformer_xl.training import divergence
from transformer_xl.training import hooks as hooks_lib
from transformer_xl.training import log_window
from transformer_xl.training import preemption
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib
from transformer_xl.workdir import goodput as goodput_lib
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_state


class Dependencies(NamedTuple):
  """The objects that updates use, besides the run that they change."""

  recipe: schema.Recipe
  mesh: jax.sharding.Mesh
  stream: streams.TrainStream
  hooks: hooks_lib.Hooks
  stop: preemption.StopSignal
  goodput: goodput_lib.Goodput
  rules: divergence.Rules
  updates_per_call: int


class _Chunk(NamedTuple):
  """Updates of one call, whose metrics may still be computed.

  Attributes:
    step: the step after them.
    metrics: on the devices.
    num_tokens: how many tokens they read.
  """

  step: int
  metrics: step_lib.UpdateMetrics
  num_tokens: int


def advance(
  run: run_state.RunState,
  writer: metrics_log.Writer,
  dependencies: Dependencies,
) -> bool:
  """Updates until the last step or a signal; True if all steps are done.

  Args:
    run: where to begin. Its arrays are donated.
    writer: of the log.
    dependencies: the objects that updates use.

  Raises:
    Diverged: the loss has diverged.
  """
  hooks = dependencies.hooks
  stop = dependencies.stop
  goodput = dependencies.goodput
  if hooks.evaluation and run.metadata.owes_evaluation:
    with goodput.spent(hooks.evaluation.activity):
      run = hooks.evaluation(run, writer)
  reports = _Reports(run.metadata, writer, dependencies)
  calls = _Calls(reports, dependencies)
  num_steps = dependencies.recipe.train.num_steps
  per_call = dependencies.updates_per_call
  step = int(run.state.step)
  while step < num_steps and not stop.requested:
    # Calls end at multiples of `per_call`, where log lines and saves are due.
    count = min(per_call - step % per_call, num_steps - step)
    run, chunk = calls.update(run, step, count)
    reports.finish()  # Of the chunk before.
    step += count
    reports.pending = chunk
    stop.poll()
    due = [hook for hook in hooks.on_run if hook.is_due(step)]
    if due:
      reports.finish()
      run = run._replace(metadata=reports.metadata(run.metadata))
      for hook in due:
        with goodput.spent(hook.activity):
          run = hook(run, writer)
      reports.window.continue_timing()
  reports.finish()
  return not stop.poll() and step >= num_steps


class _Reports:
  """Watches and logs the metrics of chunks, one chunk late.

  Attributes:
    guard: against divergence.
    window: the sums since the last log line.
    pending: the chunk that is not reported yet, if there is any.
  """

  def __init__(
    self,
    metadata: run_state.Metadata,
    writer: metrics_log.Writer,
    dependencies: Dependencies,
  ):
    recipe = dependencies.recipe
    self.guard = divergence.Guard(dependencies.rules, metadata.guard)
    self.window = log_window.Window(
      metadata.log_window,
      tokens_read=metadata.tokens_read,
      flops_per_token=log_window.flops_per_token(recipe.model, recipe.train),
    )
    self.pending: _Chunk | None = None
    self._hooks = dependencies.hooks.on_metrics
    self._writer = writer

  def finish(self) -> None:
    """Waits for the metrics of the pending chunk, and watches and logs them.

    Raises:
      Diverged: the loss has diverged.
    """
    if self.pending is None:
      return
    chunk = self.pending
    self.pending = None
    metrics = jax.device_get(chunk.metrics)
    self.guard.watch(metrics, chunk.step)
    self.window.add(metrics, tokens_read=chunk.num_tokens)
    for hook in self._hooks:
      if hook.is_due(chunk.step):
        hook(chunk.step, self.window, self._writer)

  def devices_are_idle(self) -> bool:
    """Whether no device computes a chunk."""
    if self.pending is None:
      return True
    rate = self.pending.metrics.learning_rate
    return rate.is_ready()  # type: ignore[attr-defined]

  def metadata(self, before: run_state.Metadata) -> run_state.Metadata:
    """The metadata of a checkpoint, with the state of the reports."""
    return before._replace(
      log_window=self.window.sums,
      guard=self.guard.metadata(),
      tokens_read=self.window.tokens_read,
    )


class _Calls:
  """Calls the compiled updates, each with the segments that it reads."""

  def __init__(self, reports: _Reports, dependencies: Dependencies):
    recipe = dependencies.recipe
    recovery = reports.guard.recovery
    rate = recovery.rate_factor * recipe.train.learning_rate
    self._train = recipe.train
    self._numbers = programs.numbers(recipe)._replace(learning_rate=rate)
    self._update = programs.update(recipe, dependencies.mesh)
    self._skipped = recovery.skipped
    self._reports = reports
    self._dependencies = dependencies
    self._compiled: set[tuple[int, ...]] = set()

  def update(
    self, run: run_state.RunState, step: int, count: int
  ) -> tuple[run_state.RunState, _Chunk]:
    """Starts `count` updates after `step`, and does not wait for them."""
    first_segment = step * self._train.gradient_segments + self._skipped
    num_segments = count * self._train.gradient_segments
    segments = self._segments(first_segment, num_segments)
    start = time.perf_counter()
    state, memory, metrics = self._update(
      self._numbers, run.state, run.memory, segments
    )
    shape = segments.inputs.shape
    if shape not in self._compiled:  # Compiling is done, if not the update.
      self._compiled.add(shape)
      self._log_compilation(shape, time.perf_counter() - start)
    num_tokens = self._dependencies.stream.num_tokens(
      first_segment, num_segments
    )
    run = run_state.RunState(state, memory, run.metadata)
    return run, _Chunk(step + count, metrics, num_tokens)

  def _segments(self, first: int, count: int) -> segment_lib.Segment[jax.Array]:
    """Segments on the devices; only devices that are idle wait for them."""
    is_idle = self._reports.devices_are_idle()
    start = time.perf_counter()
    segments = streams.device_segments(
      self._dependencies.stream,
      first,
      count,
      mesh_lib.segments(self._dependencies.mesh),
      parts=self._train.accumulation_steps,
    )
    if is_idle:
      seconds = time.perf_counter() - start
      self._dependencies.goodput.add("waiting for data", seconds)
    return segments

  def _log_compilation(self, shape: tuple[int, ...], seconds: float) -> None:
    self._dependencies.goodput.add("compiling", seconds)
    logging.info(
      "Compiled the update in %.1f s, for %d segments of %d.",
      seconds,
      shape[0],
      shape[2],
    )
    self._reports.window.leave_untimed()
