"""The neural cache: recent words, weighed by how alike their contexts were.

The model's last hidden state h_i is kept with the word that followed it. At a
position t the cache predicts each word w by

    p_cache(w) ~ sum over the last n pairs (h_i, x_{i+1}) of
                 exp(flatness * h_t . h_i) [w = x_{i+1}]

and the mixture is (1 - share) p_model + share p_cache (Grave, Joulin and
Usunier 2017; theta and lambda there). While the cache is empty, at the start
of the text, the model predicts alone. Nothing is trained.

Shapes: B lanes, T tokens, D model width, n pairs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes


class Cache(NamedTuple):
  """The last n pairs of each lane, newest last."""

  hiddens: jt.Float[shapes.Array, "B n D"]
  words: jt.Int[shapes.Array, "B n"]  # What followed; -1 for no pair.


class Mixture(NamedTuple):
  """How the cache counts; numbers that do not shape anything."""

  flatness: jt.Float[shapes.Array, ""]
  share: jt.Float[shapes.Array, ""]


def empty(*, batch_size: int, size: int, model_dim: int) -> Cache:
  """The cache before the first token."""
  return Cache(
    jnp.zeros((batch_size, size, model_dim)),
    jnp.full((batch_size, size), -1, jnp.int32),
  )


def append(
  cache: Cache, hidden: shapes.Hidden, words: shapes.Tokens
) -> tuple[Cache, Cache]:
  """Adds a segment's pairs.

  Args:
    cache: of n pairs.
    hidden: the last layer's states.
    words: the target of each; -1 where it is not of the text.

  Returns:
    All n + T pairs, which `losses` looks at, and the last n of them.
  """
  everything = Cache(
    jnp.concatenate([cache.hiddens, hidden.astype(jnp.float32)], axis=1),
    jnp.concatenate([cache.words, words.astype(jnp.int32)], axis=1),
  )
  segment_len = words.shape[1]
  return everything, jax.tree.map(lambda x: x[:, segment_len:], everything)


def similarity(
  hidden: shapes.Hidden, pairs: Cache
) -> jt.Float[shapes.Array, "B T K"]:
  """h_t . h_i of each token with each of K pairs."""
  return jnp.einsum("btd,bkd->btk", hidden.astype(jnp.float32), pairs.hiddens)


def losses(
  nll: shapes.Losses,
  targets: shapes.Tokens,
  pairs: Cache,
  alike: jt.Float[shapes.Array, "B T K"],
  mixture: Mixture,
) -> shapes.Losses:
  """Negative log-probabilities of the targets under the mixture, in nats.

  Args:
    nll: those under the model.
    targets: ids.
    pairs: n of the past, then the T of this segment. A token sees the n before
      it, its own not among them.
    alike: `similarity` to the pairs.
    mixture: how the cache counts.
  """
  segment_len, count = targets.shape[1], pairs.words.shape[1]
  later = jnp.arange(count)[None] - jnp.arange(segment_len)[:, None]  # [T, K]
  in_reach = (later >= 0) & (later < count - segment_len)
  is_seen = in_reach[None] & (pairs.words >= 0)[:, None]  # [B, T, K]
  is_target = is_seen & (pairs.words[:, None] == targets[..., None])
  scores = mixture.flatness * alike
  log_cache = jax.nn.logsumexp(
    scores, axis=-1, where=is_target
  ) - jax.nn.logsumexp(scores, axis=-1, where=is_seen)
  mixed = jnp.logaddexp(
    jnp.log1p(-mixture.share) - nll, jnp.log(mixture.share) + log_cache
  )
  return jnp.where(jnp.any(is_seen, axis=-1), -mixed, nll)
