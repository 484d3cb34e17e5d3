"""Reads several lanes of tokens, a few at a time, for as long as one likes.

Shapes: B lanes, T tokens of a call, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.model import reader as reader_lib


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
