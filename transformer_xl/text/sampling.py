"""Draws tokens one after another in a compiled loop.

Every sample depends only on its own random key, so it is the same alone as
among others. A token is drawn with that key and its position in the text.

Shapes: S samples, W recent tokens, C tokens per call, n candidates, V
vocabulary.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import reader as reader_lib

REPETITION_WINDOW = 256  # Tokens, those of the prompt included.
# Finite, so that a token is drawn even if all are excluded; and so large that
# no temperature brings it back.
_NEVER = 1e30
# Below it, divided log-probabilities would overflow: take the likeliest.
_MIN_TEMPERATURE = 1e-30


class SamplingSettings(NamedTuple):
  """How tokens are drawn; the fields are those of `config.generate`.

  The compiled loop depends on nothing else of it, and equal settings share one.
  """

  temperature: float
  top_k: int
  top_p: float
  repetition_penalty: float
  no_repeat_ngram: int
  tokens_per_call: int
  stop: tuple[int, ...] = ()  # Tokens that end a sample, of `generate.stop`.


def settings_of(
  config: schema.GenerateConfig, stop: tuple[int, ...] = ()
) -> SamplingSettings:
  """The settings of a configuration; `stop` has the tokens of its text."""
  return SamplingSettings(
    temperature=config.temperature,
    top_k=config.top_k,
    top_p=config.top_p,
    repetition_penalty=config.repetition_penalty,
    no_repeat_ngram=config.no_repeat_ngram,
    tokens_per_call=config.tokens_per_call,
    stop=stop,
  )


class Weights(NamedTuple):
  """The arrays that a reader reads and predicts with."""

  frozen: shapes.PyTree
  head: adaptive_softmax.SoftmaxWeights


class Drawing(NamedTuple):
  """State carried from token to token."""

  state: reader_lib.State
  hidden: jt.Float[shapes.Array, "S 1 D"]  # After the last token.
  recent: jt.Int[shapes.Array, "S W"]  # Newest last; V for no token.
  start: jt.Int[shapes.Array, ""]  # Position in the text of the first token.
  length: jt.Int[shapes.Array, "S"]  # Tokens drawn so far.
  done: jt.Bool[shapes.Array, "S"]


# The index of the next token, the state, and the tokens that were drawn.
_Carry = tuple[jax.Array, Drawing, jax.Array]


def begin(
  state: reader_lib.State,
  hidden: jt.Float[shapes.Array, "1 1 D"],
  recent: jt.Int[shapes.Array, "W"],
  start: jt.Int[shapes.Array, ""],
  *,
  num_samples: int,
) -> Drawing:
  """Starts all samples from the state after the `start` tokens of a text."""
  return Drawing(
    state.repeat_lane(num_samples),
    jnp.repeat(hidden, num_samples, axis=0),
    jnp.tile(recent[None], (num_samples, 1)),
    start,
    jnp.zeros((num_samples,), jnp.int32),
    jnp.zeros((num_samples,), bool),
  )


def newest(prompt: np.ndarray, *, window: int, vocab_size: int) -> np.ndarray:
  """The last tokens [W] of a prompt [num_tokens]; V where there is none."""
  text = np.concatenate([np.full(window, vocab_size), prompt])
  return text[len(prompt) :].astype(np.int32)


def decode(
  weights: Weights,
  drawing: Drawing,
  keys: jax.Array,
  limit: jt.Int[shapes.Array, ""],
  *,
  reader: reader_lib.Reader,
  settings: SamplingSettings,
) -> tuple[Drawing, jt.Int[shapes.Array, "S C"]]:
  """Draws up to `limit` tokens per sample; fewer if all samples stop.

  C is `settings.tokens_per_call`, and the limit at most that. There is a random
  key for each sample, [S].

  Returns:
    The new state, and the tokens; columns from `limit` on are unused.
  """
  stop = settings.stop

  def body(carry: _Carry) -> _Carry:
    index, drawing, tokens = carry
    token = _choose(
      weights.head, drawing, keys, settings, reader.config.vocab_size
    )
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token, index, axis=1)
    hidden, state = reader.read(weights.frozen, drawing.state, token)
    recent = jnp.concatenate([drawing.recent, token], axis=1)[:, 1:]
    length = drawing.length + ~drawing.done
    done = drawing.done
    if stop:
      ends = recent[:, -len(stop) :] == jnp.asarray(stop, jnp.int32)[None]
      done |= jnp.all(ends, axis=1) & (length >= len(stop))
    drawing = Drawing(state, hidden, recent, drawing.start, length, done)
    return index + 1, drawing, tokens

  def should_continue(carry: _Carry) -> jax.Array:
    index, drawing, _ = carry
    return (index < limit) & ~jnp.all(drawing.done)

  shape = (keys.shape[0], settings.tokens_per_call)
  start = (jnp.zeros((), jnp.int32), drawing, jnp.zeros(shape, jnp.int32))
  _, drawing, tokens = jax.lax.while_loop(should_continue, body, start)
  return drawing, tokens


def _choose(
  head: adaptive_softmax.SoftmaxWeights,
  drawing: Drawing,
  keys: jax.Array,
  settings: SamplingSettings,
  vocab_size: int,
) -> jt.Int[shapes.Array, "S 1"]:
  """The next token of each sample, [S, 1]."""
  if settings.top_k == 0:
    log_probs = adaptive_softmax.log_probs(drawing.hidden, head)[:, 0]
    tokens = jnp.arange(vocab_size, dtype=jnp.int32)[None]
    tokens = jnp.broadcast_to(tokens, log_probs.shape)
  else:  # Penalties can push at most `window` tokens out of the k likeliest.
    count = min(settings.top_k + window(settings), vocab_size)
    best = adaptive_softmax.top_k(drawing.hidden, head, count)
    log_probs = best[0][:, 0]
    tokens = best[1][:, 0]
  if window(settings):
    penalise = functools.partial(
      penalise_repetition, settings=settings, vocab_size=vocab_size
    )
    recent = drawing.recent[:, -window(settings) :]
    log_probs = jax.vmap(penalise)(log_probs, tokens, recent)
  keys = jax.vmap(jax.random.fold_in)(keys, drawing.start + drawing.length)
  chosen = jax.vmap(functools.partial(draw, settings=settings))(log_probs, keys)
  return jnp.take_along_axis(tokens, chosen[:, None], axis=1)


def window(settings: SamplingSettings) -> int:
  """Number of recent tokens that the rules against repetition compare."""
  is_on = settings.repetition_penalty > 1 or settings.no_repeat_ngram > 0
  return REPETITION_WINDOW if is_on else 0


def penalise_repetition(
  log_probs: jt.Float[shapes.Array, "n"],
  tokens: jt.Int[shapes.Array, "n"],
  recent: jt.Int[shapes.Array, "W"],
  *,
  settings: SamplingSettings,
  vocab_size: int,
) -> jt.Float[shapes.Array, "n"]:
  """Lowers the log-probabilities of repetitions.

  `repetition_penalty` divides the probabilities of recent tokens, before they
  are normalised again. CTRL (Keskar et al. 2019, section 4.1) divides logits,
  which an adaptive softmax does not have; multiplying log-probabilities instead
  would leave a token of probability 1 unchanged. `no_repeat_ngram` excludes
  tokens that would complete an n-gram of this length that is already in
  `recent` (Paulus et al. 2018, section 2.5); 0 is for no rule.

  The n candidates have log-probabilities and ids, `tokens`. In `recent`, newest
  last, V stands for no token.
  """
  penalty = math.log(settings.repetition_penalty)
  ngram = settings.no_repeat_ngram
  lower = jnp.zeros((vocab_size,)).at[recent].set(penalty, mode="drop")
  if ngram:
    starts = recent.shape[0] - ngram + 1
    matches = jnp.ones((starts,), bool)
    for offset in range(ngram - 1):
      matches &= recent[offset : offset + starts] == recent[starts + offset]
    ends = jnp.where(matches, recent[ngram - 1 :], vocab_size)
    lower = lower.at[ends].set(_NEVER, mode="drop")
  return log_probs - lower[tokens]


def draw(
  log_probs: jt.Float[shapes.Array, "n"],
  key: jax.Array,
  *,
  settings: SamplingSettings,
) -> jt.Int[shapes.Array, ""]:
  """Draws one of n candidates with a scalar key; returns its index.

  `temperature` divides the log-probabilities, which are known up to a constant;
  0 takes the likeliest, and the first of equals. `top_k` keeps the k likeliest
  (40 in the paper's appendix E); 0 keeps all. `top_p` keeps the likeliest of
  these that together reach this probability (Holtzman et al. 2020).
  """
  temperature = settings.temperature
  top_p = settings.top_p
  if temperature < _MIN_TEMPERATURE:
    return jnp.argmax(log_probs).astype(jnp.int32)
  count = log_probs.shape[0]
  kept = min(settings.top_k or count, count)
  if kept == count and top_p == 1:
    index = jax.random.categorical(key, log_probs / temperature)
    return index.astype(jnp.int32)
  values, order = jax.lax.top_k(log_probs, kept)
  values = values / temperature
  if top_p < 1:
    probabilities = jax.nn.softmax(values)
    before = jnp.cumsum(probabilities) - probabilities
    # The likeliest is always kept.
    values = jnp.where(before.at[0].set(0) < top_p, values, -jnp.inf)
  return order[jax.random.categorical(key, values)].astype(jnp.int32)
