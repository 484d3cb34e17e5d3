"""Training: build, restore, loop. The only place that orders side effects.

The order matters. Metrics of a chunk are read while the next one runs, so that
no device waits for the host; but before anything is evaluated or saved all of
them are read, so no state whose loss is not a number is ever saved. Where the
loss diverges, the loop goes back to an older state if it may: divergence.py.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from absl import logging

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import memory_share
from transformer_xl.evaluation import units
from transformer_xl.model import transformer_xl
from transformer_xl.training import averaging
from transformer_xl.training import divergence
from transformer_xl.training import log_window
from transformer_xl.training import preemption
from transformer_xl.training import state as state_lib
from transformer_xl.training import step as step_lib
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import lock
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import train_state


def train(config: schema.ExperimentConfig, workdir: str) -> bool:
  """Trains, or continues to; `--mode=train`.

  Returns:
    Whether all steps are done; False after SIGTERM, with a checkpoint.

  Raises:
    UserError: data, configuration and checkpoints do not fit together, or
      another run is in the workdir.
    DivergenceError: the loss is lost, and so were all tries that
      `config.divergence` allows; the last checkpoint is whole.
  """
  config = load.with_vocab_size(
    config, token_file.read_meta(config.data.dataset_dir)
  )
  lanes: tuple[int, ...] = (
    config.train.batch_size // config.train.accumulation_steps,
  )
  if config.train.eval_every_steps:
    lanes += (config.eval.batch_size,)
  mesh = mesh_lib.make_mesh(config.mesh, lanes=lanes)
  with (
    lock.locked(workdir),
    jax.set_mesh(mesh),
    preemption.StopSignal() as stop,
  ):
    loop = Loop(config, workdir, mesh, stop)
    try:
      return loop.run()
    finally:
      loop.close()


def _report_clusters(
  model: schema.ModelConfig, file: token_file.TokenFile
) -> None:
  """Warns where the softmax's clusters have too little room for the text."""
  if not model.cluster_capacities:
    return
  shares = token_file.tail_shares(file, model.cutoffs)
  logging.info(
    "The tail clusters have %s of the tokens, and room for %s.",
    ", ".join(f"{share:.1%}" for share in shares),
    ", ".join(f"{room:.1%}" for room in model.cluster_capacities),
  )
  tight = zip(shares, model.cluster_capacities, strict=True)
  if any(room < 1.5 * share for share, room in tight):
    logging.warning(
      "Little room makes updates slow, not wrong; three times the shares is "
      "enough: --config.model.cluster_capacities='(%s,)'.",
      ", ".join(f"{min(1.0, 3 * share):.4f}" for share in shares),
    )


def _lanes_moved(saved: dict[str, Any], current: dict[str, Any]) -> bool:
  """Whether lanes go on elsewhere than before the checkpoint, with a warning.

  Raises:
    UserError: the text became another one under the same name.
  """
  saved = {"name": current["name"]} | saved  # Older checkpoints have no name.
  if saved == current:
    return False
  if saved["name"] == current["name"] and saved["sha256"] != current["sha256"]:
    raise errors.UserError(
      f"the training text of {current['name']} (SHA-256 "
      f"{current['sha256'][:12]}) is not the one that this run was trained on "
      f"({saved['sha256'][:12]}): bring that back, start anew in another "
      "--workdir, or go on with other text under another --config.data.name."
    )
  logging.warning(
    "The data, the lanes or the segment length changed: lanes continue "
    "elsewhere in the text."
  )
  return True


