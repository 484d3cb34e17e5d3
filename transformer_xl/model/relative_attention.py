"""Relative attention for models of other libraries: arrays in, an array out.

    values = extend.relative_attention(
      query, key, value, position_key, u, v, reach
    )

The model itself calls `kernels.dispatch`, which takes further terms of a score.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import precision
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import scores
from transformer_xl.model.kernels import dispatch

_IMPLEMENTATIONS = ("auto", "xla", "pallas")


def relative_attention(
  query: shapes.Queries,
  key: shapes.Keys,
  value: shapes.Keys,
  position_key: shapes.PositionKeys,
  u: shapes.Biases,
  v: shapes.Biases,
  reach: shapes.Reach,
  *,
  dropout: dropout_lib.AttentionDropout | None = None,
  implementation: str = "auto",
) -> shapes.Queries:
  """Attention of a segment to memory and to itself (Dai et al. 2019, 3.3).

  In each head, query i sees the keys j at the distances d = i - j from 0 to its
  reach, and adds up their values by the softmax of

      ((query_i + u) key_j + (query_i + v) position_key_d) / sqrt(Dh)

  There are B lanes, T queries, H heads of width Dh, and K = M + T keys: those
  of memory, which may be none, and then those of the segment. The last query
  and the last key belong to the same token.

  All arguments but `reach` and the seeds of dropout have gradients, in reverse
  mode (`jax.grad`); the fused kernel has no second ones. A gradient stops at
  memory where the caller stops it, as in `jax.lax.stop_gradient(memory)`. Under
  `jax.set_mesh` the axes "data" and "fsdp" split lanes, and "tensor" heads;
  other axes do not split anything. All of them have the type
  `jax.sharding.AxisType.Auto`.

  Args:
    query: [B, T, H, Dh], in float32 or bfloat16. Products are added up in
      float32, in which the softmax is computed.
    key: [B, K, H, Dh], oldest first, in the type of the queries.
    value: the same.
    position_key: [K, H, Dh], in this type: the keys of the distances K-1 down
      to 0, one row each, which all lanes share.
    u: [H, Dh], of any type; zeros for a score without it.
    v: the same.
    reach: [B, T], the largest distance that each query sees. Keys beyond it
      have no effect, whatever finite numbers they hold, and none on gradients
      unless products with their values overflow. A token always sees itself:
      below 0 counts as 0. From K - 1 on it sees everything before it.
    dropout: `extend.AttentionDropout(rate, seeds)` drops attention weights and
      divides those that stay by 1 - rate. Which ones follows from the seed of
      lane and head, int32 [B, H], and from the positions of query and key, on
      every device and in every implementation; so draw other seeds in each
      layer and each update. None is for no dropout.
    implementation: "auto" takes the fused kernel on a TPU v5e or later where it
      can serve, "pallas" takes it everywhere, interpreted without a TPU, and
      "xla" never.

  Returns:
    [B, T, H, Dh], in the type of the queries.

  Raises:
    UserError: shapes or types do not fit together, there is no such
      implementation or rate, axes of the mesh have another type, or JAX is in
      its 64-bit mode.
  """
  precision.require_32_bits()
  mesh_lib.current()  # Refuses axes of another type.
  arrays = {
    "query": query,
    "key": key,
    "value": value,
    "position_key": position_key,
    "u": u,
    "v": v,
    "reach": reach,
  }
  _check_shapes(arrays)
  _check_types(arrays)
  if dropout is not None:
    _check_dropout(dropout, lanes=query.shape[0], heads=query.shape[2])
  if implementation not in _IMPLEMENTATIONS:
    raise errors.UserError(
      f"implementation is {implementation!r}; it must be one of "
      f"{', '.join(_IMPLEMENTATIONS)}"
    )
  factors = scores.ScoreFactors(
    query=query,
    key=key,
    reach=_in_range(reach, key.shape[1]),
    distance=scores.DistanceTerms(keys=position_key, biases=(u, v)),
  )
  return dispatch.relative_attention(
    factors, value, dropout=dropout, implementation=implementation
  )


def _in_range(reach: jax.Array, num_keys: int) -> jax.Array:
  """The distances in int32, from 0 on and at most to the first key.

  A query that sees nothing would see everything. Arrays of NumPy may have 64
  bits, of which JAX would take the lower ones.
  """
  most = min(num_keys - 1, jnp.iinfo(reach.dtype).max)
  clip = np.clip if isinstance(reach, np.ndarray) else jnp.clip
  return jnp.asarray(clip(reach, 0, most), jnp.int32)


def _check_shapes(arrays: Mapping[str, jax.Array]) -> None:
  """Raises a UserError unless all arrays fit the queries and the keys."""
  for name, array in arrays.items():
    if not isinstance(array, jax.Array | np.ndarray):
      raise errors.UserError(
        f"{name} is a {type(array).__name__}; it must be an array of JAX or "
        "NumPy"
      )
  query, key = arrays["query"].shape, arrays["key"].shape
  if len(query) != 4 or len(key) != 4:
    raise errors.UserError(
      f"query has the shape {list(query)} and key {list(key)}; both must be "
      "[lanes, positions, heads, width]"
    )
  lanes, num_queries, heads, width = query
  num_keys = key[1]
  if 0 in query:
    raise errors.UserError(
      f"query has the shape {list(query)}; no size may be 0"
    )
  if num_keys < num_queries:
    raise errors.UserError(
      f"there are {num_queries} queries and {num_keys} keys; there must be at "
      "least as many keys, which are those of memory and of the segment"
    )
  wanted = {
    "key": (lanes, num_keys, heads, width),
    "value": (lanes, num_keys, heads, width),
    "position_key": (num_keys, heads, width),
    "u": (heads, width),
    "v": (heads, width),
    "reach": (lanes, num_queries),
  }
  for name, shape in wanted.items():
    if arrays[name].shape != shape:
      raise errors.UserError(
        f"{name} has the shape {list(arrays[name].shape)}; beside a query of "
        f"{list(query)} and a key of {list(key)} it must be {list(shape)}"
      )


def _check_types(arrays: Mapping[str, jax.Array]) -> None:
  """Raises a UserError unless the arrays have types that can be computed."""
  kind = arrays["query"].dtype
  if kind not in (jnp.float32, jnp.bfloat16):
    raise errors.UserError(f"query is {kind}; it must be float32 or bfloat16")
  for name in ("key", "value", "position_key"):
    if arrays[name].dtype != kind:
      raise errors.UserError(
        f"{name} is {arrays[name].dtype}; it must be {kind}, as query is"
      )
  if not jnp.issubdtype(arrays["reach"].dtype, jnp.integer):
    raise errors.UserError(
      f"reach is {arrays['reach'].dtype}; distances must be integers"
    )


def _check_dropout(
  dropout: dropout_lib.AttentionDropout, *, lanes: int, heads: int
) -> None:
  """Raises a UserError unless each lane and head has a seed, and a rate."""
  if not isinstance(dropout, dropout_lib.AttentionDropout):
    raise errors.UserError(
      f"dropout is {dropout!r}; it must be extend.AttentionDropout(rate, seeds)"
    )
  rate = dropout.rate
  if not isinstance(rate, int | float | np.floating) or not 0 <= rate < 1:
    raise errors.UserError(
      f"the rate of dropout is {rate!r}; it must be a number in [0, 1), and no "
      "array, since each program is compiled for its rate"
    )
  seeds = dropout.seeds
  if not isinstance(seeds, jax.Array | np.ndarray):
    raise errors.UserError(
      f"the seeds of dropout are a {type(seeds).__name__}; they must be an "
      "array of JAX or NumPy"
    )
  if seeds.shape != (lanes, heads) or seeds.dtype != jnp.int32:
    raise errors.UserError(
      f"the seeds of dropout are {seeds.dtype}{list(seeds.shape)}; they must "
      f"be int32[{lanes}, {heads}], one for each lane and head"
    )
