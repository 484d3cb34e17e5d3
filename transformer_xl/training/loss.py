"""The loss that an update differentiates, and its sums for the log."""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import auxiliary_predictions
from transformer_xl.model import nats
from transformer_xl.model import network

# A loss to differentiate, with the sums that are logged and the next memory.
Result = tuple[jax.Array, tuple[nats.Sums, network.State]]


class Totals(NamedTuple):
  """The divisors of the sums of an update, of all its parts together."""

  tokens: jt.Float[shapes.Array, ""]
  # Neighbours in one document, for the temporal penalty.
  changes: jt.Float[shapes.Array, ""]


def totals(segment: segment_lib.Segment[jax.Array]) -> Totals:
  """Counts the targets of an update, [B, T] or [S, B, T], that have weight."""
  assert segment.weights is not None
  num_targets = segment.targets.shape[-1]
  is_change = ~segment.resets[..., -num_targets:][..., 1:]
  changes = jnp.sum(segment.weights[..., 1:] * is_change)
  tokens = jnp.sum(segment.weights)
  return Totals(jnp.maximum(tokens, 1.0), jnp.maximum(changes, 1.0))


def weights_ahead(
  segment: segment_lib.Segment[jax.Array], ahead: int
) -> jt.Float[shapes.Array, "B U"]:
  """Weights of the targets that are `ahead` positions later, by position.

  They are 0 where no such target is in the segment, or it belongs to another
  document.
  """
  weights = segment.weights
  assert weights is not None
  num_targets = weights.shape[-1]
  resets = segment.resets[..., -num_targets:]
  for _ in range(ahead):
    same_text = jnp.where(resets[..., 1:], 0.0, weights[..., 1:])
    weights = jnp.pad(same_text, ((0, 0), (0, 1)))
  return weights


def num_silent_layers(
  num_layers: int, num_steps: int, step: jt.Int[shapes.Array, ""]
) -> jt.Int[shapes.Array, ""]:
  """How many layers below the last have stopped predicting by an update.

  Layer l of n stops once l / 2n of all updates are done (Al-Rfou et al. 2018,
  "Intermediate Layer Losses").
  """
  ends = [
    math.ceil(number * num_steps / (2 * num_layers))
    for number in range(1, num_layers)
  ]
  return jnp.sum(step >= jnp.array(ends, jnp.int32), dtype=jnp.int32)


@dataclasses.dataclass(frozen=True)
class Loss:
  """The loss of some lanes of an update, divided by the totals of all lanes.

  So the losses of all parts of an update add up to its mean.

  Attributes:
    model: with the attention of training.
    train: says which penalties are added.
    totals: of the update.
    step: of the update, from 0.
    visible_len: tokens before a segment that attention sees at most; None for
      all that are remembered.
  """

  model: network.Network
  train: schema.TrainConfig
  totals: Totals
  step: jt.Int[shapes.Array, ""]
  visible_len: jt.Int[shapes.Array, ""] | None

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
    summed = functools.partial(nats.weighted_sum, weights=segment.weights)
    train = self.train
    sums = nats.sum_losses(nll, segment.weights)
    objective = sums.nll / self.totals.tokens
    if train.activation_penalty:
      activation = summed(auxiliary.activation) / self.totals.tokens
      objective += train.activation_penalty * activation
    if train.temporal_activation_penalty:
      temporal = summed(auxiliary.temporal) / self.totals.changes
      objective += train.temporal_activation_penalty * temporal
    if auxiliary.mixers is not None:
      objective += summed(auxiliary.mixers) / self.totals.tokens
    if auxiliary.outputs is not None:
      model = self.model.config
      by_target = auxiliary_predictions.losses(
        auxiliary.outputs,
        segment.targets,
        bound.auxiliary(bound.head()),
        num_silent=num_silent_layers(
          model.num_layers, train.num_steps, self.step
        ),
      )
      for ahead, losses in enumerate(by_target):
        weights = weights_ahead(segment, ahead)
        # 0 ahead is the next token, which layers below the last predict.
        factor = model.auxiliary.target_weight if ahead else 1.0
        predicted = nats.weighted_sum(losses, weights)
        objective += factor * predicted / self.totals.tokens
    return objective, (sums, memory)

  def of_segments(
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
