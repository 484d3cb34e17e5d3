"""A run of training, from its lock to its last save.

It starts or continues, updates (`updates`), and if the loss diverges, rewinds
to an older state where the configuration allows it (`divergence`).
"""

import contextlib
from typing import NoReturn

import jax
from absl import logging

from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.processes import others
from transformer_xl.training import divergence
from transformer_xl.training import hooks as hooks_lib
from transformer_xl.training import preemption
from transformer_xl.training import programs
from transformer_xl.training import resume
from transformer_xl.training import updates
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import chosen_tracker
from transformer_xl.workdir import goodput as goodput_lib
from transformer_xl.workdir import lock
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import run_state


def train(config: schema.ExperimentConfig, workdir: str) -> int:
  """Starts or continues training, and returns how many updates the run has.

  Raises:
    StoppedError: a signal stopped it on a checkpoint; the same call continues.
    UserError: data, configuration and checkpoints do not fit together, another
      run is in the workdir, or the tracker cannot be imported.
    DivergenceError: the loss has diverged in all tries; the last checkpoint is
      good.
    LostProcessError: another process is gone.
  """
  chosen_tracker.find(config.train.tracker)  # Before any work.
  data_dir = config.data.dataset_dir
  config = load.with_vocab_size(config, token_file.read_meta(data_dir))
  recipe = config.recipe
  mesh = programs.make_mesh(recipe, config.mesh)
  logging.info("%s", programs.describe_mesh(config.train, mesh))
  per_call = config.updates_per_call
  _log_calls(per_call, wanted=config.train.segments_per_call)
  with (
    lock.locked(workdir),
    jax.set_mesh(mesh),
    preemption.StopSignal() as stop,
  ):
    run_record.check_vocabulary(data_dir, workdir)
    goodput = goodput_lib.Goodput(workdir)
    stream = open_stream(recipe, config.data)
    _report_clusters(config.model, stream.file)
    rules = divergence.Rules(
      config.divergence,
      every_steps=config.checkpoint.every_steps,
      gradient_segments=config.train.gradient_segments,
    )
    with (
      checkpoint.Checkpoints(
        workdir, config.checkpoint, keep_regular=rules.num_kept
      ) as checkpoints,
      others.on_failure(),
    ):
      # First, since it refuses what cannot be evaluated and compiles nothing.
      hooks = hooks_lib.make(config, mesh, workdir, checkpoints, stop, goodput)
      # Before the checkpoint is read, which some changes make impossible.
      run_record.log_changes(config.as_saved(), workdir)
      setup = resume.RunSetup(recipe, config.data, mesh, stream, checkpoints)
      run = resume.start(setup)
      # If the arrays found no room, this raises, and `int` would never return.
      jax.block_until_ready((run.state, run.memory))
      step = int(run.state.step)
      last = config.train.num_steps
      goodput.started(step)
      if step >= last and not run.metadata.owes_evaluation:
        _log_finished(step, last)
        if stop.poll():  # While the checkpoint was read.
          _raise_stopped(stop, checkpoints, config.train)
        return step
      source = run.metadata.initialised_from
      run_record.record(config, workdir, step=step, initialised_from=source)
      run_record.keep_vocabulary(data_dir, workdir)
      dependencies = updates.Dependencies(
        recipe, mesh, stream, hooks, stop, goodput, rules, per_call
      )
      while True:
        recovery = divergence.recovery_of(run.metadata.guard)
        writer = _open_writer(config.train, workdir, run, recovery)
        with contextlib.closing(writer):
          try:
            is_done = updates.advance(run, writer, dependencies)
            break
          except divergence.Diverged as trouble:
            recovery = rules.respond(recovery, trouble, checkpoints.steps())
        del run  # There may not be room for two.
        run = resume.rewind(setup, recovery)
      with goodput.spent("saving"):
        checkpoints.wait()
      logging.info("Time of the run: %s.", goodput)
      # After a signal during the last save, nothing follows training either.
      if stop.poll() or not is_done:
        _raise_stopped(stop, checkpoints, config.train)
    return last


def _log_calls(per_call: int, *, wanted: int) -> None:
  """Says how many updates a compiled call has, if that is not as wanted."""
  if per_call < wanted:
    logging.info(
      "Updates in a call: %d, not train.segments_per_call=%d, so that log "
      "lines, validations and checkpoints come between calls.",
      per_call,
      wanted,
    )


def _log_finished(step: int, last: int) -> None:
  """Says why nothing is trained."""
  logging.info(
    "Training is finished: the run has %d steps and train.num_steps=%d. "
    "To train on, set a higher --config.train.num_steps.",
    step,
    last,
  )


def _raise_stopped(
  stop: preemption.StopSignal,
  checkpoints: checkpoint.Checkpoints,
  train: schema.TrainConfig,
) -> NoReturn:
  """Raises the StoppedError of a signal, once the log says where to go on."""
  _log_stop(checkpoints, validates=train.eval_every_steps > 0)
  raise errors.StoppedError(stop.number)


def _log_stop(checkpoints: checkpoint.Checkpoints, *, validates: bool) -> None:
  """Says what the checkpoint of a stop lacks, and last where it is."""
  newest = max(checkpoints.steps(), default=None)
  if newest is None:
    logging.warning(
      "Stopped before the first checkpoint; the same command starts again."
    )
    return
  best = checkpoints.best_step()
  if validates and not checkpoints.is_validated(newest):
    logging.warning(
      "Checkpoint %d has not been validated. Until the run continues, "
      "--config.eval.checkpoint=best reads %s, and latest reads it.",
      newest,
      "none" if best is None else best,
    )
  # Schedulers look for this line.
  logging.warning("Saved at step %d; the same command continues.", newest)


def open_stream(
  recipe: schema.Recipe, data: schema.DataConfig
) -> streams.TrainStream:
  """The segments that a run trains on."""
  train = recipe.train
  return streams.TrainStream(
    token_file.open_split(data.dataset_dir, "train"),
    num_lanes=train.batch_size,
    segment_len=train.segment_len,
    resets=streams.reset_rule(data, recipe.model),
    lengths=segment_lengths.of(train, recipe.seed),
    context_len=train.context_len,
    targets=data.targets,
  )


def _open_writer(
  train: schema.TrainConfig,
  workdir: str,
  run: run_state.RunState,
  recovery: divergence.Recovery,
) -> metrics_log.Writer:
  """Opens `metrics.jsonl` to continue from the run's step.

  Lines of later steps are dropped, except for events of divergence.
  """
  step = int(run.state.step)
  writer = metrics_log.Writer(
    workdir,
    step=step,
    num_steps=train.num_steps,
    is_evaluated=not run.metadata.owes_evaluation,
    tracker=train.tracker,
  )
  for event in recovery.events:
    if event["step"] > step:
      writer.write(event)
  return writer


def _report_clusters(
  model: schema.ModelConfig, file: token_file.TokenFile
) -> None:
  """Warns if the capacities of the softmax's clusters are low for the text."""
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
