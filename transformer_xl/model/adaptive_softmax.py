"""Adaptive softmax, which may share tables and projections with the input.

The vocabulary is split into clusters (`adaptive_embedding`). The first one is
the shortlist, and the head has one more column for each of the others (Grave
et al. 2017; docs/specification.md, section 12).

Shapes: B lanes, T tokens, D model width, V vocabulary, C tail clusters,
E_c width and V_c size of cluster c.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
from jax import ad_checkpoint

from transformer_xl import hardware
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_embedding
from transformer_xl.model import parameters
from transformer_xl.model import sparse_tails
from transformer_xl.model.kernels import dense

# Log-probabilities and ids of the likeliest tokens so far, [B, T, k] each.
Best = tuple[jax.Array, jax.Array]
# What the gradient of the loss needs: logits, their normaliser and the targets.
Saved = tuple[tuple[jax.Array, ...], jax.Array, jax.Array]


@jax.tree_util.register_static
class Capacities(tuple[float, ...]):
  """Room in each tail cluster, as a share of a device's tokens.

  A cluster then computes only the logits of its own targets. If there are more
  than it has room for, it computes those of all tokens, so the result is the
  same. Without shares, every cluster computes all tokens. Static, because the
  shapes of arrays follow from them.
  """


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Temperature:
  """Number that divides all logits, including those of clusters.

  Static, so that a temperature of 1 needs no division.
  """

  value: float = 1.0


class SoftmaxWeights(NamedTuple):
  """The weights that map hidden states to logits; None for the identity."""

  kernels: tuple[jt.Float[shapes.Array, "V_c E_c"], ...]
  projections: tuple[jt.Float[shapes.Array, "E_c D"] | None, ...]
  bias: jt.Float[shapes.Array, "V"]
  cluster_kernel: jt.Float[shapes.Array, "C E"]
  cluster_bias: jt.Float[shapes.Array, "C"]
  capacities: Capacities = Capacities()
  temperature: Temperature = Temperature()


class AdaptiveSoftmax(nn.Module):
  """Parameters that the adaptive softmax does not share with the input."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self,
    tables: tuple[jax.Array, ...],
    projections: tuple[jax.Array | None, ...],
  ) -> SoftmaxWeights:
    """The weights of the softmax, given those of the embedding."""
    config = self.config
    clusters = adaptive_embedding.clusters(config)
    zeros = nn.initializers.zeros
    normal = nn.initializers.normal(config.init_std)
    of_table = parameters.with_split(normal, "table")
    of_words = parameters.with_split(zeros, "words")
    shape = (len(clusters) - 1, config.embed_dim)
    cluster_kernel = jnp.zeros(shape, jnp.float32)
    cluster_bias = jnp.zeros(shape[:1], jnp.float32)
    if config.cutoffs:
      cluster_kernel = self.param("cluster_kernel", zeros, shape, jnp.float32)
      cluster_bias = self.param("cluster_bias", zeros, shape[:1], jnp.float32)
    if not config.tie_weights:
      tables = tuple(
        self.param(f"kernel_{index}", of_table, cluster.shape, jnp.float32)
        for index, cluster in enumerate(clusters)
      )
    elif config.div_val == 1:
      # Slices would each give a gradient as large as the table.
      tables = tuple(jnp.split(tables[0], list(config.cutoffs)))
    if len(projections) == 1:
      projections *= len(clusters)
    first_tied = {"none": len(clusters), "all": 0, "all_but_first": 1}
    untied = clusters[: first_tied[config.tie_projections]]
    own = [
      adaptive_embedding.projection_parameter(self, index, cluster.width)
      for index, cluster in enumerate(untied)
    ]
    bias = jnp.zeros((config.vocab_size,), jnp.float32)
    if config.softmax_bias:
      bias = self.param("bias", of_words, bias.shape, jnp.float32)
    return SoftmaxWeights(
      kernels=tables,
      projections=(*own, *projections[len(own) :]),
      bias=bias,
      cluster_kernel=cluster_kernel,
      cluster_bias=cluster_bias,
      capacities=Capacities(config.cluster_capacities),
    )


