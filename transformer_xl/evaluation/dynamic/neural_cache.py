"""The neural cache: recent tokens, weighted by how similar their contexts are.

The last layer's hidden state h_i is stored with the token that followed it. At
position t the cache predicts each token w by

    p_cache(w) ~ sum over the last n pairs (h_i, x_{i+1}) of
                 exp(flatness * h_t . h_i) [w = x_{i+1}]

and the mixture is (1 - share) p_model + share p_cache (Grave, Joulin and
Usunier 2017, who call flatness theta and share lambda). While the cache is
empty, at the start of the text, the model predicts alone. Nothing is trained.

Shapes: B lanes, T tokens, D model width, n cached pairs, K = n + T.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes


class Cache(NamedTuple):
  """The last n pairs of each lane, newest last."""

  hiddens: jt.Float[shapes.Array, "B n D"]
  next_tokens: jt.Int[shapes.Array, "B n"]  # -1 for an empty slot.


class Mixture(NamedTuple):
  """Hyperparameters; traced, so a sweep over them compiles once."""

  flatness: jt.Float[shapes.Array, ""]
  share: jt.Float[shapes.Array, ""]


def empty(*, batch_size: int, size: int, model_dim: int) -> Cache:
  """An empty cache, as before the first token."""
  return Cache(
    jnp.zeros((batch_size, size, model_dim)),
    jnp.full((batch_size, size), -1, jnp.int32),
  )


def append(
  cache: Cache, hidden: shapes.Hidden, next_tokens: shapes.Tokens
) -> tuple[Cache, Cache]:
  """Adds a segment's pairs; targets outside the text are -1.

  Returns:
    All n + T pairs, which `losses` needs, and the last n of them.
  """
  new = Cache(hidden.astype(jnp.float32), next_tokens.astype(jnp.int32))
  pairs = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), cache, new)
  return pairs, jax.tree.map(lambda x: x[:, next_tokens.shape[1] :], pairs)


def similarity(
  hidden: shapes.Hidden, pairs: Cache
) -> jt.Float[shapes.Array, "B T K"]:
  """Dot products h_t . h_i of each position with each of K pairs."""
  return jnp.einsum("btd,bkd->btk", hidden.astype(jnp.float32), pairs.hiddens)


def losses(
  nll: shapes.Losses,
  targets: shapes.Tokens,
  pairs: Cache,
  similarities: jt.Float[shapes.Array, "B T K"],
  mixture: Mixture,
) -> shapes.Losses:
  """Negative log-probabilities of the targets under the mixture, in nats.

  `nll` are the losses of the model. The pairs are n of the past, then the T of
  this segment; each position uses the n before its own. `similarities` compare
  each position with all pairs.
  """
  segment_len = targets.shape[1]
  count = pairs.next_tokens.shape[1]
  later = jnp.arange(count)[None] - jnp.arange(segment_len)[:, None]  # [T, K]
  in_reach = (later >= 0) & (later < count - segment_len)
  is_seen = in_reach[None] & (pairs.next_tokens >= 0)[:, None]  # [B, T, K]
  is_target = is_seen & (pairs.next_tokens[:, None] == targets[..., None])
  logits = mixture.flatness * similarities
  log_targets = jax.nn.logsumexp(logits, axis=-1, where=is_target)
  log_total = jax.nn.logsumexp(logits, axis=-1, where=is_seen)
  log_cache = log_targets - log_total
  mixed = jnp.logaddexp(
    jnp.log1p(-mixture.share) - nll, jnp.log(mixture.share) + log_cache
  )
  return jnp.where(jnp.any(is_seen, axis=-1), -mixed, nll)
