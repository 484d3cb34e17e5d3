"""The state of a run: what initialisation makes and a checkpoint holds."""

from typing import NamedTuple

import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.model import network
from transformer_xl.workdir import metrics_log


class TrainState(NamedTuple):
  """The state that an update changes, apart from memory."""

  step: jt.Int[shapes.Array, ""]  # Completed updates; index of the next one.
  params: shapes.PyTree
  opt_state: shapes.PyTree
  average: shapes.PyTree | None = None  # EMA or ASGD average of the parameters.
  # Beside adapters, the parameters that no update changes. They are not saved.
  base: shapes.PyTree | None = None


class Metadata(NamedTuple):
  """Facts that the host keeps; JSON in a checkpoint."""

  log_window: dict[str, float] | None = None  # Sums since the last log line.
  guard: metrics_log.Json | None = None  # Of `divergence.Guard`.
  data: metrics_log.Json | None = None  # The training text and how it is cut.
  owes_evaluation: bool = False  # A signal prevented the one of this step.
  average_start: int = 0  # The mean is over the updates after this; 0 for none.
  tokens_read: int = 0  # By all updates.
  frozen: tuple[str, ...] = ()  # Names of parameters that are not trained.
  # Where the first parameters are from; None if they were drawn.
  initialised_from: metrics_log.Json | None = None
  # Of `lora.Settings`; None if all parameters are trained, or frozen by name.
  adapters: metrics_log.Json | None = None


class RunState(NamedTuple):
  """Everything from which a run continues."""

  state: TrainState
  # None after restoring where lanes or memory length have changed.
  memory: network.State | None
  metadata: Metadata = Metadata()
  validation_loss: float | None = None  # Of this very state, if evaluated.
  validation_text: str = ""  # Which text, and tokens of it, the loss is of.


def to_json(run: RunState) -> metrics_log.Json:
  """The metadata as a checkpoint stores them."""
  return run.metadata._asdict()


def from_json(stored: metrics_log.Json) -> Metadata:
  """The metadata of a checkpoint."""
  metadata = Metadata(**{name: stored[name] for name in Metadata._fields})
  return metadata._replace(frozen=tuple(metadata.frozen))
