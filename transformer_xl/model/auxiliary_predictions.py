"""Predictions that training alone makes (Al-Rfou et al. 2018).

Layers below the last predict, too ("intermediate layer losses"), and positions
predict tokens after the next one ("multiple targets"). Neither changes what the
model computes: a softmax that is not the model's own is a parameter of training
(docs/specification.md, section 14).

Shapes: B lanes, U targets, D model width, N layers, K targets of a position.
"""

import dataclasses
import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_softmax


class LayerOutputs(NamedTuple):
  """Inputs of the softmaxes, after `final_norm` and dropout.

  Attributes:
    last: of the last layer.
    below: of the layers below, lowest first; None if they predict nothing.
  """

  last: shapes.Hidden
  below: jt.Float[shapes.Array, "layers B U D"] | None


class Heads(NamedTuple):
  """The softmax of each target of a position, the next token first.

  Attributes:
    last: of the last layer, K.
    below: of the layers below, if they have their own: K, with the N - 1
      layers in front of all arrays. None if they share `last`.
  """

  last: tuple[adaptive_softmax.SoftmaxWeights, ...]
  below: tuple[adaptive_softmax.SoftmaxWeights, ...] | None


def layers_predict(config: schema.ModelConfig) -> bool:
  """Whether layers below the last predict in training."""
  return config.auxiliary.layers != "none" and config.num_layers > 1


def is_used(config: schema.ModelConfig) -> bool:
  """Whether training predicts anything but the next token."""
  return layers_predict(config) or config.auxiliary.num_targets > 1


class AuxiliaryPredictions(nn.Module):
  """Parameters of the predictions; none of them is shared with the model."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(self, head: adaptive_softmax.SoftmaxWeights) -> Heads:
    """All softmaxes, given the model's own."""
    config = self.config
    num_targets = config.auxiliary.num_targets
    untied = dataclasses.replace(
      config, tie_weights=False, tie_projections="none"
    )

    last = [head]
    for target in range(2, num_targets + 1):
      softmax = adaptive_softmax.AdaptiveSoftmax(
        untied, name=f"target_{target}"
      )
      last.append(softmax((), ()))
    if not layers_predict(config) or config.auxiliary.layers == "shared":
      return Heads(tuple(last), None)

    stacked = nn.vmap(
      adaptive_softmax.AdaptiveSoftmax,
      in_axes=None,
      variable_axes={"params": 0},
      split_rngs={"params": True},
      axis_size=config.num_layers - 1,
    )
    below = []
    for target in range(1, num_targets + 1):
      softmax = stacked(untied, name=f"layers_target_{target}")
      below.append(softmax((), ()))
    return Heads(tuple(last), tuple(below))


def losses(
  outputs: LayerOutputs,
  targets: shapes.Targets,
  heads: Heads,
  *,
  num_silent: int | jt.Int[shapes.Array, ""],
) -> tuple[shapes.Losses, ...]:
  """Sums over layers of the losses that are not the model's own, by target.

  The k-th result, from 0, has at each position the losses of the token k + 1
  steps ahead. That token is `targets` k positions later; the last k positions
  have none, and what stands there means nothing.

  Args:
    outputs: of the layers.
    targets: the next token of each position.
    heads: the softmaxes.
    num_silent: how many layers, the lowest, make no prediction. They cost
      nothing.
  """
  by_distance = [
    jnp.pad(targets[:, ahead:], ((0, 0), (0, ahead)))
    for ahead in range(len(heads.last))
  ]
  total = [jnp.zeros(targets.shape, jnp.float32)]
  for later, head in zip(by_distance[1:], heads.last[1:], strict=True):
    total.append(adaptive_softmax.nll(outputs.last, later, head))
  below = outputs.below
  if below is None:
    return tuple(total)

  def predict(
    hidden: jax.Array, own: tuple[adaptive_softmax.SoftmaxWeights, ...] | None
  ) -> list[jax.Array]:
    return [
      adaptive_softmax.nll(hidden, later, head)
      for later, head in zip(by_distance, own or heads.last, strict=True)
    ]

  def skip(hidden: jax.Array, own: shapes.PyTree) -> list[jax.Array]:
    del hidden, own
    return [jnp.zeros(targets.shape, jnp.float32) for _ in by_distance]

  # The logits of all layers would take more memory than the layers.
  @functools.partial(jax.checkpoint, prevent_cse=False)  # A scan prevents it.
  @jax.named_scope("auxiliary_layers")  # By which a plan knows the conditional.
  def of_layer(
    index: jax.Array, hidden: jax.Array, own: shapes.PyTree
  ) -> list[jax.Array]:
    return jax.lax.cond(index >= num_silent, predict, skip, hidden, own)

  def add(
    total: list[jax.Array],
    layer: tuple[jax.Array, jax.Array, shapes.PyTree],
  ) -> tuple[list[jax.Array], None]:
    return jax.tree.map(jnp.add, total, of_layer(*layer)), None

  indices = jnp.arange(below.shape[0], dtype=jnp.int32)
  total, _ = jax.lax.scan(add, total, (indices, below, heads.below))
  return tuple(total)
