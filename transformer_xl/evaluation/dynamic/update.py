"""The update of dynamic evaluation.

After a segment is scored, the parameters take a step down the gradient of its
mean loss and a step back towards their trained values (Krause et al. 2018, and
2019 for Transformer-XL):

    params + pull * (trained - params) - rate * gradient

    sgd  rate = learning_rate               pull = decay
    rms  rate = learning_rate / (r + eps)   pull = decay * r / mean(r)

where r is the root mean squared gradient on training text. A pull is at most
1, so that it never overshoots the trained parameters.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes

# Added to the size of training gradients, which is almost zero for rare words.
EPSILON = 1e-3


class Rule(NamedTuple):
  """Hyperparameters; traced, so a sweep over them compiles once."""

  learning_rate: jt.Float[shapes.Array, ""]
  decay: jt.Float[shapes.Array, ""]


class Steps(NamedTuple):
  """Rate and pull of every parameter: trees of arrays, of scalars for "sgd"."""

  rates: shapes.PyTree
  pulls: shapes.PyTree  # In [0, 1].

  def update(
    self, params: shapes.PyTree, gradient: shapes.PyTree, trained: shapes.PyTree
  ) -> shapes.PyTree:
    """Returns the parameters for the next segment."""

    def move(
      value: jax.Array,
      leaf: jax.Array,
      start: jax.Array,
      rate: jax.Array,
      pull: jax.Array,
    ) -> jax.Array:
      return value + pull * (start - value) - rate * leaf

    return jax.tree.map(move, params, gradient, trained, *self)


def sgd_steps(rule: Rule, params: shapes.PyTree) -> Steps:
  """Steps with the same rate and pull for all parameters."""
  pull = jnp.minimum(rule.decay, 1.0)
  return Steps(
    jax.tree.map(lambda _: rule.learning_rate, params),
    jax.tree.map(lambda _: pull, params),
  )


def rms_steps(rule: Rule, mean_squares: shapes.PyTree) -> Steps:
  """Rates and pulls scaled by mean squared training gradients.

  Their roots are averaged over all parameters; the authors' code averages the
  means of its tensors, which depends on how layers are stacked.
  """
  roots = jax.tree.map(jnp.sqrt, mean_squares)
  leaves = jax.tree.leaves(roots)
  mean = sum(map(jnp.sum, leaves)) / sum(leaf.size for leaf in leaves)
  return Steps(
    jax.tree.map(lambda r: rule.learning_rate / (r + EPSILON), roots),
    jax.tree.map(lambda r: jnp.minimum(rule.decay * r / mean, 1.0), roots),
  )
