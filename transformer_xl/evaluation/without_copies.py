"""Compiles functions that pass large arrays on, without copies of these."""

from collections.abc import Callable

import jax

from transformer_xl import shapes


def compiled(
  function: Callable[[shapes.PyTree], shapes.PyTree],
  argument: shapes.PyTree,
  shardings: shapes.PyTree,
) -> Callable[[shapes.PyTree], shapes.PyTree]:
  """Compiles a function, except for results that are leaves of its argument.

  `jax.jit` would copy those, and a device may not have the room.

  Args:
    function: pure, of one tree.
    argument: its shapes and types.
    shardings: of the results.
  """
  traced, results = jax.make_jaxpr(function, return_shape=True)(argument)
  inputs = {id(var): index for index, var in enumerate(traced.jaxpr.invars)}
  origins = [inputs.get(id(var)) for var in traced.jaxpr.outvars]

  def only_new(leaves: list[shapes.PyTree]) -> list[shapes.PyTree]:
    return [
      leaf
      for leaf, origin in zip(leaves, origins, strict=True)
      if origin is None
    ]

  def new_results(argument: shapes.PyTree) -> list[shapes.PyTree]:
    return only_new(jax.tree.leaves(function(argument)))

  make = jax.jit(
    new_results,
    out_shardings=only_new(jax.tree.leaves(shardings)),
  )

  def call(argument: shapes.PyTree) -> shapes.PyTree:
    given = jax.tree.leaves(argument)
    new = iter(make(argument))
    leaves = [next(new) if i is None else given[i] for i in origins]
    tree = jax.tree.unflatten(jax.tree.structure(results), leaves)
    return jax.device_put(tree, shardings)

  return call
