"""A mixer and an encoding as extensions write them, each with mistakes.

The mistakes are those that memories have: one leaks over a reset, one sees the
next token, one remembers padding, one has a parameter in another type.
"""

import contextlib
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tests import registering
from transformer_xl.config import fields
from transformer_xl.config import registry
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import parameters
from transformer_xl.model import scores
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import encoding
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import mixer


class Average(NamedTuple):
  """Averages after the last token, [B, V, D]; V is 0 without memory."""

  values: jax.Array


class MovingAverage(mixer.Mixer):
  """A moving average of values, with a decay a channel."""

  class Fields(fields.Group):
    """The decay of `test_ema` layers."""

    decay: float = fields.field(0.9, "in (0, 1)")
    """Share of the old average that a token keeps at first."""

  has_limit = False
  decay_name = "decay_bias"

  @staticmethod
  def empty_state(config, *, batch_size, mem_len, step_len):
    shape = (batch_size, 1 if mem_len else 0, config.model_dim)
    return Average(jnp.zeros(shape))

  @nn.compact
  def __call__(self, hidden, state, shared, norm):
    config = self.config
    width = config.model_dim
    values = dense.times(norm(hidden), self.kernel("value"))
    values = self.values(values.astype(jnp.float32))
    share = config.own(MovingAverage.Fields).decay
    init = nn.initializers.constant(np.log(share / (1 - share)))
    decay = self.param(self.decay_name, init, (width,), jnp.float32)
    decay = nn.sigmoid(decay)

    start = jnp.pad(state.values, ((0, 0), (0, 1), (0, 0)))[:, :1]
    kept = self.kept(shared.resets[:, :, None], decay[None, None])
    factors, terms = jax.lax.associative_scan(
      lambda one, two: (one[0] * two[0], one[1] * two[0] + two[1]),
      (kept, (1 - decay)[None, None] * values),
      axis=1,
    )
    averages = factors * start + terms
    output = dense.times(averages.astype(hidden.dtype), self.kernel("output"))
    dropped = dropout_lib.of_states(config)(
      output, dropout_lanes=shared.dropout_lanes
    )
    last = self.last(shared, hidden.shape[1])
    carried = jax.lax.dynamic_slice_in_dim(averages, last, 1, axis=1)
    carried = carried[:, : state.values.shape[1]]
    return dropped, mixer.Kept(Average(carried))

  def kernel(self, name):
    return parameters.matrix(self, name, (self.config.model_dim,) * 2)

  def values(self, values):
    return values

  def kept(self, resets, decay):
    return jnp.where(resets, 0, decay)

  def last(self, shared, segment_len):
    return shared.num_counted(segment_len) - 1

  def reference(self, params, inputs, resets):
    """The average of each token is d a + (1 - d) v, or (1 - d) v if it resets.

    d is sigmoid(decay_bias).
    """
    decay = 1 / (1 + np.exp(-params[self.decay_name]))
    outputs = np.zeros(inputs.shape)
    for lane, rows in enumerate(inputs):
      average = np.zeros(rows.shape[-1])
      for place, row in enumerate(rows):
        if resets[lane, place]:
          average = np.zeros(rows.shape[-1])
        average = decay * average + (1 - decay) * (row @ params["value"])
        outputs[lane, place] = average @ params["output"]
    return outputs

  @staticmethod
  def flops(config, *, segment_len, mem_len, context_len):
    return 4.0 * config.model_dim**2


class LeaksOverResets(MovingAverage):
  """Forgets what is in the segment, and not what was handed on."""

  def kept(self, resets, decay):
    first = jnp.arange(resets.shape[1])[None, :, None] == 0
    return jnp.where(resets & ~first, 0, decay)


class SeesTheNextToken(MovingAverage):
  def values(self, values):
    after = jnp.pad(values[:, 1:], ((0, 0), (0, 1), (0, 0)))
    return values + 0.1 * after


class RemembersPadding(MovingAverage):
  def last(self, shared, segment_len):
    return jnp.asarray(segment_len - 1, jnp.int32)


class HalfOfAParameter(MovingAverage):
  """Parameters are float32, whatever the computation's type."""

  def kernel(self, name):
    init = nn.initializers.normal(self.config.init_std)
    shape = (self.config.model_dim,) * 2
    kind = jnp.bfloat16 if name == "value" else jnp.float32
    return self.param(name, init, shape, kind).astype(self.config.dtype)


