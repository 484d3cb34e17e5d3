"""The attention of a text's tokens to the tokens before them.

Shapes: N layers, H heads, L tokens of the text, T of a segment, K keys.
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
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.evaluation import attention_use
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer
from transformer_xl.processes import exchange
from transformer_xl.text import inputs
from transformer_xl.text import language_model


class Attention(NamedTuple):
  """What the tokens of a text attend to in some layers.

  Attributes:
    text: the text.
    tokens: its L tokens, printable and without white space.
    layers: numbers of the layers, counted from 1.
    weights: [layers, H, L, L]; entry [layer, head, i, j] is the share of token
      j in what token i attends to. A row adds up to 1, or to less where a layer
      attends to zeros before the text or to compressed memory. For
      `memorizing` layers it is the share of their attention to near tokens, and
      for `block_recurrent` layers of that to tokens.
  """

  text: str
  tokens: list[str]
  layers: tuple[int, ...]
  weights: jt.Float[np.ndarray, "layers H L L"]


def read(
  model: language_model.LanguageModel,
  params: shapes.PyTree,
  text: str,
  layers: Sequence[int],
) -> Attention:
  """Reads a text in segments, and returns where its tokens attend to.

  Args:
    model: has the vocabulary, and the lengths of memory and segments.
    params: the parameters of the network.
    text: of any length; the result grows with its square.
    layers: from 1, or from -1 for the last.

  Raises:
    UserError: there is no such layer, it does not attend, or the text is not
      in the vocabulary.
  """
  reader = model.reader
  config = reader.config
  chosen = _numbers(config, layers)
  attending = attention_use.attending(config)
  places = tuple(attending.index(number) for number in chosen)
  ids = model.vocabulary.encode(text)
  length = len(ids)
  segment_len = reader.segment_len
  mem_len = reader.mem_len
  padded = inputs.whole_segments(ids, segment_len)
  memory = network.empty_state(
    config, batch_size=1, mem_len=mem_len, step_len=segment_len
  )
  settings = mixer.Settings(
    clamp_len=reader.clamp_len, same_length=reader.same_length, inspects=True
  )
  net = network.Network(config, settings)
  shape = (len(chosen), config.num_heads, length, length)
  weights = np.zeros(shape, np.float32)
  for start in range(0, length, segment_len):
    num_waiting = _num_waiting(memory)
    found, memory = _read_segment(
      params,
      memory,
      padded[:, start : start + segment_len],
      model=net,
      places=places,
    )
    found = exchange.fetch(found)
    # The last keys are those of the memory and the segment, in the order of
    # the text; keys in front of them are no tokens.
    stop = min(start + segment_len, length)
    first = max(start - mem_len - num_waiting, 0)
    end = found.shape[-1] - (start + segment_len - stop)
    # No layer may reach as far back as the memory.
    num_keys = min(stop - first, end)
    weights[:, :, start:stop, stop - num_keys : stop] = found[
      :, :, : stop - start, end - num_keys : end
    ]
  tokens = [model.vocabulary.symbol(token) for token in ids]
  return Attention(text, tokens, chosen, weights)


def _num_waiting(memory: network.State) -> int:
  """How many tokens have left the memory and are not compressed yet."""
  numbers = [
    np.max(layers.num_waiting)
    for layers in memory.layers
    if hasattr(layers, "num_waiting")
  ]
  return int(max(numbers, default=0))


def _numbers(
  config: schema.ModelConfig, layers: Sequence[int]
) -> tuple[int, ...]:
  """The numbers of layers that attend, from 1."""
  count = config.num_layers
  numbers = [
    layer + count + 1 if -count <= layer < 0 else layer for layer in layers
  ]
  attending = attention_use.attending(config)
  if not numbers or not set(numbers) <= set(attending):
    raise errors.UserError(
      f"layers={tuple(layers)} must be layers that attend, and at least one: "
      f"this model has {attending or 'none'}, counted from 1, or from -1 for "
      "the last."
    )
  return tuple(numbers)


# Compiled once for each choice of layers.
@functools.partial(jax.jit, static_argnames=("model", "places"))
def _read_segment(
  params: shapes.PyTree,
  memory: network.State,
  tokens: shapes.Tokens,
  *,
  model: network.Network,
  places: tuple[int, ...],
) -> tuple[jt.Float[shapes.Array, "layers H T K"], network.State]:
  """Reads a segment of one lane; the places are among layers that attend."""
  nowhere = jnp.zeros(tokens.shape, bool)
  segment = segment_lib.Segment(tokens, targets=tokens, resets=nowhere)
  found = attention_use.read_segment(params, memory, segment, model=model)
  return found.weights[np.array(places), 0], found.memory
