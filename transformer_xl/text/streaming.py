"""Reads several lanes of tokens, a few at a time, for as long as one likes.

Shapes: B lanes, T tokens of a call, V vocabulary.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np
from numpy.typing import ArrayLike

from transformer_xl import arguments
from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.model import reader as reader_lib
from transformer_xl.text import language_model


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StreamState:
  """The state of a model after the tokens that `step` read in each lane.

  Attributes:
    memory: what each layer remembers.
    origin: the model that the state was made with.
  """

  memory: reader_lib.State
  origin: language_model.Origin = dataclasses.field(metadata={"static": True})

  def __repr__(self) -> str:
    return f"<state of {self.num_lanes} lanes, read by {self.origin}>"

  @property
  def num_lanes(self) -> int:
    """The number of lanes, B."""
    return self.memory.num_lanes


def read(
  model: language_model.LanguageModel,
  state: StreamState,
  tokens: ArrayLike,
  resets: ArrayLike | None,
  *,
  reader: reader_lib.Reader,
  frozen: shapes.PyTree,
) -> tuple[StreamState, jt.Float[shapes.Array, "B T V"]]:
  """Checks the arguments, which people pass, and reads as `step` does.

  Args:
    model: made the first state.
    state: what is remembered of the tokens before.
    tokens: ids [B, T].
    resets: [B, T], True where a token is the first of a document.
    reader: of single tokens.
    frozen: its parameters.

  Raises:
    UserError: the state is of another model, or an array is not as it should
      be.
  """
  if not isinstance(state, StreamState):
    raise errors.UserError(
      "state must be that of model.init_state() or of the last step: it is a "
      f"{type(state).__name__}."
    )
  language_model.check_origin(state.origin, model)
  ids = arguments.array(tokens, "tokens")
  lanes = state.num_lanes
  if ids.ndim != 2 or len(ids) != lanes:
    raise errors.UserError(
      f"tokens have the shape {ids.shape}, but the state has {lanes} "
      f"lanes: pass ids [{lanes}, T]."
    )
  size = model.vocabulary.size
  if ids.dtype.kind not in "iu":
    raise errors.UserError(
      f"tokens must be integers from 0 to {size - 1}; these are {ids.dtype}."
    )
  least = ids.min(initial=0)
  most = ids.max(initial=0)
  if least < 0 or most >= size:
    raise errors.UserError(
      f"tokens must be integers from 0 to {size - 1}; these are "
      f"{ids.dtype} from {least} to {most}."
    )
  starts = None
  if resets is not None:
    starts = arguments.array(resets, "resets").astype(bool)
    if starts.shape != ids.shape:
      raise errors.UserError(
        f"resets have the shape {starts.shape}, tokens {ids.shape}; pass "
        "one for each token."
      )
  memory, log_probs = step(
    frozen, state.memory, ids.astype(np.int32), starts, reader=reader
  )
  return StreamState(memory, state.origin), log_probs


# The state is not donated: a caller may go on from it in several ways.
@functools.partial(jax.jit, static_argnames="reader")
def step(
  frozen: shapes.PyTree,
  state: reader_lib.State,
  tokens: shapes.Tokens,
  resets: shapes.Resets | None,
  *,
  reader: reader_lib.Reader,
) -> tuple[reader_lib.State, jt.Float[shapes.Array, "B T V"]]:
  """Reads tokens one by one, so that T may change from call to call.

  `Reader.for_tokens` makes the reader and its first state. `resets` [B, T] is
  True where a token is the first of a document; None is for nowhere.

  Returns:
    The next state, and the log-probabilities of every next token.
  """

  def read(
    state: reader_lib.State, column: tuple[jax.Array, jax.Array | None]
  ) -> tuple[reader_lib.State, jt.Float[shapes.Array, "B V"]]:
    token, reset = column
    reset = None if reset is None else reset[:, None]
    log_probs, state = reader.step(frozen, state, token[:, None], reset)
    return state, log_probs[:, 0]

  columns = tokens.T, None if resets is None else resets.T
  state, log_probs = jax.lax.scan(read, state, columns)
  return state, jnp.swapaxes(log_probs, 0, 1)
