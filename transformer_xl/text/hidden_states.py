"""Hidden states of a text of any length, layer by layer.

Shapes: L tokens of the text, T of a segment, D model width.
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
from transformer_xl.text import language_model


class HiddenStates(NamedTuple):
  """The states of some layers after each token of a text."""

  text: str
  tokens: list[str]  # L; printable, without white space.
  layers: tuple[int, ...]  # 0 for the embeddings, n for the n-th layer.
  states: jt.Float[np.ndarray, "layers L D"]  # In float32.


def read(
  model: language_model.LanguageModel, text: str, layers: Sequence[int]
) -> HiddenStates:
  """Reads a text in segments that share the memory.

  Layers count from the end if they are negative.

  Raises:
    UserError: there is no such layer, or the text is not in the vocabulary.
  """
  count = model.reader.config.num_layers + 1
  if any(not -count <= layer < count for layer in layers):
    raise errors.UserError(
      f"layers={tuple(layers)} must be in [{-count}, {count - 1}]: 0 is the "
      f"embeddings, {count - 1} the last layer."
    )
  chosen = tuple(layer % count for layer in layers)
  ids = model.vocabulary.encode(text)
  length = len(ids)
  segment_len = model.reader.segment_len
  padded = np.zeros((1, length + -length % segment_len), np.int32)
  padded[0, :length] = ids
  state = model.start(1)
  parts = []
  for start in range(0, length, segment_len):
    segment = padded[:, start : start + segment_len]
    found, state = _read_segment(
      model.frozen, state, segment, reader=model.reader, layers=chosen
    )
    parts.append(np.asarray(found))
  empty = np.zeros((len(chosen), 0, model.reader.config.model_dim), np.float32)
  states = np.concatenate([empty, *parts], axis=1)[:, :length]
  tokens = [model.vocabulary.symbol(token) for token in ids]
  return HiddenStates(text, tokens, chosen, states)


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