class LearnsOverResets(MovingAverage):
  """Forgets where a document starts; its gradient does not."""

  def kept(self, resets, decay):
    forgotten = super().kept(resets, decay) - decay
    return decay + jax.lax.stop_gradient(forgotten)


class DividesAtResets(MovingAverage):
  """The gradient where a document starts is NaN."""

  def kept(self, resets, decay):
    return jnp.exp(jnp.log(decay * ~resets))


class LearnsNoDecay(MovingAverage):
  """Its decay gets no gradient."""

  def kept(self, resets, decay):
    return super().kept(resets, jax.lax.stop_gradient(decay))


class IgnoresItsNorm(MovingAverage):
  def __call__(self, hidden, state, shared, norm):
    return super().__call__(hidden, state, shared, mixer.identity)


class ReadsARoundedDecay(MovingAverage):
  """Its decay has a name by which reading rounds it."""

  decay_name = "decay"


class Parity(encoding.Encoding):
  """A learned key for even distances, and one for odd ones."""

  score_products = 3

  def distance_terms(self, module, project, positions, num_keys, biases):
    config = module.config
    shape = (2, config.num_heads * config.head_dim)
    rows = self.table(module, shape)[self.parity(num_keys)]
    keys = rows.reshape(num_keys, config.num_heads, config.head_dim)
    return scores.DistanceTerms(keys)

  def table(self, module, shape):
    return parameters.matrix(module, "distances", shape)

  def parity(self, num_keys):
    """Of the distances K-1 to 0."""
    return jnp.arange(num_keys - 1, -1, -1) % 2


class Buckets(encoding.Encoding):
  """A learned number for each head and each power of two of distances.

  Of the kind of T5's relative biases (Raffel et al. 2020), unlike any encoding
  of the package: numbers that are added to scores.
  """

  def distance_terms(self, module, project, positions, num_keys, biases):
    distance = jnp.arange(num_keys - 1, -1, -1)
    bucket = jnp.floor(jnp.log2(distance + 1)).astype(jnp.int32)
    init = nn.initializers.normal(1.0)
    shape = (module.config.num_heads, 32)
    table = module.param("bucket_bias", init, shape)
    return scores.DistanceTerms(added=table[:, bucket])


class ParityOfTheContext(Parity):
  """Of places in the context, whose number depends on the memory's length."""

  def parity(self, num_keys):
    return jnp.arange(num_keys) % 2


class ParityOfThePart(Parity):
  """Adds positions in what is read at a time, for those in the segment."""

  counts_from_segment = True

  def layer_positions(self, module, first_position, segment_len):
    shape = (2, module.config.model_dim)
    table = parameters.matrix(module, "positions", shape)
    return table[jnp.arange(segment_len) % 2]


class ParityInHalf(Parity):
  def table(self, module, shape):
    init = nn.initializers.normal(module.config.init_std)
    table = module.param("distances", init, shape, jnp.bfloat16)
    return table.astype(module.config.dtype)


class RotatesByFloats(encoding.Encoding):
  """Angles are products in float32."""

  rotates = True

  def placed(self, config, rows, positions, *, axis=-1):
    frequencies = distances.rotary_frequencies(config.head_dim)
    shape = [1] * rows.ndim
    shape[axis] = -1
    frequencies = jnp.asarray(frequencies, jnp.float32).reshape(shape)
    angles = positions.astype(jnp.float32) * frequencies
    return distances.rotated(rows, angles, axis=axis)


MIXERS = {
  "ema": MovingAverage,
  "ema_leaks": LeaksOverResets,
  "ema_sees": SeesTheNextToken,
  "ema_pads": RemembersPadding,
  "ema_half": HalfOfAParameter,
  "ema_learns_over_resets": LearnsOverResets,
  "ema_divides": DividesAtResets,
  "ema_learns_no_decay": LearnsNoDecay,
  "ema_ignores_its_norm": IgnoresItsNorm,
  "ema_rounds": ReadsARoundedDecay,
}
ENCODINGS = {
  "parity": Parity,
  "parity_restarts": ParityOfThePart,
  "buckets": Buckets,
  "parity_counts": ParityOfTheContext,
  "parity_half": ParityInHalf,
  "floats": RotatesByFloats,
}


@contextlib.contextmanager
def registered():
  """Registers all of them for a while, so that no other test knows them."""
  with (
    registering.temporarily(registry.mixers, MIXERS),
    registering.temporarily(registry.encodings, ENCODINGS),
  ):
    yield
