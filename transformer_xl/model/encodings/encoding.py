"""The interface of an encoding: all that the model needs to know about it.

An encoding may add vectors to the embeddings or to the input of each layer,
change queries and keys by their places, and give attention a term that depends
on the distance between query and key. Each method below returns None, or the
plain choice, where an encoding has nothing to add, so a new encoding overrides
only what makes it different.

An encoding is one file with a class that registers itself, in this folder or in
an extension:

    @registry.encodings.register("name")
    class Name(encoding.Encoding):
      ...

Its name is then a value of `model.encoding`.

Shapes: B lanes, T queries, K keys, H heads, Dh head width, D model width.
"""

from typing import ClassVar

import flax.linen as nn
import jax

from transformer_xl import shapes
from transformer_xl.config import fields
from transformer_xl.config import schema
from transformer_xl.model import parameters
from transformer_xl.model import scores


class Encoding:
  """How a model represents the order of tokens.

  Attributes:
    registered_name: the value of `model.encoding`.
    Fields: fields of its own, which are `config.model.NAME.*`; None for none.
    clamps: distances beyond `clamp_len` can share one encoding.
    rotates: it rotates pairs of a head's channels, whose number has to be even.
    has_table: it learns a table with `model.num_positions` rows.
    counts_from_segment: a token's encoding is its position in its segment, so
      results depend on where a text is cut.
    score_products: how many products of size T x K attention computes, that
      with the values included; 3 if there are keys of distances.
  """

  registered_name: ClassVar[str] = ""
  Fields: ClassVar[type[fields.Group] | None] = None
  clamps: ClassVar[bool] = False
  rotates: ClassVar[bool] = False
  has_table: ClassVar[bool] = False
  counts_from_segment: ClassVar[bool] = False
  score_products: ClassVar[int] = 2

  @staticmethod
  def check(config: schema.ModelConfig) -> None:
    """Raises a UserError for a model that the encoding cannot serve."""
    del config

  def shared_biases(self, module: nn.Module) -> shapes.BiasPair | None:
    """Parameters u and v of the whole model, if all layers share them."""
    del module
    return None

  def layer_biases(self, module: nn.Module) -> shapes.BiasPair | None:
    """u and v of one attention module, if layers do not share them.

    They are drawn before the module's other parameters.
    """
    del module
    return None

  def positions(
    self, config: schema.ModelConfig, num_keys: int, *, clamp_len: int
  ) -> shapes.Positions | None:
    """Encodings of the distances K-1 to 0 that every layer projects."""
    del config, num_keys, clamp_len
    return None

  def distance_terms(
    self,
    module: nn.Module,
    project: parameters.Projections,
    positions: shapes.Positions | None,
    num_keys: int,
    biases: shapes.BiasPair | None,
  ) -> scores.DistanceTerms:
    """Terms of the distances K-1 to 0, and biases, in one attention module.

    Args:
      module: owner of the parameters, drawn after those of the values.
      project: the module's projections.
      positions: the result of the method `positions`.
      num_keys: K.
      biases: the result of `shared_biases` or of `layer_biases`.
    """
    del module, project, positions, num_keys, biases
    return scores.DistanceTerms()

  def embedding_positions(
    self,
    config: schema.ModelConfig,
    first_position: jax.Array | None,
    segment_len: int,
  ) -> shapes.SegmentPositions | None:
    """Vectors [T, D] to add to the embeddings.

    Args:
      config: of the model.
      first_position: position of the first token in its segment, a scalar; None
        for the start of the segment.
      segment_len: T.
    """
    del config, first_position, segment_len
    return None

  def layer_positions(
    self,
    module: nn.Module,
    first_position: jax.Array | None,
    segment_len: int,
  ) -> shapes.SegmentPositions | None:
    """Vectors [T, D] to add to the input of one layer.

    Args:
      module: owner of the parameters.
      first_position: as for `embedding_positions`.
      segment_len: T.
    """
    del module, first_position, segment_len
    return None

  def check_segment_len(
    self, config: schema.ModelConfig, segment_len: int
  ) -> None:
    """Raises a UserError if the encoding cannot read such a segment."""
    del config, segment_len

  def placed(
    self,
    config: schema.ModelConfig,
    rows: jax.Array,
    positions: jax.Array,
    *,
    axis: int = -1,
  ) -> jax.Array:
    """Queries or keys, changed by their positions.

    Scores may depend on differences of positions alone, which wrap as int32.

    Args:
      config: of the model.
      rows: of any shape, with the channels of a head on `axis`.
      positions: integers that broadcast against `rows`, of size 1 on `axis`.
      axis: of the channels.
    """
    del config, positions, axis
    return rows
