"""Muon (Jordan et al. 2024) for the matrices of layers, beside AdamW."""

import jax
import optax
import optax.contrib

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.training.optimizers import optimizer

# With this root mean square of an update, Muon takes Adam's learning rates (Liu
# et al. 2025, equation 4).
_RMS = 0.2
# Arrays of layers that are no matrices, though they have two axes of their own:
# the ends of their names.
_NO_MATRICES = ("bias", "convolution", "distances", "positions", "vectors")


@registry.optimizers.register("muon")
class Muon(optimizer.Optimizer):
  """Muon for matrices, AdamW for all other parameters."""

  uses = ("weight_decay", "adam_b2", "adam_epsilon")

  @staticmethod
  def make(config: schema.TrainConfig) -> optax.GradientTransformation:
    """The orthogonal momentum, or Adam's quotient of means, and the decay."""
    return optax.chain(
      _muon(optimizer.scale_by_adam(config)), optimizer.decay_weights(config)
    )


def _muon(
  adam: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Muon for the matrices of layers, Adam for the rest.

  The momentum of each matrix of each layer is replaced by its nearest
  orthogonal one. Tables, biases and the softmax are Adam's, as the authors
  advise.
  """

  def is_matrix(path: jax.tree_util.KeyPath, leaf: jax.Array) -> bool:
    if path[-1].key.endswith(_NO_MATRICES):
      return False
    return path[0].key == "layers" and leaf.ndim == 3

  def labels(params: shapes.PyTree) -> shapes.PyTree:
    return jax.tree.map_with_path(
      lambda path, leaf: "muon" if is_matrix(path, leaf) else "adam", params
    )

  def axes(params: shapes.PyTree) -> shapes.PyTree:
    """The layers are stacked in front of rows and columns."""
    numbers = optax.contrib.MuonDimensionNumbers(1, 2)
    return jax.tree.map(lambda _: numbers, params)

  def scale(update: shapes.PyTree, params: shapes.PyTree) -> shapes.PyTree:
    del params
    return jax.tree.map(
      lambda leaf: _RMS * max(leaf.shape[1:]) ** 0.5 * leaf, update
    )

  muon = optax.chain(
    optax.contrib.scale_by_muon(weight_dimension_numbers=axes),
    optax.stateless(scale),
  )
  return optax.partition({"muon": muon, "adam": adam}, labels)
