"""A deep memory that learns at test time, in the manner of Titans.

Each head has a small network, which takes a step of gradient descent with
momentum and forgetting on every token: its loss is how far it is from the
token's value when it is given the token's key (Behrouz, Zhong and Mirrokni
2024, "Titans: Learning to Memorize at Test Time", section 3.1;
docs/specification.md, section 31). The network that a document starts with is
trained as parameters are. Tokens are read one after the other: a step depends
on the one before.

Shapes: B lanes, T tokens, H heads, Dk and Dv widths of keys and values, F width
of the network's hidden layer, J rows that the convolution remembers,
W = H (2 Dk + Dv) its channels, D model width.
"""

from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import fields
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import associations
from transformer_xl.model.mixers import mixer
from transformer_xl.model.mixers import short_convolution

# Before training, a step is small, little is forgotten, and half of the
# momentum stays: the sigmoids of these.
_RATE_BIAS = -2.0
_FORGET_BIAS = -4.0
_MOMENTUM_BIAS = 0.0


class NetworkWeights(NamedTuple):
  """The networks of all heads, or what is added to their matrices; float32."""

  first: jt.Float[shapes.Array, "*B H Dk F"]
  second: jt.Float[shapes.Array, "*B H F Dv"]


class Memory(NamedTuple):
  """The state of one layer; without memory, H and J are 0.

  Attributes:
    learned: what tokens have added to the weights that a document starts with.
    momentum: of the next step.
    rows: queries, keys and values of the last tokens before the convolution,
      newest last. They are zeros where they are not of the document.
  """

  learned: NetworkWeights
  momentum: NetworkWeights
  rows: jt.Float[shapes.Array, "B J W"]


