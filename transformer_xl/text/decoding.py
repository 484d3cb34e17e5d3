"""Reads prompts and draws tokens.

A prompt is read in segments. Then a compiled loop draws some tokens per call
with cached keys and values, so that the cost of a token does not depend on the
length of the text.

Shapes: S samples, P tokens of the prompt, D model width, k likeliest tokens.
"""

import functools
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import random_streams
from transformer_xl.model import reader as reader_lib
from transformer_xl.processes import exchange
from transformer_xl.text import language_model
from transformer_xl.text import sampling


class TextState(NamedTuple):
  """A text that was read, which a model can go on from.

  The model remembers whole segments. The tokens after them are read again,
  together with what follows: so a text is read in the same segments, whether
  it comes at once or in pieces, and gives the same numbers.

  Attributes:
    origin: the model that read the text.
    memory: what the model remembers after whole segments.
    recent: the newest tokens of these segments.
    unread: the tokens after them.
    num_read: how many tokens these segments have.
  """

  origin: language_model.Origin
  memory: reader_lib.State
  recent: np.ndarray
  unread: np.ndarray
  num_read: int

  def __repr__(self) -> str:
    return f"<state of a text, read by {self.origin}>"

  @property
  def newest(self) -> np.ndarray:
    """The newest tokens of the text."""
    return np.concatenate([self.recent, self.unread])

  @property
  def num_tokens(self) -> int:
    """The number of all tokens of the text."""
    return self.num_read + len(self.unread)

  def extended(self, tokens: np.ndarray) -> "TextState":
    """The state with more tokens at the end of the text."""
    return self._replace(unread=np.concatenate([self.unread, tokens]))


class Samples(NamedTuple):
  """The tokens drawn so far."""

  tokens: list[np.ndarray]  # One array per sample.
  stopped: list[bool]  # Whether a sample ended with the stop sequence.
  seconds: float  # Spent drawing, without compilation and the prompt.
  prompt: TextState  # After reading it.


# Compiled once for each shape, whichever prompts are continued. The state is
# not donated: a caller may go on from it in several ways.
@functools.partial(jax.jit, static_argnames="reader")
def _read_part(
  reader: reader_lib.Reader,
  frozen: shapes.PyTree,
  state: reader_lib.State,
  tokens: shapes.Tokens,
  count: jt.Int[shapes.Array, ""] | None,
) -> tuple[jt.Float[shapes.Array, "1 1 D"], reader_lib.State]:
  """Reads the first `count` tokens, or all; returns the last hidden state."""
  hidden, state = reader.read(frozen, state, tokens, count=count)
  if count is None:
    return hidden[:, -1:], state
  last = jax.lax.dynamic_slice_in_dim(hidden, count - 1, 1, axis=1)
  return last, state


_begin = jax.jit(sampling.begin, static_argnames="num_samples")
_decode = jax.jit(
  sampling.decode,
  static_argnames=("reader", "settings"),
  donate_argnames="drawing",
)


def empty_state(model: language_model.LanguageModel) -> TextState:
  """The state before the first token of a text."""
  nothing = np.zeros(0, model.vocabulary.dtype)
  return TextState(model.origin, model.start(1), nothing, nothing, num_read=0)


def read_prompt(
  model: language_model.LanguageModel, text: TextState
) -> tuple[TextState, reader_lib.State, jt.Float[shapes.Array, "1 1 D"]]:
  """Reads the tokens of a text that were not read, of which there are some.

  Returns:
    The text, with whole segments read and at least one token after them; the
    reader's state after all tokens; and the last hidden state.
  """
  segment_len = model.reader.segment_len
  num_whole = (len(text.unread) - 1) // segment_len * segment_len
  memory = text.memory
  for start in range(0, num_whole, segment_len):
    segment = text.unread[start : start + segment_len]
    _, memory = _read_segment(model, memory, segment)
  unread = text.unread[num_whole:]
  hidden, state = _read_segment(model, memory, unread)
  recent = np.concatenate([text.recent, text.unread[:num_whole]])
  text = text._replace(
    memory=memory,
    recent=recent[-sampling.REPETITION_WINDOW :],
    unread=unread,
    num_read=text.num_read + num_whole,
  )
  return text, state, hidden


def _read_segment(
  model: language_model.LanguageModel,
  state: reader_lib.State,
  tokens: np.ndarray,
) -> tuple[jt.Float[shapes.Array, "1 1 D"], reader_lib.State]:
  """Reads the tokens of one segment, at least one; pads them to its length.

  Memory tokens are read with a whole segment at once, which no padding ends.
  """
  segment_len = model.reader.segment_len
  padded = np.zeros((1, segment_len), np.int32)
  padded[0, : len(tokens)] = tokens
  count = None
  if len(tokens) < segment_len or not model.reader.config.num_memory_tokens:
    count = np.int32(len(tokens))
  return _read_part(model.reader, model.frozen, state, padded, count)


