"""What networks of every kind have: adaptive input, dropout, adaptive softmax.

A network is a function of tokens and of what it remembers; `kinds` lists them.
"""

import functools
from typing import Any
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_embedding
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import layers


class Activity(NamedTuple):
  """Mean squares that training may add to the loss of each token.

  Of the states that enter the softmax, activation regularisation penalises both
  (Merity et al. 2017, section 4.6).
  """

  size: shapes.Losses
  change: shapes.Losses  # From the token before; 0 where a text begins.
  # What attention loses by a convolution: `compression.reconstruction`.
  reconstruction: shapes.Losses | None


class Network(nn.Module):
  """A language model; a kind adds its layers, and `_read`."""

  config: schema.ModelConfig
  clamp_len: int  # Larger distances share its encoding; 0 for no limit.
  same_length: bool  # All queries see the same number of keys.
  temperature: float = 1.0  # Divides the logits.
  gradient_through_memory: bool = False  # Into the segments before.

  def setup(self) -> None:
    """Names the submodules that all kinds have."""
    config = self.config
    self.embedding = adaptive_embedding.AdaptiveEmbedding(config)
    self.softmax = adaptive_softmax.AdaptiveSoftmax(config)
    dropout = functools.partial(layers.state_dropout, config)
    self.input_dropout = dropout(config.input_dropout_rate)
    self.output_dropout = dropout(config.output_dropout_rate)
    self.word_dropout = dropout_lib.Dropout(config.embedding_dropout_rate)

  def __call__(
    self,
    inputs: shapes.Tokens,
    memory: Any,
    resets: shapes.Resets | None = None,
    *,
    dropout_lanes: shapes.Lanes | None = None,
  ) -> tuple[shapes.Hidden, Any]:
    """The last layer's states, and the memory for the next segment.

    The first memory is `memory.empty`. `resets` is True where a token is the
    first of a document: from there on nothing before it is visible, here and in
    later segments. `dropout_lanes` are the numbers of the lanes in the batch,
    of which these may be a part: what a lane drops follows from its number and
    from a "dropout" key. Without them there is no dropout.
    """
    hidden, memory, *_ = self._read(inputs, memory, resets, dropout_lanes)
    return self.output_dropout(hidden, dropout_lanes=dropout_lanes), memory

  def words(
    self, inputs: shapes.Tokens, *, dropout_lanes: shapes.Lanes | None
  ) -> shapes.Hidden:
    """The vectors of the tokens, before dropout of the input."""
    config = self.config
    hidden = self.embedding(inputs)
    if config.embedding_dropout_rate and dropout_lanes is not None:
      words = jnp.ones((config.vocab_size, 1), hidden.dtype)
      words = self.word_dropout(words, dropout_lanes=dropout_lanes)
      hidden = hidden * words[inputs]
    return hidden

  def _read(
    self,
    inputs: Any,
    memory: Any,
    resets: Any,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[Any, ...]:
    """`__call__` without the last dropout, and what else the kind gives."""
    raise NotImplementedError

  def _reconstruction(self, before: Any, after: Any, *read: Any) -> Any:
    """`Activity.reconstruction`, of the memories and what else `_read` gave."""
    return None

  def nll(
    self,
    inputs: shapes.Tokens,
    targets: shapes.Targets,
    *rest: Any,
    **more: Any,
  ) -> tuple[shapes.Losses, Any]:
    """Negative log-probability of each target, in nats and token order.

    The U targets are those of the last inputs. The other arguments, and the
    memory that it returns, are those of `__call__`.
    """
    hidden, memory = self(inputs, *rest, **more)
    hidden = hidden[:, -targets.shape[1] :]
    return adaptive_softmax.nll(hidden, targets, self.head()), memory

  def nll_and_activity(
    self,
    inputs: shapes.Tokens,
    targets: shapes.Targets,
    memory: Any,
    resets: shapes.Resets,
    *,
    dropout_lanes: shapes.Lanes | None,
  ) -> tuple[shapes.Losses, Activity, Any]:
    """`nll`, and what training may add to it, of states before dropout."""
    before = memory
    hidden, memory, *read = self._read(inputs, memory, resets, dropout_lanes)
    reconstruction = self._reconstruction(before, memory, *read)
    output = self.output_dropout(hidden, dropout_lanes=dropout_lanes)
    hidden, output, resets = (
      array[:, -targets.shape[1] :] for array in (hidden, output, resets)
    )
    change = _mean_square(hidden[:, 1:] - hidden[:, :-1])
    change = jnp.where(resets[:, 1:], 0.0, change)
    activity = Activity(
      _mean_square(hidden),
      jnp.pad(change, ((0, 0), (1, 0))),
      reconstruction,
    )
    return adaptive_softmax.nll(output, targets, self.head()), activity, memory

  def log_probs(
    self, inputs: shapes.Tokens, memory: Any, resets: Any = None
  ) -> tuple[jt.Float[shapes.Array, "B T V"], Any]:
    """Log-probabilities of every next token."""
    hidden, memory = self(inputs, memory, resets)
    return adaptive_softmax.log_probs(hidden, self.head()), memory

  def head(self) -> adaptive_softmax.Projection:
    """The weights of the softmax."""
    weights = self.softmax(self.embedding.tables, self.embedding.projections)
    return weights._replace(
      temperature=adaptive_softmax.Temperature(self.temperature)
    )


def _mean_square(states: jax.Array) -> jax.Array:
  """[B, T, D] to [B, T], in float32."""
  return jnp.mean(jnp.square(states.astype(jnp.float32)), axis=-1)
