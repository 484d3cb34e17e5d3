"""Factors and terms of the scores of attention.

The score of a query i for a key j, at the distance d = i - j, is

    ((q_i + u) k_j + (q_i + v) r_d) / sqrt(Dh) + a_d - s d

in each head (Dai et al. 2019, section 3.3, and what other encodings add). All
terms but that of query and key may be absent. This is the one list of them: a
new term is a field of `DistanceTerms`, which `attention` adds to the scores of
a segment and `kernels.xla_ring` to those of a ring. The fused kernels take
those that `DistanceTerms.fits_kernels` says.

Shapes: B lanes, T queries, K = M + T keys, H heads, Dh head width.
"""

from typing import NamedTuple, Self

import jax

from transformer_xl import shapes


class DistanceTerms(NamedTuple):
  """Factors of the score's terms that depend on the distance, and biases.

  Attributes:
    keys: r, of the distances K-1 to 0. A ring has them in a form of its own.
    biases: u and v, which are added to the queries of the term with keys and of
      that with distances.
    slopes: s, how much a score falls for a distance of 1. They are constants:
      the kernels compute no gradient for them, so nothing does.
    added: a, for each head and the distances K-1 to 0.
  """

  keys: shapes.PositionKeys | None = None
  biases: shapes.BiasPair | None = None
  slopes: shapes.Slopes | None = None
  added: shapes.DistanceScores | None = None

  @property
  def fits_kernels(self) -> bool:
    """Whether the fused kernels compute all the terms that are here."""
    return self.added is None

  def for_queries(self, dtype: jax.typing.DTypeLike) -> Self:
    """The biases in the type of the queries, and the slopes as constants."""
    biases = self.biases
    if biases is not None:
      biases = (biases[0].astype(dtype), biases[1].astype(dtype))
    return self._replace(
      biases=biases, slopes=jax.lax.stop_gradient(self.slopes)
    )


class ScoreFactors(NamedTuple):
  """Factors of one layer's attention scores.

  Attributes:
    query: queries, as `Encoding.placed` returns them.
    key: keys of memory and segment, oldest first, as `Encoding.placed` returns
      them.
    reach: the largest distance that each query may see.
    distance: terms that depend on the distance.
  """

  query: shapes.Queries
  key: shapes.Keys
  reach: shapes.Reach
  distance: DistanceTerms = DistanceTerms()
