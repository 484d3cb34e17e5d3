"""The loss that an update differentiates, and its sums for the log."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import nats
from transformer_xl.model import network

# A loss to differentiate, with the sums that are logged and the next memory.
Result = tuple[jax.Array, tuple[nats.Sums, network.State]]


class Totals(NamedTuple):
  """What the sums of an update are divided by, of all its parts together."""

  tokens: jt.Float[shapes.Array, ""]
  changes: jt.Float[shapes.Array, ""]  # Pairs of neighbours in one text.


def totals(segment: segment_lib.Segment[jax.Array]) -> Totals:
  """Counts the targets of an update, [B, T] or [S, B, T], that have weight."""
  assert segment.weights is not None
  num_targets = segment.targets.shape[-1]
  is_change = ~segment.resets[..., -num_targets:][..., 1:]
  changes = jnp.sum(segment.weights[..., 1:] * is_change)
  tokens = jnp.sum(segment.weights)
  return Totals(jnp.maximum(tokens, 1.0), jnp.maximum(changes, 1.0))


@dataclasses.dataclass(frozen=True)
class Loss:
  """The loss of a part of an update's lanes: its share of the means.

  Attributes:
    model: with the attention of training.
    train: says which penalties are added.
    totals: of the update.
    visible_len: tokens before a segment that attention sees at most; None for
      all that are remembered.
  """

  model: network.Network
  train: schema.TrainConfig
  totals: Totals
  visible_len: jt.Int[shapes.Array, ""] | None = None

  def __call__(
    self,
    params: shapes.PyTree,
    memory: network.State,
    segment: segment_lib.Segment[jax.Array],
    lanes: shapes.Lanes,
    key: jax.Array,
  ) -> Result:
    """The loss of one segment.

    Args:
      params: of the model.
      memory: before the segment.
      segment: [B, T].
      lanes: numbers of the lanes, which dropout is drawn for.
      key: of dropout.
    """
    bound = self.model.bind({"params": params}, rngs={"dropout": key})
    nll, auxiliary, memory = bound.training_losses(
      segment.inputs,
      segment.targets,
      memory,
      segment.resets,
      visible_len=self.visible_len,
      dropout_lanes=lanes,
    )
    assert segment.weights is not None
    summed = functools.partial(nats.sum_losses, weights=segment.weights)
    train = self.train
    sums = summed(nll)
    objective = sums.nll / self.totals.tokens
    if train.activation_penalty:
      activation = summed(auxiliary.activation).nll / self.totals.tokens
      objective += train.activation_penalty * activation
    if train.temporal_activation_penalty:
      temporal = summed(auxiliary.temporal).nll / self.totals.changes
      objective += train.temporal_activation_penalty * temporal
    if auxiliary.mixers is not None:
      objective += summed(auxiliary.mixers).nll / self.totals.tokens
    return objective, (sums, memory)

  def of_several(
    self,
    params: shapes.PyTree,
    memory: network.State,
    segments: segment_lib.Segment[jax.Array],
    lanes: shapes.Lanes,
    key: jax.Array,
  ) -> Result:
    """The loss of consecutive segments [S, B, T], by the arguments of one.

    Only the memories between segments are kept for the gradient.
    """

    @functools.partial(jax.checkpoint, prevent_cse=False)  # A scan prevents it.
    def read(
      memory: network.State,
      part: tuple[jax.Array, segment_lib.Segment[jax.Array]],
    ) -> tuple[network.State, tuple[jax.Array, nats.Sums]]:
      index, segment = part
      own_key = jax.random.fold_in(key, index)
      objective, (sums, memory) = self(params, memory, segment, lanes, own_key)
      return memory, (objective, sums)

    indices = jnp.arange(self.train.gradient_segments)
    memory, parts = jax.lax.scan(read, memory, (indices, segments))
    objective, sums = jax.tree.map(jnp.sum, parts)
    return objective, (sums, memory)
