"""The state of a run: what initialisation makes and a checkpoint holds."""

from typing import Any
from typing import NamedTuple

import jax
import jaxtyping as jt
import numpy as np

from transformer_xl import shapes
from transformer_xl.model import network

NEVER = 2**31 - 1  # A step that no run reaches.
# Names in `to_json`.
CHANGED_BY_EVALUATION = ("owes_evaluation", "averaging")


class TrainState(NamedTuple):
  """What an update changes, apart from memory."""

  step: jt.Int[shapes.Array, ""]  # Completed updates; index of the next one.
  params: shapes.PyTree
  opt_state: shapes.PyTree
  average: shapes.PyTree = None  # EMA or ASGD average of the parameters.
  # ASGD averages over the updates after this one; None without ASGD.
  average_start: jt.Int[shapes.Array, ""] | None = None


def with_average_start(state: TrainState, start: int) -> TrainState:
  """Sets the start of averaging, unless the state has none."""
  old = state.average_start
  if old is None:
    return state
  value = jax.device_put(np.asarray(start, np.int32), old.sharding)
  return state._replace(average_start=value)


class Metadata(NamedTuple):
  """Facts that the host keeps; JSON in a checkpoint."""

  log_window: dict[str, float] | None = None  # Sums since the last log line.
  guard: dict[str, Any] | None = None  # Of `divergence.Guard`.
  data: dict[str, Any] | None = None  # The training text and how it is cut.
  owes_evaluation: bool = False  # A signal prevented the one of this step.
  validation_losses: tuple[float, ...] = ()  # In nats, oldest first.
  tokens_read: int = 0  # By all updates.
  # Where the first parameters are from; None if they were drawn.
  initialised_from: dict[str, Any] | None = None


class RunState(NamedTuple):
  """Everything from which a run continues."""

  state: TrainState
  # None after restoring where lanes or memory length have changed.
  memory: network.State | None
  metadata: Metadata = Metadata()
  validation_loss: float | None = None  # Of this very state, if evaluated.


def to_json(run: RunState) -> dict[str, Any]:
  """The metadata as a checkpoint stores them."""
  start, stored = run.state.average_start, run.metadata._asdict()
  return {
    "window": stored.pop("log_window"),
    "averaging": {
      "step": NEVER if start is None else int(start),
      "losses": list(stored.pop("validation_losses")),
    },
    **stored,
  }


def from_json(stored: dict[str, Any]) -> tuple[Metadata, int]:
  """The metadata of a checkpoint, and the start of its ASGD average."""
  metadata = Metadata(
    log_window=stored["window"],
    guard=stored["guard"],
    data=stored["data"],
    owes_evaluation=stored["owes_evaluation"],
    validation_losses=tuple(stored["averaging"]["losses"]),
    tokens_read=stored["tokens_read"],
    initialised_from=stored["initialised_from"],
  )
  return metadata, stored["averaging"]["step"]