@registry.mixers.register("titans")
class Titans(mixer.Mixer):
  """Trains a small network in each head on the tokens, and asks it."""

  has_limit = False

  class Fields(fields.Group):
    """The heads of `titans` layers, `num_heads` in number (docs/memory.md)."""

    key_dim: int = fields.field(64, "at least 1")
    """Width of the keys and queries of one head."""
    value_dim: int = fields.field(64, "at least 1")
    """Width of the values of one head."""
    hidden_dim: int = fields.field(64, "at least 1")
    """Hidden units of the network of one head; it remembers 2 x hidden_dim x
    (key_dim + value_dim) numbers."""

  @staticmethod
  def trial(num_tokens: int) -> tuple[int, Mapping[str, object]]:
    """Small networks, though keys that are shorter round badly."""
    return num_tokens, {"key_dim": 4, "value_dim": 5, "hidden_dim": 3}

  @staticmethod
  def empty_state(
    config: schema.ModelConfig,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> Memory:
    """Zeros; they are carried on whenever `mem_len` is above 0."""
    del step_len
    own = config.own(Titans.Fields)
    num_heads = config.num_heads if mem_len else 0
    num_rows = short_convolution.NUM_BEFORE if mem_len else 0
    channels = config.num_heads * (2 * own.key_dim + own.value_dim)
    nothing = NetworkWeights(
      jnp.zeros((batch_size, num_heads, own.key_dim, own.hidden_dim)),
      jnp.zeros((batch_size, num_heads, own.hidden_dim, own.value_dim)),
    )
    rows = jnp.zeros((batch_size, num_rows, channels), config.dtype)
    return Memory(nothing, nothing, rows)

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: Memory,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Reads the segment token by token."""
    config = self.config
    own = config.own(Titans.Fields)
    num_heads = config.num_heads
    lanes, segment_len, _ = hidden.shape
    rows = norm(hidden)
    heads = associations.heads(
      self,
      rows,
      state.rows,
      shared,
      key_dim=own.key_dim,
      value_dim=own.value_dim,
    )

    start = NetworkWeights(
      self._drawn("first", (num_heads, own.key_dim, own.hidden_dim)),
      self._drawn("second", (num_heads, own.hidden_dim, own.value_dim)),
    )
    before = jax.tree.map(
      lambda x: mixer.zeros_if_absent(x, num_heads),
      (state.learned, state.momentum),
    )
    outputs, *after = read_tokens(
      TokenInputs(
        query=heads.query,
        key=heads.key,
        value=heads.value,
        rate=self._gate(rows, "rate", _RATE_BIAS),
        forget=self._gate(rows, "forget", _FORGET_BIAS),
        keep=self._gate(rows, "momentum", _MOMENTUM_BIAS),
        resets=shared.resets,
        counts=jnp.broadcast_to(
          shared.counts(segment_len)[None], (lanes, segment_len)
        ),
      ),
      start,
      *before,
    )
    num_kept = state.learned.first.shape[1]
    learned, momentum = jax.tree.map(lambda x: x[:, :num_kept], after)
    mixed = associations.gated_output(self, outputs, rows, shared)
    return mixed, mixer.Kept(Memory(learned, momentum, heads.rows))

  def _drawn(self, name: str, shape: tuple[int, int, int]) -> jax.Array:
    """A matrix for each head, which draws its own, to begin a document with.

    Rounded to the compute type, as where parameters are fixed; in float32.
    """
    draw = nn.initializers.lecun_normal(batch_axis=0)
    matrices = self.param(name, draw, shape, jnp.float32)
    return matrices.astype(self.config.dtype).astype(jnp.float32)

  def _gate(
    self, rows: shapes.Hidden, name: str, start: float
  ) -> jt.Float[jax.Array, "B T H"]:
    """A number in (0, 1) for each head and token."""
    num_heads = self.config.num_heads
    kernel = self.matrix(name, (self.config.model_dim, num_heads))
    draw = nn.initializers.constant(start)
    bias = self.param(f"{name}_bias", draw, (num_heads,), jnp.float32)
    sums = dense.times(rows, kernel).astype(jnp.float32)
    return nn.sigmoid(sums + bias[None, None])

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """Operations of the projections, the convolution and the networks.

    A head's network answers a key, is corrected through its second matrix, adds
    a product to both matrices, and answers a query.
    """
    del reading
    own = config.own(Titans.Fields)
    channels = 2 * own.key_dim + own.value_dim
    projected = 2 * own.key_dim + 3 * own.value_dim + 3
    projections = config.model_dim * projected
    convolution = short_convolution.LENGTH * channels
    network = own.hidden_dim * (3 * own.key_dim + 4 * own.value_dim)
    return 2.0 * config.num_heads * (projections + convolution + network)


class TokenInputs(NamedTuple):
  """Vectors and rates of the tokens of a segment, for the networks of lanes.

  Attributes:
    rate: size of the token's step.
    forget: share of the weights that it forgets.
    keep: share of the momentum that it keeps.
    resets: where documents start.
    counts: which tokens are no padding.
  """

  query: jt.Float[shapes.Array, "B T H Dk"]
  key: jt.Float[shapes.Array, "B T H Dk"]
  value: jt.Float[shapes.Array, "B T H Dv"]
  rate: jt.Float[shapes.Array, "B T H"]
  forget: jt.Float[shapes.Array, "B T H"]
  keep: jt.Float[shapes.Array, "B T H"]
  resets: shapes.Resets
  counts: jt.Bool[shapes.Array, "B T"]


def read_tokens(
  tokens: TokenInputs,
  start: NetworkWeights,
  learned: NetworkWeights,
  momentum: NetworkWeights,
) -> tuple[jt.Float[shapes.Array, "B T H Dv"], NetworkWeights, NetworkWeights]:
  """Trains the networks on one token after the other, and asks them.

  With the weights M of a head and its momentum S, every token makes

      S = keep S - rate bounded( gradient of |M(k) - v|^2 )
      M = (1 - forget) M + S                                 output = M(q)

  where M is `start` and what was learned. Resets put zeros in the place of what
  was learned and of S before their token.

  Returns:
    The outputs, and what was learned and the momentum after the last token.
  """

  def read(
    carried: tuple[NetworkWeights, NetworkWeights], token: TokenInputs
  ) -> tuple[tuple[NetworkWeights, NetworkWeights], jax.Array]:
    """Reads one token; carries the whole weights, and the momentum."""
    is_first = token.resets[:, None, None, None]
    weights, momentum = jax.tree.map(
      lambda x, fresh: jnp.where(is_first, fresh, x),
      carried,
      (start, jax.tree.map(jnp.zeros_like, start)),
    )
    gradient = _gradient(weights, token.key, token.value)
    rate = token.rate[:, :, None, None]
    forget = token.forget[:, :, None, None]
    keep = token.keep[:, :, None, None]
    stepped = jax.tree.map(
      lambda old, by: keep * old - rate * _bounded(by), momentum, gradient
    )
    changed = jax.tree.map(
      lambda old, step: (1 - forget) * old + step, weights, stepped
    )
    is_counted = token.counts[:, None, None, None]
    weights, momentum = jax.tree.map(
      lambda new, old: jnp.where(is_counted, new, old),
      (changed, stepped),
      (weights, momentum),
    )
    return (weights, momentum), _answer(weights, token.query)

  start = jax.tree.map(lambda x: x[None], start)
  weights = jax.tree.map(jnp.add, start, learned)
  by_token = TokenInputs(*(jnp.moveaxis(x, 1, 0) for x in tokens))
  (weights, momentum), outputs = jax.lax.scan(
    read, (weights, momentum), by_token
  )
  learned = jax.tree.map(jnp.subtract, weights, start)
  return jnp.moveaxis(outputs, 0, 1), learned, momentum


def _answer(
  weights: NetworkWeights, key: jt.Float[jax.Array, "B H Dk"]
) -> jt.Float[jax.Array, "B H Dv"]:
  """The outputs of the networks for a key or a query."""
  inner = jnp.einsum("bhk,bhkf->bhf", key, weights.first)
  return jnp.einsum("bhf,bhfv->bhv", nn.silu(inner), weights.second)


def _gradient(
  weights: NetworkWeights,
  key: jt.Float[jax.Array, "B H Dk"],
  value: jt.Float[jax.Array, "B H Dv"],
) -> NetworkWeights:
  """The gradient of the squared distance between answers and values."""
  inner = jnp.einsum("bhk,bhkf->bhf", key, weights.first)
  share = nn.sigmoid(inner)
  active = inner * share
  answer = jnp.einsum("bhf,bhfv->bhv", active, weights.second)
  error = 2 * (answer - value)
  of_active = jnp.einsum("bhv,bhfv->bhf", error, weights.second)
  of_inner = of_active * share * (1 + inner * (1 - share))
  return NetworkWeights(
    jnp.einsum("bhk,bhf->bhkf", key, of_inner),
    jnp.einsum("bhf,bhv->bhfv", active, error),
  )


def _bounded(
  gradient: jt.Float[jax.Array, "B H _ _"],
) -> jt.Float[jax.Array, "B H _ _"]:
  """The gradient of a matrix, whose length stays below 1.

  A step along a long one would lengthen the next, without end.
  """
  squares = jnp.sum(jnp.square(gradient), axis=(-2, -1), keepdims=True)
  return gradient * jax.lax.rsqrt(1 + squares)
