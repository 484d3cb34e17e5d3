"""A trace of some updates for XProf and TensorBoard."""

import math
import os

import jax
from absl import logging

from transformer_xl import storage
from transformer_xl.config import schema
from transformer_xl.training import preemption
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_state

FOLDER = "profile"  # In the workdir.
START_STEP = 20  # Updates before the trace, so that compiling is over.


class Trace:
  """A hook that starts the profiler and stops it again.

  It works between calls of several updates, so that the first and the last
  traced update are rounded up to whole calls. A run that resumes within the
  window writes no trace of it.
  """

  activity = "profiling"

  def __init__(
    self,
    train: schema.TrainConfig,
    per_call: int,
    workdir: str,
    stop: preemption.StopSignal,
  ):
    """Rounds `train.profile_steps` up to calls of `per_call` updates."""
    self._folder = os.path.join(storage.local(workdir), FOLDER)
    self._shown = os.path.join(workdir, FOLDER)
    self._stop = stop
    num_steps = train.profile_steps
    self._first = math.ceil(START_STEP / per_call) * per_call
    self._last = self._first + math.ceil(num_steps / per_call) * per_call
    self._end = train.num_steps
    self._is_tracing = False
    if self._first >= self._end:
      logging.warning(
        "train.profile_steps=%d traces nothing: a trace starts after update "
        "%d, and the run ends at %d; set a higher --config.train.num_steps.",
        num_steps,
        self._first,
        self._end,
      )

  def is_due(self, step: int) -> bool:
    """Whether the trace starts here, or ends with its window or the run."""
    if not self._is_tracing:
      return step == self._first < self._end
    return step >= min(self._last, self._end) or self._stop.requested

  def __call__(
    self, run: run_state.RunState, writer: metrics_log.Writer
  ) -> run_state.RunState:
    """Starts or stops the profiler; the run stays as it is."""
    del writer
    if self._is_tracing:
      jax.profiler.stop_trace()
      logging.info(
        "Traced updates %d to %d: xprof --logdir=%s shows them.",
        self._first + 1,
        int(run.state.step),
        self._shown,
      )
    else:
      options = jax.profiler.ProfileOptions()
      options.python_tracer_level = 0  # Nearly all of the events, and slow.
      jax.profiler.start_trace(self._folder, profiler_options=options)
    self._is_tracing = not self._is_tracing
    return run
