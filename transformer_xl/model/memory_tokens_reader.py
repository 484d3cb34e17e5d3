"""Reads memory tokens (`memory_tokens`) where they stand in the stream.

A reader of layers reads rows; this one knows which of them are memory tokens.
A whole segment is read with both its groups at once, as in training. A part of
a segment, or a single token, is read alone, and a group when the stream gets to
it: before the first token of a segment, and behind the last.

Shapes: B lanes, T tokens, S memory tokens, D model width.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.model import memory_tokens
from transformer_xl.model import reader_state

# What goes into the first layer, and what comes out of each.
Outputs = tuple[shapes.Hidden, ...]


class ReadRows(Protocol):
  """Reads rows that follow those before them, whatever they are."""

  def __call__(
    self,
    state: reader_state.ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None = None,
    count: jt.Int[shapes.Array, ""] | None = None,
  ) -> tuple[Outputs, reader_state.ReaderState]:
    """The outputs, and the next state of the reader."""


class Finish(Protocol):
  """What follows the last layer; its results are written."""

  def __call__(self, hidden: shapes.Hidden) -> shapes.Hidden:
    """What the layers return, of the output of the last one."""


@dataclasses.dataclass(frozen=True)
class MemoryTokensReader:
  """Reads tokens and the memory tokens around them.

  Attributes:
    read_rows: reads any rows.
    finish: makes what is written of the output of the last layer.
    first: the memory tokens that a document starts with.
    segment_len: tokens of a full segment.
    one_by_one: steps have one row each.
  """

  read_rows: ReadRows
  finish: Finish
  first: jt.Float[shapes.Array, "S D"]
  segment_len: int
  one_by_one: bool

  def read(
    self,
    state: reader_state.ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None,
    count: jt.Int[shapes.Array, ""] | None,
  ) -> tuple[Outputs, reader_state.ReaderState]:
    """What `LayersReader.read_layers` returns, of the tokens alone.

    Raises:
      UserError: the tokens are of two segments. A compiled function does not
        know, and results are wrong.
    """
    num_tokens = vectors.shape[1]
    is_whole = num_tokens == self.segment_len and not self.one_by_one
    if is_whole and count is None:
      self._require_one_segment(state, num_tokens)
      return self._read_whole_segment(state, vectors, resets)
    state, resets = self._read_between_segments(state, resets)
    self._require_one_segment(state, num_tokens)
    return self.read_rows(state, vectors, resets, count)

  def _require_one_segment(
    self, state: reader_state.ReaderState, num_tokens: int
  ) -> None:
    """Raises a UserError for tokens that go on behind the end of a segment."""
    if isinstance(state.position, jax.core.Tracer):
      return
    if int(state.position) + num_tokens > self._end_of_tokens:
      raise reader_state.does_not_fit(num_tokens)

  def _read_whole_segment(
    self,
    state: reader_state.ReaderState,
    vectors: shapes.Hidden,
    resets: shapes.Resets | None,
  ) -> tuple[Outputs, reader_state.ReaderState]:
    """Reads a segment and its memory tokens, all of which see one memory."""
    assert state.memory_tokens is not None
    rows, row_resets = memory_tokens.around(
      vectors, resets, state.length, state.memory_tokens, self.first
    )
    outputs, state = self.read_rows(state, rows, row_resets)
    size = len(self.first)
    written = self.finish(outputs[-1][:, -size:])
    of_tokens = tuple(output[:, size:-size] for output in outputs)
    return of_tokens, state._replace(memory_tokens=written)

  def _read_between_segments(
    self, state: reader_state.ReaderState, resets: shapes.Resets | None
  ) -> tuple[reader_state.ReaderState, shapes.Resets | None]:
    """Reads the memory tokens that stand before the next token, if any do.

    Returns:
      The next state, and the resets that are left for the tokens: a document
      that starts with a segment starts with its memory tokens.
    """
    starts = None if resets is None else resets[:, 0]

    def write_group(
      state: reader_state.ReaderState,
    ) -> reader_state.ReaderState:
      written, state = self._read_group(state, None)
      return state._replace(memory_tokens=written)

    def read_group(state: reader_state.ReaderState) -> reader_state.ReaderState:
      is_new = state.length == 0
      if starts is not None:
        is_new = is_new | starts
      state = self._restarted(state, is_new)
      _, state = self._read_group(state, starts)
      return state

    def same(state: reader_state.ReaderState) -> reader_state.ReaderState:
      return state

    is_end = state.position == self._end_of_tokens
    state = jax.lax.cond(is_end, write_group, same, state)
    is_start = state.position == 0
    state = jax.lax.cond(is_start, read_group, same, state)
    if resets is None:
      return state, None
    resets = jnp.asarray(resets).at[:, 0].set(resets[:, 0] & ~is_start)
    # What is written of a document has nothing of the one before.
    return self._restarted(state, jnp.any(resets, axis=1)), resets

  def _read_group(
    self,
    state: reader_state.ReaderState,
    starts: jt.Bool[shapes.Array, "B"] | None,
  ) -> tuple[memory_tokens.Vectors, reader_state.ReaderState]:
    """What the layers make of one group of memory tokens, and the next state.

    `starts` are lanes whose document starts with them, None if none does.
    """
    vectors = state.memory_tokens
    assert vectors is not None
    resets = None
    if starts is not None:
      resets = jnp.zeros(vectors.shape[:2], bool).at[:, 0].set(starts)

    def read_step(
      state: reader_state.ReaderState,
      rows: tuple[memory_tokens.Vectors, shapes.Resets | None],
    ) -> tuple[reader_state.ReaderState, shapes.Hidden]:
      outputs, state = self.read_rows(state, *rows)
      return state, outputs[-1]

    if not self.one_by_one:
      state, last = read_step(state, (vectors, resets))
    else:  # There are no more slots than for one.
      steps = jax.tree.map(
        lambda rows: jnp.swapaxes(rows, 0, 1)[:, :, None], (vectors, resets)
      )
      state, last = jax.lax.scan(read_step, state, steps)
      last = jnp.swapaxes(last[:, :, 0], 0, 1)
    return self.finish(last), state

  def _restarted(
    self,
    state: reader_state.ReaderState,
    is_new: jt.Bool[shapes.Array, "B"],
  ) -> reader_state.ReaderState:
    """The state with the first memory tokens in lanes of new documents."""
    assert state.memory_tokens is not None
    held = memory_tokens.where_new(is_new, self.first, state.memory_tokens)
    return state._replace(memory_tokens=held)

  @property
  def _end_of_tokens(self) -> int:
    """Position behind the last token of a segment."""
    return len(self.first) + self.segment_len