def nll(
  hidden: shapes.Hidden, targets: shapes.Tokens, weights: SoftmaxWeights
) -> shapes.Losses:
  """Negative log-probability of each target in nats, in token order."""
  shortlist, *tails = _bounds(weights)
  shares = weights.capacities or (1.0,) * len(tails)
  column = targets
  result = jnp.zeros(targets.shape, jnp.float32)
  for index, (start, stop) in enumerate(tails, start=1):
    inside = (targets >= start) & (targets < stop)
    column = jnp.where(inside, shortlist[1] + index - 1, column)
    local = jnp.where(inside, targets - start, 0)
    tail = functools.partial(_tail_nll, weights, index, start)
    result += sparse_tails.tail_losses(
      tail, hidden, local, inside, capacity=shares[index - 1]
    )
  head = _head_logits(hidden, weights)
  return result + _cross_entropy(head, column)


def log_probs(
  hidden: shapes.Hidden, weights: SoftmaxWeights
) -> jt.Float[shapes.Array, "B T V"]:
  """Log-probabilities of the whole vocabulary, in order of the ids."""
  (_, size), *tails = _bounds(weights)
  head = _head_log_probs(hidden, weights)
  by_cluster = [
    _tail_log_probs(hidden, weights, head, index, start)
    for index, (start, _) in enumerate(tails, start=1)
  ]
  return jnp.concatenate([head[..., :size], *by_cluster], axis=-1)


def top_k(
  hidden: shapes.Hidden, weights: SoftmaxWeights, k: int
) -> tuple[
  jt.Float[shapes.Array, "B T count"], jt.Int[shapes.Array, "B T count"]
]:
  """Log-probabilities and ids of the k likeliest tokens, likeliest first.

  Equal to the k largest of `log_probs`; ties go to the lower id. No token is
  likelier than its cluster, so a tail is computed only if in some position the
  cluster itself is likelier than the k-th token so far.

  Raises:
    ValueError: k is not between 1 and the size of the vocabulary.
  """
  if not 0 < k <= weights.bias.shape[0]:
    raise ValueError(f"k={k} is not in [1, {weights.bias.shape[0]}].")
  (_, size), *tails = _bounds(weights)
  head = _head_log_probs(hidden, weights)
  shape = (*head.shape[:-1], k)
  best = (jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32))
  best = _merge_best(best, head[..., :size], 0)
  for index, (start, _) in enumerate(tails, start=1):

    def with_tail(best: Best, index: int = index, start: int = start) -> Best:
      tail = _tail_log_probs(hidden, weights, head, index, start)
      return _merge_best(best, tail, start)

    cluster = head[..., size + index - 1]
    is_needed = jnp.any(cluster > best[0][..., -1])
    best = jax.lax.cond(is_needed, with_tail, _without_tail, best)
  return best


def _without_tail(best: Best) -> Best:
  return best


def _bounds(weights: SoftmaxWeights) -> list[tuple[int, int]]:
  """The first id of each cluster, and the id after its last one."""
  ends = itertools.accumulate(kernel.shape[0] for kernel in weights.kernels)
  return list(itertools.pairwise((0, *ends)))


def _merge_best(best: Best, log_probs: jax.Array, start: int) -> Best:
  """The k likeliest of the tokens so far and of the cluster from `start`."""
  k = best[0].shape[-1]
  values, local = jax.lax.top_k(log_probs, min(k, log_probs.shape[-1]))
  tokens = jnp.concatenate([best[1], local.astype(jnp.int32) + start], axis=-1)
  # Ties keep their order, and the tokens found before have lower ids.
  values, order = jax.lax.top_k(jnp.concatenate([best[0], values], axis=-1), k)
  return values, jnp.take_along_axis(tokens, order, axis=-1)


def _head_log_probs(hidden: jax.Array, weights: SoftmaxWeights) -> jax.Array:
  """Log-probabilities of the shortlist's tokens, then of the clusters."""
  head = jnp.concatenate(_head_logits(hidden, weights), axis=-1)
  return jax.nn.log_softmax(head, axis=-1)


def _tail_log_probs(
  hidden: jax.Array,
  weights: SoftmaxWeights,
  head: jax.Array,
  index: int,
  start: int,
) -> jax.Array:
  """Log-probabilities of the tokens of one tail cluster, given the head's."""
  tail = _tail_logits(hidden, weights, index, start)
  cluster = head[..., weights.kernels[0].shape[0] + index - 1, None]
  return cluster + jax.nn.log_softmax(tail, axis=-1)


@jax.named_scope("head")
def _head_logits(
  hidden: jax.Array, weights: SoftmaxWeights
) -> tuple[jax.Array, ...]:
  """Logits of the shortlist and of clusters 1, 2, ... in this order."""
  narrow = _narrow(hidden, weights, 0)
  logits = functools.partial(_logits, narrow, temperature=weights.temperature)
  kernel = weights.kernels[0]
  words = logits(kernel, weights.bias[: kernel.shape[0]])
  if weights.cluster_bias.size == 0:
    return (words,)
  return words, logits(weights.cluster_kernel, weights.cluster_bias)


