"""Where a layer's keys and values come from.

A layer (`layers.Block`) is written once. It asks a source which rows to
project besides those of the segment, and lets it attend: to hidden states in
memory (here), or to a ring of cached keys and values (`kv_cache`).

Shapes: B lanes, T queries, M memory length, K = M + T keys, H heads, Dh head
width, D model width.
"""

from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import runtime_checkable

import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import parameters
from transformer_xl.model.encodings import encoding
from transformer_xl.model.encodings import table


@runtime_checkable
class Source(Protocol):
  """What all layers share while they read a segment."""

  @property
  def first_position(self) -> int | jax.Array:
    """Position of the first token in its segment, a scalar."""

  def context(self, hidden: shapes.Hidden, memory: Any) -> shapes.Context:
    """The rows that keys and values are projected from; the segment is last.

    Args:
      hidden: input of the layer.
      memory: what this layer remembers.
    """

  def attend(
    self,
    module: Any,
    queries: shapes.Hidden,
    context: shapes.Context,
    memory: Any,
    *,
    dropout: dropout_lib.AttentionDropout | None,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Queries, Any]:
    """Attends from the segment.

    Args:
      module: the attention module, owner of the parameters.
      queries: rows of the segment, normalised if the model is pre-norm.
      context: of `context`, likewise.
      memory: what this layer remembers.
      dropout: of the probabilities.
      dropout_lanes: numbers of the lanes in the batch, for dropout of matrices
        and projections; None without dropout.

    Returns:
      The weighted values, and what the source keeps of this layer.
    """


class HiddenStates(NamedTuple):
  """Keys and values of hidden states, those in memory projected again."""

  positions: shapes.Positions | None  # Encodings of the distances K-1 to 0.
  biases: shapes.BiasPair | None  # u and v, if all layers share them.
  reach: shapes.Reach

  @property
  def stops_gradient(self) -> bool:
    """Whether the states in memory are constants."""
    return True

  @property
  def first_position(self) -> int:
    """A call reads a segment from its start."""
    return 0

  def context(
    self, hidden: shapes.Hidden, memory: shapes.LayerMemory
  ) -> shapes.Context:
    """Memory, then segment, [B, K, D]."""
    if self.stops_gradient:
      memory = jax.lax.stop_gradient(memory)
    return jnp.concatenate([memory, hidden], axis=1)

  def attend(
    self,
    module: Any,
    queries: shapes.Hidden,
    context: shapes.Context,
    memory: shapes.LayerMemory,
    *,
    dropout: dropout_lib.AttentionDropout | None,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Queries, Any]:
    """Attends to memory and segment; see `Source.attend`."""
    del memory  # It is in `context`.
    order = table.of(module.config)
    biases = self.biases or order.layer_biases(module)
    project = parameters.Projections(module, dropout_lanes=dropout_lanes)
    # The norm of a pre-norm model is trained by the rows of memory as well.
    is_constant = self.stops_gradient and not module.config.pre_norm
    constant = context.shape[1] - queries.shape[1] if is_constant else 0
    query = project("query", queries)
    key = project("key", context, num_constant=constant)
    value = project("value", context, num_constant=constant)
    distance = order.distance_terms(
      module, project, self.positions, context.shape[1], biases
    )
    positions = jnp.arange(context.shape[1], dtype=jnp.int32)
    positions = positions[None, :, None, None]
    newest = positions[:, context.shape[1] - queries.shape[1] :]
    factors = encoding.ScoreFactors(
      order.placed(module.config, query, newest),
      order.placed(module.config, key, positions),
      distance,
    )
    values = order.attend(
      factors,
      value,
      reach=self.reach,
      dropout=dropout,
      implementation=module.config.attention,
    )
    return values, self.kept(factors)

  def kept(self, factors: encoding.ScoreFactors) -> Any:
    """Nothing: training needs only the values."""
    del factors


class TrainedStates(HiddenStates):
  """`HiddenStates` that lets gradients pass into the memory."""

  @property
  def stops_gradient(self) -> bool:
    """They are not."""
    return False


class InspectedStates(HiddenStates):
  """`HiddenStates` that keeps what attention is computed from."""

  def kept(
    self, factors: encoding.ScoreFactors
  ) -> tuple[encoding.ScoreFactors, shapes.Reach]:
    """All factors of the scores, and which keys they are for."""
    return factors, self.reach
