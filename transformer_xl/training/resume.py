"""The run that training starts from: a new one, or the newest checkpoint."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
from absl import logging

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.model import lora
from transformer_xl.model import network
from transformer_xl.training import divergence
from transformer_xl.training import initial_parameters
from transformer_xl.training import programs
from transformer_xl.training import rate_factors
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_state

# Which tokens the loss is of; the text and the memory are the same.
_OF_LOSS = ("targets", "loss_on")


class RunSetup(NamedTuple):
  """The set-up that a run has to fit, with the checkpoints to start from."""

  recipe: schema.Recipe
  data: schema.DataConfig
  mesh: jax.sharding.Mesh
  stream: streams.TrainStream
  checkpoints: checkpoint.Checkpoints


def start(setup: RunSetup) -> run_state.RunState:
  """Restores the newest checkpoint, or starts a new run.

  Raises:
    UserError: the checkpoint is of another model, optimizer or training text,
      or a new run cannot start from the parameters that it names.
  """
  recipe = setup.recipe
  train = recipe.train
  create_state, create_memory = programs.creators(recipe, setup.mesh)
  data = _describe_data(setup)
  target = programs.sharded_abstract_state(recipe, setup.mesh)
  names = rate_factors.frozen_names(target[0].params, train)
  frozen = tuple(names)
  adapters = lora.settings(train)
  run = setup.checkpoints.restore_newest(
    *target, check=functools.partial(_check_trained, frozen, adapters)
  )
  if run is None:
    state, metadata = _new(setup, create_state)
    metadata = metadata._replace(
      data=data,
      average_start=train.asgd_start_step,
      frozen=frozen,
      adapters=adapters and adapters._asdict(),
    )
    return run_state.RunState(state, create_memory(), metadata)
  state = run.state
  memory = run.memory
  metadata = run.metadata
  step = int(state.step)
  logging.info("Resuming after step %d.", step)
  source = train.init_from
  if source and metadata.initialised_from is None:
    raise errors.UserError(
      f"train.init_from={source} is for new runs, but the one in the workdir "
      f"is at step {step} and did not start from there: choose another "
      "--workdir, or set --config.train.init_from= to continue that run."
    )
  if adapters:
    assert metadata.initialised_from is not None  # Adapters have a base.
    state = state._replace(
      base=initial_parameters.load_base(
        recipe, setup.mesh, metadata.initialised_from
      )
    )
  average_start = train.asgd_start_step
  if average_start < step and average_start not in (0, metadata.average_start):
    raise errors.UserError(
      f"train.asgd_start_step={average_start}, but the run is at step {step} "
      "and kept no mean of the parameters since then; set "
      f"--config.train.asgd_start_step={metadata.average_start or step}."
    )
  if train.ema_decay and 0 < metadata.average_start < step:
    raise errors.UserError(
      f"train.ema_decay={train.ema_decay:g}, but the run keeps the mean "
      f"of its parameters since step {metadata.average_start}: set "
      "--config.train.ema_decay=0 --config.train.asgd_start_step="
      f"{metadata.average_start}."
    )
  assert metadata.data is not None  # Every run has it.
  moved = _lanes_moved(metadata.data, data)
  if memory is None or moved:  # It would be of text that does not precede.
    logging.warning(
      "The text, its lanes or the memory length changed: memory starts empty."
    )
    memory = create_memory()
  other_loss = any(metadata.data.get(name) != data[name] for name in _OF_LOSS)
  # Losses of other tokens are not comparable.
  if (moved or other_loss) and metadata.guard:
    answer = metadata.guard["answer"]
    guard = divergence.no_losses() | {"answer": answer}
    metadata = metadata._replace(guard=guard)
  evaluates = metadata.owes_evaluation and train.eval_every_steps > 0
  metadata = metadata._replace(
    data=data, owes_evaluation=evaluates, average_start=average_start
  )
  return run_state.RunState(state, memory, metadata)


def _check_trained(
  frozen: tuple[str, ...],
  adapters: lora.Settings | None,
  metadata: run_state.Metadata,
) -> None:
  """Refuses a checkpoint of which other parameters were trained.

  Args:
    frozen: names of those that are frozen. The state of the optimizer has no
      arrays for them, so that it would not fit.
    adapters: what is trained in place of a model's parameters.
    metadata: of the checkpoint.

  Raises:
    UserError: it is.
  """
  before = lora.from_json(metadata.adapters)
  if adapters != before:
    raise errors.UserError(
      f"the run in the workdir was trained with {_lora_text(before)}, and now "
      f"it has {_lora_text(adapters)}: set the fields back to resume, or start "
      "a new run from this one with --config.train.init_from."
    )
  changed = sorted({*frozen} ^ {*metadata.frozen})
  if changed:
    raise errors.UserError(
      f"{changed[0]} is {'frozen' if changed[0] in frozen else 'trained'} by "
      "train.learning_rate_factors, which it was not before: set that back to "
      "resume, or start a new run from this one with --config.train.init_from."
    )


def _lora_text(adapters: lora.Settings | None) -> str:
  if adapters is None:
    return "train.lora.rank=0"
  return ", ".join(
    f"train.lora.{name}={value}" for name, value in adapters._asdict().items()
  )


def _new(
  setup: RunSetup, create_state: Callable[..., run_state.TrainState]
) -> tuple[run_state.TrainState, run_state.Metadata]:
  """The state of a new run, with drawn parameters or those of another run.

  Parameters that were trained are evaluated before the first update.
  """
  if not setup.recipe.train.init_from:
    state = create_state()
    count = network.num_parameters(state.params)
    logging.info("Starting with %d new parameters.", count)
    return state, run_state.Metadata()
  params, source = initial_parameters.load(
    setup.recipe, setup.data.dataset_dir, setup.mesh
  )
  count = network.num_parameters(params)
  logging.info(
    "Starting with the %d parameters of %s after step %d, and %d new symbols.",
    count,
    source["workdir"],
    source["checkpoint_step"],
    source["new_symbols"],
  )
  state = create_state(params)
  if state.base is not None:
    logging.info(
      "These stay as they are; %d parameters are trained.",
      network.num_parameters(state.params),
    )
  evaluates = setup.recipe.train.eval_every_steps > 0
  return state, run_state.Metadata(
    owes_evaluation=evaluates, initialised_from=source
  )


def rewind(
  setup: RunSetup, recovery: divergence.Recovery
) -> run_state.RunState:
  """The run before it diverged, with what was decided."""
  event = recovery.events[-1]
  logging.warning(
    "Step %(detected_at)d: %(divergence)s so back to step %(rewound_to)d, try "
    "%(tries)d: %(action)s (%(skipped)d segments skipped so far, learning rate "
    "times %(rate_factor)g).",
    event,
  )
  recipe = setup.recipe
  if not event["rewound_to"] and recipe.train.init_from:
    # Raises if the source has gone, before the run's checkpoints are deleted.
    initial_parameters.load(recipe, setup.data.dataset_dir, setup.mesh)
  setup.checkpoints.drop_after(event["rewound_to"])
  run = start(setup)
  if event["action"] == "skip":  # Other text follows.
    _, create_memory = programs.creators(recipe, setup.mesh)
    run = run._replace(memory=create_memory())
  before = run.metadata.guard or divergence.no_losses()
  guard = before | {"answer": list(recovery)}
  return run._replace(metadata=run.metadata._replace(guard=guard))


def _describe_data(setup: RunSetup) -> dict[str, object]:
  """The facts that determine which text, and where in it, a step reads.

  And of which of its tokens the loss is.
  """
  train = setup.recipe.train
  return {
    "name": setup.data.name,
    "sha256": setup.stream.file.sha256,
    "batch_size": train.batch_size,
    "segment_len": train.segment_len,
    "segment_len_std": train.segment_len_std,
    "gradient_segments": train.gradient_segments,
    "seed": setup.recipe.seed if train.segment_len_std else None,
    "targets": setup.data.targets,
    "loss_on": train.loss_on,
  }


def _lanes_moved(saved: metrics_log.Json, current: metrics_log.Json) -> bool:
  """Whether lanes continue elsewhere in the text, with a warning if so.

  Raises:
    UserError: the text has changed but not its name.
  """
  if all(
    saved[name] == current[name] for name in current if name not in _OF_LOSS
  ):
    return False
  if saved["name"] == current["name"] and saved["sha256"] != current["sha256"]:
    raise errors.UserError(
      f"the training text of {current['name']} (SHA-256 "
      f"{current['sha256'][:12]}) is not the one that this run was trained on "
      f"({saved['sha256'][:12]}): restore that text, start over in another "
      "--workdir, or prepare other text with this run's vocabulary under "
      "another --config.data.name."
    )
  logging.warning(
    "The data, the lanes or the segment length changed: lanes continue "
    "elsewhere in the text."
  )
  return True
