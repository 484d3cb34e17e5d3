"""The kinds of networks, by the values of `config.model.kind`.

Every kind remembers by a value: what its `empty_memory` makes, a segment takes
and returns. Training, evaluation and text ask this table.
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import kv_cache
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import network
from transformer_xl.model import recurrent
from transformer_xl.model import recurrent_reader
from transformer_xl.model import ring_state
from transformer_xl.model import transformer_xl

# What a segment hands to the next, while parameters change.
Memory = memory_lib.Memory | recurrent.State
# The same for what reads with fixed parameters.
State = ring_state.State | recurrent.State
Reader = Any  # Of `kv_cache` or `recurrent_reader`, with its own state.


class Kind(NamedTuple):
  """What a kind of network consists of."""

  network: type[network.Network]
  empty_memory: Callable[..., Memory]
  reader: Callable[..., Reader]
  layer_flops: Callable[..., float]


_RECURRENT = Kind(
  recurrent.Recurrent,
  recurrent.empty,
  recurrent_reader.Reader,
  recurrent.layer_flops,
)
KINDS = {
  "transformer_xl": Kind(
    transformer_xl.TransformerXL,
    memory_lib.empty,
    kv_cache.Reader,
    transformer_xl.layer_flops,
  ),
  "lstm": _RECURRENT,
  "qrnn": _RECURRENT,
}


def of(config: schema.ModelConfig) -> Kind:
  """The kind of a model."""
  return KINDS[config.kind]


def empty_memory(config: schema.ModelConfig, **sizes: int) -> Memory:
  """Memory before the first token; for the sizes see `memory.empty`."""
  return of(config).empty_memory(config, **sizes)


def init_params(config: schema.ModelConfig, key: jax.Array) -> shapes.PyTree:
  """Draws all parameters in float32 from one random key, a scalar."""
  # A kernel may not serve a single token, and no parameter depends on it.
  config = dataclasses.replace(config, attention="reference")
  model: Any = of(config).network(config, clamp_len=0, same_length=False)
  tokens = jnp.zeros((1, 1), jnp.int32)
  memory = empty_memory(config, batch_size=1, mem_len=0)
  return model.init(key, tokens, tokens, memory, method="nll")["params"]


def abstract_params(config: schema.ModelConfig) -> shapes.PyTree:
  """Shapes and types of all parameters; uses no device."""
  return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


def num_parameters(params: shapes.PyTree) -> int:
  """The number of trained parameters; shared ones count once."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))
