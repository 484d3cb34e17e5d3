"""Dynamic evaluation: parameters that follow the text that they have scored.

A segment is scored; then the parameters take a step down the gradient of its
mean loss and a step back towards those of training (Krause et al. 2018 and
2019, there on Transformer-XL):

    params + pull * (trained - params) - rate * gradient

    sgd  rate = learning_rate               pull = decay
    rms  rate = learning_rate / (r + eps)   pull = decay * r / mean(r)

where r is the root of the mean squared gradient on training text, and no pull
leads beyond the trained parameters, so it is at most 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes


class Rule(NamedTuple):
  """Numbers that a sweep changes without compiling again."""

  learning_rate: jt.Float[shapes.Array, ""]
  decay: jt.Float[shapes.Array, ""]
  epsilon: jt.Float[shapes.Array, ""]


class Steps(NamedTuple):
  """A rule for every parameter: trees of them, of scalars for "sgd"."""

  rates: shapes.PyTree
  pulls: shapes.PyTree  # In [0, 1].


def sgd_steps(rule: Rule, params: shapes.PyTree) -> Steps:
  """The same steps for all parameters."""
  everywhere = lambda value: jax.tree.map(lambda _: value, params)  # noqa: E731
  return Steps(
    everywhere(rule.learning_rate), everywhere(jnp.minimum(rule.decay, 1.0))
  )


def rms_steps(rule: Rule, mean_squares: shapes.PyTree) -> Steps:
  """Steps by the size that gradients had in training.

  Args:
    rule: the factors.
    mean_squares: of training gradients, for each parameter. The mean of their
      roots is over all parameters alike; the authors' code averages the means
      of its tensors, which depends on how layers are stacked.
  """
  roots = jax.tree.map(jnp.sqrt, mean_squares)
  leaves = jax.tree.leaves(roots)
  mean = sum(jnp.sum(leaf) for leaf in leaves) / sum(
    leaf.size for leaf in leaves
  )
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
  """The parameters for the next segment."""
  return jax.tree.map(
    lambda value, slope, home, rate, pull: (
      value + pull * (home - value) - rate * slope
    ),
    params,
    gradient,
    trained,
    steps.rates,
    steps.pulls,
  )
