"""The update of dynamic evaluation.

After a segment is scored, the parameters take a step down the gradient of its
mean loss and a step back towards their trained values (Krause et al. 2018, and
2019 for Transformer-XL):

    params + pull * (trained - params) - rate * gradient

    sgd  rate = learning_rate               pull = decay
    rms  rate = learning_rate / (r + eps)   pull = decay * r / mean(r)

where r is the root mean squared gradient on training text. A pull is at most
1, so that it never overshoots the trained parameters. Dropout is off, so the
loss that is differentiated is the one that is scored.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.data import segment as segment_lib
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import memory as memory_lib
from transformer_xl.model import transformer_xl


class Rule(NamedTuple):
  """Hyperparameters; traced, so a sweep over them compiles once."""

  learning_rate: jt.Float[shapes.Array, ""]
  decay: jt.Float[shapes.Array, ""]
  epsilon: jt.Float[shapes.Array, ""]


class Steps(NamedTuple):
  """Rate and pull of every parameter: trees of arrays, of scalars for "sgd"."""

  rates: shapes.PyTree
  pulls: shapes.PyTree  # In [0, 1].


# Losses, last hidden states and next memory of one segment.
SegmentOutputs = tuple[shapes.Losses, shapes.Hidden, memory_lib.Memory]


def read(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segment: segment_lib.Segment,
  *,
  model: transformer_xl.TransformerXL,
) -> SegmentOutputs:
  """Runs the model on a segment; `model.nll` that keeps the hidden states."""
  bound = model.bind({"params": params})
  hidden, memory = bound(segment.inputs, memory, segment.resets)
  nll = adaptive_softmax.nll(hidden, segment.targets, bound.head())
  return nll, hidden, memory


def loss_gradient(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  segment: segment_lib.Segment,
  *,
  model: transformer_xl.TransformerXL,
) -> tuple[shapes.PyTree, SegmentOutputs]:
  """Gradient of the mean loss over the tokens that have weight.

  These are the ones that are scored, so nothing is learned that has not been
  scored: the warm-up of a lane is text that another lane scores later. The
  gradient is zero if there are none.
  """
  weights = segment.loss_weights()

  def loss(params):
    outputs = read(params, memory, segment, model=model)
    total = jnp.sum(weights * outputs[0])
    return total / jnp.maximum(jnp.sum(weights), 1), outputs

  return jax.grad(loss, has_aux=True)(params)


def sgd_steps(rule: Rule, params: shapes.PyTree) -> Steps:
  """The same rate and pull for all parameters."""
  values = rule.learning_rate, jnp.minimum(rule.decay, 1.0)
  return Steps(*(jax.tree.map(lambda _, v=v: v, params) for v in values))


def rms_steps(rule: Rule, mean_squares: shapes.PyTree) -> Steps:
  """Rates and pulls scaled by mean squared training gradients.

  Their roots are averaged over all parameters; the authors' code averages the
  means of its tensors, which depends on how layers are stacked.
  """
  roots = jax.tree.map(jnp.sqrt, mean_squares)
  leaves = jax.tree.leaves(roots)
  mean = sum(map(jnp.sum, leaves)) / sum(leaf.size for leaf in leaves)
  return Steps(
    jax.tree.map(lambda r: rule.learning_rate / (r + rule.epsilon), roots),
    jax.tree.map(lambda r: jnp.minimum(rule.decay * r / mean, 1.0), roots),
  )


def update(
  params: shapes.PyTree,
  gradient: shapes.PyTree,
  *,
  trained: shapes.PyTree,
  steps: Steps,
) -> shapes.PyTree:
  """Returns the parameters for the next segment."""

  def move(value, slope, start, rate, pull):
    return value + pull * (start - value) - rate * slope

  return jax.tree.map(move, params, gradient, trained, *steps)
