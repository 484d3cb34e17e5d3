"""Parameters of the layers: drawn in float32, cast to the compute type.

Each function takes the Linen module that owns the parameter, which has a
`config`, and is called from inside it. The order of the calls within a module
decides which random numbers a parameter is drawn from.

A parameter says how a mesh splits it where it is made, by a word of
`mesh.SPLITS`. One that says nothing stays whole. The word is on a box around
the new parameter, Flax's form of metadata; the parameters of a run have none
(`network.init_params`, `network.splits`).
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import norm
from transformer_xl.model.kernels import dense

# Projections that `config.qkv_bias` adds a bias to.
_BIASED = ("query", "key", "value")


class Boxed(flax.struct.PyTreeNode, nn.meta.AxisMetadata[jax.Array]):
  """A parameter that has just been drawn, and how a mesh splits it."""

  value: jax.Array
  split: mesh_lib.Split = flax.struct.field(pytree_node=False)

  def unbox(self) -> jax.Array:
    """The parameter."""
    return self.value

  def replace_boxed(self, val: shapes.PyTree) -> shapes.PyTree:
    """Another array in the box."""
    return self.replace(value=val)

  @classmethod
  def from_nnx_metadata(cls, metadata: dict[str, Any]) -> "Boxed":
    """The box of a variable of Flax NNX (`nnx.bridge`)."""
    return cls(metadata["value"], metadata["split"])

  def add_axis(self, index: int, params: dict[Any, Any]) -> "Boxed":
    """Layers were stacked in front."""
    del index, params
    return self._stacked(1)

  def remove_axis(self, index: int, params: dict[Any, Any]) -> "Boxed":
    """One of the stacked layers."""
    del index, params
    return self._stacked(-1)

  def _stacked(self, more: int) -> "Boxed":
    count = self.split.num_stacked + more
    return self.replace(split=self.split._replace(num_stacked=count))


def boxed(value: jax.Array, split: str) -> Boxed:
  """A new parameter that is split by a word of `mesh.SPLITS`.

  Raises:
    UserError: there is no such word.
  """
  if split not in mesh_lib.SPLITS:
    raise errors.UserError(
      f"a parameter has split={split!r}; give one of "
      f"{', '.join(mesh_lib.SPLITS)}."
    )
  return Boxed(value, mesh_lib.Split(split))


def with_split(
  init: Callable[..., jax.Array], split: str
) -> Callable[..., jax.Array]:
  """An initialiser for `nn.Module.param`, which takes the box off.

  The parameter is split by a word of `mesh.SPLITS`.
  """

  def draw(*args: Any) -> shapes.PyTree:
    return boxed(init(*args), split)

  return draw


def splits_of(params: shapes.PyTree) -> mesh_lib.Splits:
  """How parameters are split, by their paths, from the boxes around them."""
  leaves = jax.tree_util.tree_leaves_with_path(
    params, is_leaf=lambda node: isinstance(node, Boxed)
  )
  return {
    tuple(key.key for key in path): leaf.split
    for path, leaf in leaves
    if isinstance(leaf, Boxed)
  }


def is_bias_or_scale(name: str) -> bool:
  """Whether a parameter has the name of a bias or of a norm's scale.

  These ends of names are a convention, for parameters of extensions as well:
  such a parameter stays in float32, has no weight decay and takes no adapter.
  """
  return name.endswith(("bias", "scale"))


def in_compute_type(
  params: shapes.PyTree, config: schema.ModelConfig
) -> shapes.PyTree:
  """Casts the matrices and tables, which the model would cast in every call."""

  def cast(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
    if is_bias_or_scale(path[-1].key):  # Used in float32.
      return leaf
    return leaf.astype(config.dtype)

  return jax.tree.map_with_path(cast, params)


def matrix(
  module: nn.Module,
  name: str,
  shape: tuple[int, ...],
  *,
  split: str = "whole",
  dropout_lanes: shapes.Lanes | None = None,
) -> jax.Array:
  """A matrix from N(0, init_std) whose single weights training may drop.

  None are dropped without `dropout_lanes`. Dropout follows the cast, so that no
  array of the matrix's size is float32.
  """
  init = with_split(nn.initializers.normal(module.config.init_std), split)
  value = module.param(name, init, shape, jnp.float32)
  weights = jnp.asarray(value, module.config.dtype)
  drop = dropout_lib.Dropout(
    module.config.weight_dropout_rate, name=f"{name}_dropout"
  )
  return drop(weights, dropout_lanes=dropout_lanes)


def vector(
  module: nn.Module, name: str, size: int, *, split: str = "whole"
) -> jax.Array:
  """A bias [size] that starts from zeros."""
  init = with_split(nn.initializers.zeros, split)
  value = module.param(name, init, (size,), jnp.float32)
  return value.astype(module.config.dtype)


def for_all_queries(
  heads: jt.Float[shapes.Array, "*rows G width"], config: schema.ModelConfig
) -> jt.Float[shapes.Array, "*rows H width"]:
  """Repeats heads that several heads of queries share, G of H."""
  num_shares = config.num_heads // heads.shape[-2]
  if num_shares == 1:
    return heads
  # The gradient of a stack adds arrays; that of `repeat` sums over an axis,
  # which XLA on CPU takes several times as long for.
  repeated = jnp.stack([heads] * num_shares, axis=-2)
  shape = (*heads.shape[:-2], config.num_heads, heads.shape[-1])
  return repeated.reshape(shape)


def normalised_heads(
  module: nn.Module, name: str, heads: jt.Float[shapes.Array, "*rows H Dh"]
) -> jt.Float[shapes.Array, "*rows H Dh"]:
  """Queries or keys with their RMS norm, if `config.qk_norm`.

  All heads of a layer share the scale, the parameter `<name>_scale` [Dh].
  """
  config = module.config
  if not config.qk_norm:
    return heads
  init = nn.initializers.ones
  scale = module.param(f"{name}_scale", init, (config.head_dim,), jnp.float32)
  return norm.rms_norm(heads, scale, config.layer_norm_epsilon)


class Projections:
  """The projections to heads of one attention module.

  A kernel is drawn when it is first used, and serves every later use. Each
  use has a dropout mask of its own.
  """

  def __init__(self, module: nn.Module, *, dropout_lanes: shapes.Lanes | None):
    self._module = module
    self._dropout_lanes = dropout_lanes
    self._kernels: dict[str, jax.Array] = {}
    self._biases: dict[str, jax.Array] = {}
    config = module.config
    self._drop = dropout_lib.Dropout(
      config.projection_dropout_rate,
      config.locked_dropout,
      name="projection_dropout",
    )

  def __call__(
    self,
    name: str,
    rows: jt.Float[shapes.Array, "*rows D"],
    *,
    drops: bool = True,
    num_constant: int = 0,
  ) -> jt.Float[shapes.Array, "*rows H Dh"]:
    """Projects states to heads.

    Args:
      name: of the kernel.
      rows: states.
      drops: apply dropout of projections, if there is any.
      num_constant: how many of the first states of [B, K, D] are constants,
        whose gradient is not computed.
    """
    config = self._module.config
    is_shared = name in ("key", "value")
    num_heads = config.num_kv_heads if is_shared else config.num_heads
    if name not in self._kernels:
      shape = (config.model_dim, num_heads * config.head_dim)
      self._kernels[name] = matrix(
        self._module,
        name,
        shape,
        split="columns",
        dropout_lanes=self._dropout_lanes,
      )
    projected = dense.times(rows, self._kernels[name], num_constant)
    if config.qkv_bias and name in _BIASED:
      if name not in self._biases:
        width = num_heads * config.head_dim
        self._biases[name] = vector(
          self._module, f"{name}_bias", width, split="features"
        )
      in_front = tuple(range(rows.ndim - 1))
      projected += jnp.expand_dims(self._biases[name], in_front)
    if drops:
      projected = self._drop(projected, dropout_lanes=self._dropout_lanes)
    heads = projected.reshape(*rows.shape[:-1], num_heads, config.head_dim)
    return for_all_queries(heads, config)


def project_output(
  module: nn.Module,
  values: shapes.Queries,
  *,
  dropout_lanes: shapes.Lanes | None,
) -> shapes.Hidden:
  """The weighted values of all heads as a term of the residual stream."""
  config = module.config
  width = values.shape[2] * values.shape[3]
  weights = matrix(
    module,
    "output",
    (width, config.model_dim),
    split="rows",
    dropout_lanes=dropout_lanes,
  )
  output = dense.times(values.reshape(*values.shape[:2], width), weights)
  drop = dropout_lib.of_states(config)
  return drop(output, dropout_lanes=dropout_lanes)