def likeliest(
  model: language_model.LanguageModel, prompt: np.ndarray, k: int
) -> list[language_model.Candidate]:
  """The k likeliest tokens after a prompt [P], P > 0; the likeliest first."""
  *_, hidden = read_prompt(model, empty_state(model).extended(prompt))
  best = _top_k(model.frozen, hidden, reader=model.reader, k=k)
  log_probs, ids = exchange.fetch(best)
  return model.candidates(ids[0, 0], log_probs[0, 0])


def stream(
  model: language_model.LanguageModel,
  text: TextState,
  *,
  config: schema.GenerateConfig,
  keys: jax.Array,
  stop: tuple[int, ...] = (),
) -> Iterator[Samples]:
  """Draws `config.num_tokens` tokens per sample, in several calls.

  Args:
    model: draws the tokens.
    text: the prompt, with at least one token that was not read.
    config: states how tokens are drawn.
    keys: a random key for each sample, [S].
    stop: a sequence of tokens that ends a sample.

  Yields:
    The samples so far: without tokens after compilation, then after each call.
  """
  settings = sampling.settings_of(config, stop)
  text, state, hidden = read_prompt(model, text)
  reader, frozen, state = language_model.for_tokens(
    model.reader, model.frozen, state
  )
  recent = sampling.newest(
    text.newest,
    window=max(sampling.window(settings), len(stop)),
    vocab_size=model.vocabulary.size,
  )
  hidden = hidden.astype(reader.config.dtype)
  position = np.int32(text.num_tokens)
  drawing = _begin(state, hidden, recent, position, num_samples=len(keys))
  weights = sampling.Weights(frozen, reader.head(frozen))

  def draw(
    drawing: sampling.Drawing, limit: np.int32
  ) -> tuple[sampling.Drawing, jt.Int[shapes.Array, "S C"]]:
    return _decode(
      weights,
      drawing,
      keys=keys,
      limit=limit,
      reader=reader,
      settings=settings,
    )

  # Draws nothing, but is compiled if it was not.
  drawing, _ = jax.block_until_ready(draw(drawing, np.int32(0)))
  start = time.perf_counter()
  drawn = np.zeros((len(keys), 0), model.vocabulary.dtype)
  samples = Samples(list(drawn), [False] * len(keys), 0.0, text)
  yield samples
  while drawn.shape[1] < config.num_tokens and not all(samples.stopped):
    missing = config.num_tokens - drawn.shape[1]
    limit = np.int32(min(config.tokens_per_call, missing))
    drawing, tokens = draw(drawing, limit)
    found = (tokens, drawing.length, drawing.done)
    new, lengths, done = exchange.fetch(found)
    new = new[:, :limit].astype(drawn.dtype)
    drawn = np.concatenate([drawn, new], axis=1)
    rows = [row[:n] for row, n in zip(drawn, lengths, strict=True)]
    seconds = time.perf_counter() - start
    samples = Samples(rows, done.tolist(), seconds, text)
    yield samples


def lower(
  *arrays: shapes.PyTree,
  reader: reader_lib.Reader,
  settings: sampling.SamplingSettings,
) -> jax.stages.Lowered:
  """Lowers the compiled loop of `stream` for abstract arguments.

  Args:
    *arrays: the shapes of the arrays that `sampling.decode` takes, in order.
    reader: reads single tokens.
    settings: states how tokens are drawn.
  """
  return _decode.lower(*arrays, reader=reader, settings=settings)


def sample_keys(seed: int, num_samples: int) -> jax.Array:
  """Returns keys [num_samples]; more samples leave the first keys unchanged."""
  return _sample_keys(jax.random.key(seed), num_samples)


@functools.partial(jax.jit, static_argnames="num_samples")
def _sample_keys(key: jax.Array, num_samples: int) -> jax.Array:
  key = jax.random.fold_in(key, random_streams.Stream.TEXT)
  indices = jnp.arange(num_samples)
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, indices)


@functools.partial(jax.jit, static_argnames=("reader", "k"))
def _top_k(
  frozen: shapes.PyTree,
  hidden: shapes.Hidden,
  *,
  reader: reader_lib.Reader,
  k: int,
) -> tuple[jt.Float[shapes.Array, "B T k"], jt.Int[shapes.Array, "B T k"]]:
  return adaptive_softmax.top_k(hidden, reader.head(frozen), k)