def _tail_nll(
  weights: SoftmaxWeights,
  index: int,
  start: int,
  hidden: jax.Array,
  local: jax.Array,
  inside: jax.Array,
) -> jax.Array:
  """Losses within one cluster, 0 for targets outside of it."""
  logits = _tail_logits(hidden, weights, index, start)
  return jnp.where(inside, _cross_entropy((logits,), local), 0.0)


def _tail_logits(
  hidden: jax.Array, weights: SoftmaxWeights, index: int, start: int
) -> jax.Array:
  kernel = weights.kernels[index]
  bias = weights.bias[start : start + kernel.shape[0]]
  with jax.named_scope(f"tail_{index}"):
    narrow = _narrow(hidden, weights, index)
    return _logits(narrow, kernel, bias, temperature=weights.temperature)


def _narrow(
  hidden: jax.Array, weights: SoftmaxWeights, index: int
) -> jax.Array:
  """Hidden states in the width of a cluster, [B, T, E_c]."""
  projection = weights.projections[index]
  return adaptive_embedding.project(hidden, projection, transpose=True)


def _logits(
  narrow: jax.Array,
  kernel: jax.Array,
  bias: jax.Array,
  *,
  temperature: Temperature,
) -> jax.Array:
  """Logits in float32, divided by the temperature."""
  product = dense.logits(narrow, kernel.astype(narrow.dtype))
  logits = product + bias[None, None]
  return logits if temperature.value == 1 else logits / temperature.value


@jax.custom_vjp
def _cross_entropy(
  parts: tuple[jax.Array, ...], targets: jax.Array
) -> jax.Array:
  """Losses [B, T] for logits in several parts, each [B, T, V_c].

  The rule for the gradient saves memory: JAX's own keeps the exponentials and
  the mask beside the logits. Joining the parts would copy them.
  """
  return _loss_forward(parts, targets)[0]


def _loss_forward(
  parts: tuple[jax.Array, ...], targets: jax.Array
) -> tuple[jax.Array, Saved]:
  normalisers = [jax.nn.logsumexp(part, axis=-1) for part in parts]
  normaliser = functools.reduce(jnp.logaddexp, normalisers)
  normaliser = ad_checkpoint.checkpoint_name(normaliser, "normaliser")
  chosen = _chosen(parts, targets)
  losses = normaliser - functools.reduce(jnp.add, chosen)
  return losses, (parts, normaliser, targets)


def _chosen(
  parts: tuple[jax.Array, ...], targets: jax.Array
) -> list[jax.Array]:
  """The targets' logits in each part, [B, T]; 0 for targets in another part."""
  mesh = jax.sharding.get_abstract_mesh()
  if not hardware.is_cpu() or mesh.size > 1:
    # If the vocabulary is split over devices, a sum over a mask moves no
    # logits; a gather would. A single TPU or GPU adds it to a pass over the
    # logits that is made anyway.
    return [
      jnp.sum(jnp.where(mask, part, 0.0), axis=-1)
      for part, mask in _with_masks(parts, targets)
    ]
  chosen = []
  start = 0
  for part in parts:
    local = targets - start
    inside = (local >= 0) & (local < part.shape[-1])
    column = jnp.where(inside, local, 0)[..., None]
    logits = jnp.take_along_axis(part, column, axis=-1)[..., 0]
    chosen.append(jnp.where(inside, logits, 0.0))
    start += part.shape[-1]
  return chosen


def _loss_backward(
  saved: Saved, gradient: jax.Array
) -> tuple[tuple[jax.Array, ...], None]:
  parts, normaliser, targets = saved
  return tuple(
    gradient[..., None] * (jnp.exp(part - normaliser[..., None]) - mask)
    for part, mask in _with_masks(parts, targets)
  ), None


_cross_entropy.defvjp(_loss_forward, _loss_backward)


def _with_masks(
  parts: tuple[jax.Array, ...], targets: jax.Array
) -> Iterator[tuple[jax.Array, jax.Array]]:
  """Yields each part, and where it has the logits of the targets."""
  start = 0
  for part in parts:
    column = jax.lax.broadcasted_iota(targets.dtype, part.shape, 2)
    yield part, column == targets[..., None] - start
    start += part.shape[-1]
