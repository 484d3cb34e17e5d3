"""Hidden states of a text of any length, layer by layer.

Shapes: B lanes, L tokens of the text, T of a segment, D model width.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.model import reader as reader_lib
from transformer_xl.processes import exchange
from transformer_xl.text import inputs
from transformer_xl.text import language_model


class HiddenStates(NamedTuple):
  """The states of some layers after each token of a text.

  Attributes:
    text: the text.
    tokens: its L tokens, printable and without white space.
    layers: 0 for the embeddings, n for the n-th layer.
    states: float32, [layers, L, D]; those of the last layer are from before
      `final_norm`.
  """

  text: str
  tokens: list[str]
  layers: tuple[int, ...]
  states: jt.Float[np.ndarray, "layers L D"]


def read(
  model: language_model.LanguageModel, text: str, layers: Sequence[int]
) -> HiddenStates:
  """Reads a text in segments that share the memory.

  Layers count from the end if they are negative.

  Raises:
    UserError: there is no such layer, or the text is not in the vocabulary.
  """
  chosen = _numbers(model, layers)
  ids = model.vocabulary.encode(text)
  length = len(ids)
  segment_len = model.reader.segment_len
  padded = inputs.whole_segments(ids, segment_len)
  state = model.start(1)
  parts = []
  for start in range(0, length, segment_len):
    segment = padded[:, start : start + segment_len]
    found, state = _read_segment(
      model.frozen, state, segment, reader=model.reader, layers=chosen
    )
    parts.append(exchange.fetch(found))
  empty = np.zeros((len(chosen), 0, model.reader.config.model_dim), np.float32)
  states = np.concatenate([empty, *parts], axis=1)[:, :length]
  tokens = [model.vocabulary.symbol(token) for token in ids]
  return HiddenStates(text, tokens, chosen, states)


def means(
  model: language_model.LanguageModel,
  texts: Sequence[str],
  *,
  layer: int,
  batch_size: int,
) -> jt.Float[np.ndarray, "texts D"]:
  """The mean of a layer's states over the tokens of each text.

  Raises:
    UserError: there is no such layer, or a text has no tokens or is not in the
      vocabulary.
  """
  (chosen,) = _numbers(model, (layer,))
  rows = []
  for number, text in enumerate(texts, start=1):
    row = inputs.encode(model.vocabulary, text, f"text {number}")
    if not len(row):
      raise errors.UserError(
        f"text {number} has no tokens, so there is no mean of its states; "
        "leave it out."
      )
    rows.append(row)
  segment_len = model.reader.segment_len
  result = np.zeros((len(rows), model.reader.config.model_dim), np.float32)
  lanes = max(1, min(batch_size, len(rows)))
  for indices, tokens in inputs.batches(
    rows, num_lanes=lanes, segment_len=segment_len
  ):
    lengths = np.zeros(lanes, np.int32)
    lengths[: len(indices)] = [len(rows[index]) for index in indices]
    state = model.start(lanes)
    total = np.zeros((lanes, model.reader.config.model_dim), np.float64)
    for start in range(0, tokens.shape[1], segment_len):
      part, state = _sum_segment(
        model.frozen,
        state,
        tokens[:, start : start + segment_len],
        lengths - start,
        reader=model.reader,
        layer=chosen,
      )
      total += exchange.fetch(part)
    for lane, index in enumerate(indices):
      result[index] = total[lane] / lengths[lane]
  return result


def _numbers(
  model: language_model.LanguageModel, layers: Sequence[int]
) -> tuple[int, ...]:
  """The numbers of layers, 0 for the embeddings."""
  count = model.reader.config.num_layers + 1
  if not layers or any(not -count <= layer < count for layer in layers):
    raise errors.UserError(
      f"layers={tuple(layers)} must be in [{-count}, {count - 1}], and at "
      f"least one: 0 is the embeddings, {count - 1} the last layer."
    )
  return tuple(layer % count for layer in layers)


# Compiled once for each number of lanes.
@functools.partial(
  jax.jit, static_argnames=("reader", "layer"), donate_argnames="state"
)
def _sum_segment(
  frozen: shapes.PyTree,
  state: reader_lib.State,
  segment: shapes.Tokens,
  lengths: jt.Int[shapes.Array, "B"],
  *,
  reader: reader_lib.Reader,
  layer: int,
) -> tuple[jt.Float[shapes.Array, "B D"], reader_lib.State]:
  """Sums of a layer's states over the first `lengths` tokens of each lane."""
  outputs, state = reader.read_layers(frozen, state, segment)
  counts = jnp.arange(segment.shape[1])[None] < lengths[:, None]
  states = outputs[layer].astype(jnp.float32)
  return jnp.einsum("btd,bt->bd", states, counts.astype(jnp.float32)), state


# Compiled once for each choice of layers.
@functools.partial(
  jax.jit, static_argnames=("reader", "layers"), donate_argnames="state"
)
def _read_segment(
  frozen: shapes.PyTree,
  state: reader_lib.State,
  segment: shapes.Tokens,
  *,
  reader: reader_lib.Reader,
  layers: tuple[int, ...],
) -> tuple[jt.Float[shapes.Array, "layers T D"], reader_lib.State]:
  outputs, state = reader.read_layers(frozen, state, segment)
  found = [outputs[layer][0].astype(jnp.float32) for layer in layers]
  return jnp.stack(found), state