class Loop:
  """One run from its restored state to its end."""

  def __init__(
    self,
    config: schema.ExperimentConfig,
    workdir: str,
    mesh: jax.sharding.Mesh,
    stop: preemption.StopSignal,
  ):
    self._config, self._mesh, self._stop = config, mesh, stop
    self._workdir = workdir
    directory = config.data.dataset_dir
    self._stream = streams.TrainStream(
      token_file.open_split(directory, "train"),
      num_lanes=config.train.batch_size,
      segment_len=config.train.segment_len,
      resets=streams.reset_rule(config),
      rotate=config.data.rotate_epochs,
      seed=config.seed,
      lengths=segment_lengths.of(config),
    )
    _report_clusters(config.model, self._stream.file)
    self._evaluator: evaluate.Evaluator | None = None
    if config.train.eval_every_steps:
      self._evaluator = evaluate.Evaluator(
        config, mesh, split="valid", mem_len=config.train.eval_mem_len
      )
    self._memory_use: Callable[..., dict[str, float]] = lambda params: {}
    if config.train.eval_every_steps and config.train.log_memory_use:
      self._memory_use = memory_share.Report(config, mesh)
    self._checkpoints = checkpoint.Checkpoints(
      workdir, config.checkpoint, keep_regular=divergence.num_kept(config)
    )
    self._policy = checkpoint.SavePolicy(config.checkpoint)
    self._start()
    run_record.record(config, workdir)
    run_record.keep_vocabulary(directory, workdir)
    self._writer = self._open_writer()

  def _open_writer(self) -> metrics_log.Writer:
    return metrics_log.Writer(
      self._workdir, step=self._step, num_steps=self._config.train.num_steps
    )

  def _start(self) -> None:
    """Restores the newest checkpoint, or draws parameters."""
    self._restore()
    self._compile()

  def _compile(self) -> None:
    factor, train = self._guard.answer.rate_factor, self._config.train
    train = dataclasses.replace(
      train, learning_rate=factor * train.learning_rate
    )
    config = dataclasses.replace(self._config, train=train)
    self._update = step_lib.compiled_update(config, self._mesh)
    self._compiled_lens: set[int] = set()

  def _restore(self) -> None:
    config, mesh = self._config, self._mesh
    create_state, create_memory = state_lib.creators(config)
    targets = state_lib.placed_state(config, mesh)
    places = jax.tree.map(lambda leaf: leaf.sharding, targets)
    create_state = jax.jit(create_state, out_shardings=places[0])
    create_memory = jax.jit(create_memory, out_shardings=places[1])
    self._create_memory = create_memory
    restored = self._checkpoints.restore_newest(*targets)
    self._averaging = averaging.Start(config.train)
    if restored is None:
      self._step, self._window = 0, log_window.Window()
      self._guard = divergence.Guard(config)
      self._owes_evaluation = False
      self._state, self._memory = create_state(), create_memory()
      count = transformer_xl.num_parameters(self._state.params)
      logging.info("Starting with %d new parameters.", count)
      return
    self._state, self._memory = restored.state, restored.memory
    self._step = int(restored.state.step)
    saved = restored.metadata.get("averaging")
    self._averaging.restore(saved, step=self._step)
    self._tell_averaging(targets[0])
    self._window = log_window.Window(restored.metadata["window"])
    self._guard = divergence.Guard(config, restored.metadata.get("guard"))
    self._owes_evaluation = restored.metadata.get("owes_evaluation", False)
    logging.info("Resuming after step %d.", self._step)
    if restored.memory is None:
      logging.warning("Lanes or memory length changed: memory starts empty.")
      self._memory = create_memory()
    if _lanes_moved(restored.metadata["data"], self._data_description()):
      self._guard.forget_losses()

  def _tell_averaging(self, state: train_state.TrainState) -> None:
    """Puts the start of averaging where the compiled update reads it."""
    if state.average_start is not None:
      start = np.asarray(self._averaging.step, np.int32)
      start = jax.device_put(start, state.average_start.sharding)
      self._state = self._state._replace(average_start=start)

  def run(self) -> bool:
    """Trains until the last step or a signal; goes back as it has to."""
    while True:
      try:
        return self._advance()
      except divergence.Diverged as trouble:
        self._rewind(trouble)

  def _rewind(self, trouble: divergence.Diverged) -> None:
    """Goes on from before the trouble, in another way than last time."""
    answer = self._guard.respond(trouble, self._checkpoints.steps())
    event = answer.events[-1]
    logging.warning(
      "Step %d: %s so back to step %d, try %d: %s (%d segments skipped so "
      "far, learning rate times %g).",
      *(event[name] for name in ("detected_at", "divergence", "rewound_to")),
      *(event[name] for name in ("tries", "action", "skipped", "rate_factor")),
    )
    self._checkpoints.drop_after(event["rewound_to"])
    del self._state, self._memory  # There may not be room for two.
    self._restore()
    self._guard.answer = answer
    if event["action"] == "skip":  # What follows is another text.
      self._memory = self._create_memory()
    self._compile()
    self._writer.close()
    self._writer = self._open_writer()
    for record in answer.events:
      if record["step"] > self._step:
        self._writer.write(record)

  def _advance(self) -> bool:
    """Updates, logs, evaluates and saves until the last step or a signal."""
    train, pending = self._config.train, None
    if self._owes_evaluation:
      self._evaluate()
    while self._step < train.num_steps and not self._stop.requested:
      done = self._step
      count = train.segments_per_call - done % train.segments_per_call
      count = min(count, train.num_steps - done)
      place = done + self._guard.answer.skipped
      segments = streams.device_segments(
        self._stream, place, count, mesh_lib.segments(self._mesh)
      )
      start = time.perf_counter()
      self._state, self._memory, metrics = self._update(
        self._state, self._memory, segments
      )
      length = self._stream.length_at(place)
      if length not in self._compiled_lens:
        # The call returns before the device is done, but after compiling.
        seconds = time.perf_counter() - start
        logging.info(
          "Compiled the update in %.1f s, for segments of %d.", seconds, length
        )
        if self._compiled_lens:
          self._window.continue_timing()
        self._compiled_lens.add(length)
      if pending is not None:
        self._log(*pending)
      self._step = done + count
      pending = (self._step, metrics)
      self._stop.poll()
      saves = self._is_last() or self._policy.is_due(self._step)
      if saves or self._evaluation_is_due():
        self._log(*pending)
        pending = None
        self._pause(saves=saves)
    if pending is not None:
      self._log(*pending)
    return not self._stop.poll() and self._step >= train.num_steps

  def _log(self, step: int, metrics: step_lib.UpdateMetrics) -> None:
    """Reads the metrics of the chunk that ended at `step`."""
    metrics = jax.device_get(metrics)
    self._guard.watch(metrics, step)
    self._window.add(metrics)
    if step % self._config.train.log_every_steps == 0:
      record = self._window.record(step, self._config)
      self._writer.write(record)
      self._writer.progress(record)

  def _is_last(self) -> bool:
    return self._step >= self._config.train.num_steps or self._stop.requested

  def _evaluation_is_due(self) -> bool:
    every = self._config.train.eval_every_steps
    ends = self._step >= self._config.train.num_steps
    return bool(every) and (ends or self._step % every == 0)

  def _pause(self, *, saves: bool) -> None:
    """Evaluates, then saves with the result; a signal puts off the former."""
    nll = None
    if self._evaluation_is_due() and not self._stop.requested:
      nll = self._evaluate()
    if saves or self._is_last() or nll is not None:
      self._save(nll)
    self._window.continue_timing()

  def _evaluate(self) -> float | None:
    """The validation loss; None without one or if a signal came meanwhile."""
    if self._evaluator is None:
      return None
    state = self._state
    averaged = self._config.eval.parameters != "raw"
    params = state.average if averaged else state.params
    score = self._evaluator.score_until(params, should_stop=self._stop.poll)
    if score is None:
      return None
    nll = score.nll / score.num_tokens
    if not math.isfinite(nll):
      raise divergence.Diverged("the validation loss is not finite", self._step)
    record: dict[str, Any] = {
      "step": self._step,
      "split": "valid",
      "nll": nll,
      "perplexity": units.perplexity(nll),
      "num_tokens": score.num_tokens,
      "mem_len": self._config.train.eval_mem_len,
      **self._memory_use(params),
    }
    self._writer.write(record)
    logging.info(
      "step %d  valid nll %.4f  perplexity %.3f  [memory %d]",
      self._step,
      nll,
      record["perplexity"],
      record["mem_len"],
    )
    if self._averaging.add(nll, step=self._step):
      logging.info("Averaging starts: this loss is no longer the best.")
      self._tell_averaging(self._state)
    return nll

  def _save(self, nll: float | None) -> None:
    # The last update's loss was computed before it.
    norm = jax.jit(optax.global_norm)(self._state.params)
    if not math.isfinite(norm):
      raise divergence.Diverged(
        "the norm of the parameters is not finite", self._step
      )
    metadata = {
      "window": self._window.sums,
      "guard": self._guard.metadata(),
      "data": self._data_description(),
      "owes_evaluation": nll is None and self._evaluation_is_due(),
      "averaging": self._averaging.saved(),
    }
    self._checkpoints.save(
      self._state, self._memory, metadata=metadata, nll=nll
    )
    self._policy.saved()

  def _data_description(self) -> dict[str, Any]:
    return {
      "name": self._config.data.name,
      "sha256": self._stream.file.sha256,
      "batch_size": self._config.train.batch_size,
      "segment_len": self._config.train.segment_len,
      **self._drawn_lengths(),
    }

  def _drawn_lengths(self) -> dict[str, Any]:
    """What else says where a step is in the text, if segments differ."""
    train = self._config.train
    if not train.segment_lens:
      return {}
    calls = {"segments_per_call": train.segments_per_call}
    return {"segment_lens": list(train.segment_lens), **calls}

  def close(self) -> None:
    """Waits until what is being saved is saved."""
    self._checkpoints.close()
    self._writer.close()
