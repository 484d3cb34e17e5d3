"""The four terms of a score by distance (paper, appendix D, figure 7).

The paper averages the terms over all target words and finds that (b), query
and distance, makes most of the fall of a score with distance, that (a), query
and key, is essentially uniform, and that (d), bias v and distance, is flatter
than (b) and leans to longer distances. `findings` says what of this holds for
the model at hand.

Shapes: N layers, H heads, T queries, K = M + T keys, R = M + 1 distances.
"""

from typing import NamedTuple

import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import shapes
from transformer_xl.workdir import metrics_log

LETTERS = ("a", "b", "c", "d")
NAMES = (
  "(a) query and key",
  "(b) query and distance",
  "(c) bias u and key",
  "(d) bias v and distance",
)
# A term is essentially uniform if its spread is at most this share of that of
# the score. It then has at most 1 % of the variance.
UNIFORM = 0.1
# A term dominates if it makes more than this share of the score's variance.
DOMINANT = 0.5


class Sums(NamedTuple):
  """Terms of some queries, added up by the distance of the key."""

  terms: jt.Float[shapes.Array, "4 N H R"]  # Of the keys that are visible.
  counts: jt.Int[shapes.Array, "N R"]  # Queries that see such a key.


def at_distances(
  values: jt.Shaped[shapes.Array, "*heads T K"],
) -> jt.Shaped[shapes.Array, "*heads T M+1"]:
  """What each query has for the keys at its distances 0 to M."""
  segment_len, num_keys = values.shape[-2:]
  mem_len = num_keys - segment_len
  query = jnp.arange(segment_len)[:, None]
  distance = jnp.arange(mem_len + 1)[None]
  key = mem_len + query - distance
  key = jnp.broadcast_to(key, (*values.shape[:-2], *key.shape))
  return jnp.take_along_axis(values, key, axis=-1)


def add_up(
  terms: jt.Float[shapes.Array, "4 N H T K"],
  visible: jt.Bool[shapes.Array, "N 1 T K"],
) -> Sums:
  """Adds up the terms of all queries of a segment."""
  shown = jnp.where(visible[None], terms, 0.0)
  return Sums(
    terms=jnp.sum(at_distances(shown), axis=-2),
    counts=jnp.sum(at_distances(visible), axis=-2)[:, 0],
  )


def mean_terms(
  sums: list[Sums],
) -> jt.Float[np.ndarray, "4 N H R"]:
  """The mean over all queries; not a number at distances that none sees."""
  terms = np.sum([np.float64(part.terms) for part in sums], axis=0)
  counts = np.sum([part.counts for part in sums], axis=0)[:, None]
  return np.where(counts, terms / np.maximum(counts, 1), np.nan)


def seen_by_all(
  by_distance: jt.Float[np.ndarray, "4 N H R"],
) -> jt.Int[np.ndarray, "S"]:
  """The distances at which every head has seen a key."""
  return np.flatnonzero(np.isfinite(by_distance).all(axis=(0, 1, 2)))


def present(by_distance: jt.Float[np.ndarray, "4 N H R"]) -> list[int]:
  """The places of the terms that the encoding has; others are 0 everywhere."""
  return np.flatnonzero(np.nan_to_num(by_distance).any(axis=(1, 2, 3))).tolist()


def findings(
  by_distance: jt.Float[np.ndarray, "4 N H R"],
) -> metrics_log.Json:
  """What the terms say of the model: measures, and a sentence.

  The curve of a term is its mean over all heads and layers, at the distances
  that all heads see; the score's is the sum of these curves. Of a curve are
  measured

  - `range`: the highest less the lowest value,
  - `spread`: its standard deviation over the distances,
  - `share`: its covariance with the score's curve over the variance of that.
    The shares of all terms add up to 1, and a share below 0 is that of a term
    which works against the others,
  - `correlation`: with the score's curve; 0 for a constant,
  - `mean_distance`: the mean distance that a query would attend to if this
    curve alone were its scores, so that a constant has half of the largest.

  The score falls if its curve correlates negatively with the distance. A term
  dominates this fall with a share above a half. (a) is essentially uniform if
  its spread is at most a tenth of the score's. (d) is flatter than (b) if its
  spread is smaller, and leans to longer distances than (b) if its
  `mean_distance` is larger. With few queries all of this has noise, which looks
  like spread of (a).

  Args:
    by_distance: the result of `mean_terms`.

  Returns:
    `sentence`, `num_distances`, `falls`, and by the letter of each term that
    the encoding has, and for the score, the measures above.
  """
  distances = seen_by_all(by_distance)
  curves = by_distance[..., distances].mean(axis=(1, 2))
  score = curves.sum(axis=0)
  if len(distances) < 2 or not score.std():
    return {
      "sentence": "The score does not depend on the distance.",
      "num_distances": len(distances),
      "falls": False,
    }
  measures = {
    LETTERS[place]: _measures(curves[place], score, distances)
    for place in present(by_distance)
  }
  falls = _correlation(score, distances) < 0
  whole = _measures(score, score, distances)
  parts = [
    _of_trend(measures, falls=falls),
    _of_content(measures, whole["spread"]),
    _of_distance(measures),
  ]
  return {
    "sentence": "By distance, " + "; ".join(parts) + ".",
    "num_distances": len(distances),
    "falls": falls,
    **measures,
    "score": whole,
  }


Measures = dict[str, float]


def _measures(
  curve: jt.Float[np.ndarray, "S"],
  score: jt.Float[np.ndarray, "S"],
  distances: jt.Int[np.ndarray, "S"],
) -> Measures:
  """What `findings` says of a curve."""
  covariance = np.mean((curve - curve.mean()) * (score - score.mean()))
  weights = np.exp(curve - curve.max())
  return {
    "range": float(np.ptp(curve)),
    "spread": float(curve.std()),
    "share": float(covariance / score.var()),
    "correlation": _correlation(curve, score),
    "mean_distance": float(weights @ distances / weights.sum()),
  }


def _correlation(
  curve: jt.Float[np.ndarray, "S"], other: jt.Num[np.ndarray, "S"]
) -> float:
  deviations = curve - curve.mean()
  scale = curve.std() * other.std()
  return float(np.mean(deviations * other) / scale) if scale else 0.0


def _of_trend(measures: dict[str, Measures], *, falls: bool) -> str:
  """Which term dominates the fall of the score."""
  if not falls:
    return "the score does not fall"
  shares = {name: one["share"] for name, one in measures.items()}
  first = max(shares, key=lambda name: shares[name])
  if shares[first] <= DOMINANT:
    each = ", ".join(f"({name}) {share:.0%}" for name, share in shares.items())
    return f"no term dominates the fall of the score (of it, {each})"
  if first == "b":
    return f"(b) dominates the fall of the score ({shares['b']:.0%} of it)"
  of_b = f", (b) {shares['b']:.0%}" if "b" in shares else ""
  return (
    f"({first}) and not (b) dominates the fall of the score "
    f"(({first}) {shares[first]:.0%} of it{of_b})"
  )


def _of_content(measures: dict[str, Measures], of_score: float) -> str:
  """Whether (a) is uniform, which every encoding has."""
  spread = measures["a"]["spread"] if "a" in measures else 0.0
  word = "is" if spread <= UNIFORM * of_score else "is not"
  share = f"{spread / of_score:.0%}"
  return (
    f"(a) {word} essentially uniform (its spread is {share} of the score's)"
  )


def _of_distance(measures: dict[str, Measures]) -> str:
  """How (d) compares with (b)."""
  missing = [f"({name})" for name in "bd" if name not in measures]
  if missing:
    return f"the encoding has no {' and no '.join(missing)}"
  b = measures["b"]
  d = measures["d"]
  is_flatter = d["spread"] < b["spread"]
  leans_far = d["mean_distance"] > b["mean_distance"]
  word = "flatter" if is_flatter else "not flatter"
  joined = "and" if is_flatter == leans_far else "but"
  way = "longer" if leans_far else "no longer"
  return (
    f"(d) is {word} than (b) {joined} leans to {way} distances "
    f"({d['mean_distance']:.0f} against {b['mean_distance']:.0f} tokens)"
  )
