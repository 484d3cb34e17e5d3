"""Quasi-recurrent layers, one of the networks that the paper compares with.

Gates are computed from two neighbouring tokens, and cells from the gates by an
associative scan (Bradbury et al. 2017; docs/specification.md, section 25).

Shapes: B lanes, T tokens, D model width.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import parameters
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import mixer
from transformer_xl.model.mixers import recurrent


@registry.mixers.register("qrnn")
class QRNN(recurrent.Recurrent):
  """A QRNN with fo-pooling; its vectors are the cell and the last input."""

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: recurrent.Carry,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Reads all tokens of the segment at once."""
    config = self.config
    width = config.model_dim
    # [B, 1, D] each.
    cell, last_input = jnp.split(self.starting_vectors(state), 2, axis=1)
    is_first = shared.resets[:, :, None]

    # Gates of this token and the one before, which a reset hides.
    rows = norm(hidden)
    last_input = last_input.astype(rows.dtype)
    before = jnp.concatenate([last_input, rows[:, :-1]], axis=1)
    before = jnp.where(is_first, 0, before)
    pairs = jnp.concatenate([before, rows], axis=2)
    init = parameters.with_split(nn.initializers.lecun_normal(), "inputs")
    kernel = self.param("kernel", init, (2 * width, 3 * width), jnp.float32)
    drop = dropout_lib.Dropout(config.weight_dropout_rate)
    kernel = drop(
      kernel.astype(config.dtype), dropout_lanes=shared.dropout_lanes
    )
    gates = dense.times(pairs, kernel)
    gates = gates + self.vector("bias", 3 * width)[None, None]
    new, forget, output = jnp.split(gates.astype(jnp.float32), 3, axis=2)

    # c_t = f_t c_(t-1) + (1 - f_t) z_t; after a reset c_(t-1) counts as 0.
    forget = nn.sigmoid(forget)
    factors = jnp.where(is_first, 0.0, forget)
    terms = (1 - forget) * jnp.tanh(new)
    kept, added = jax.lax.associative_scan(_compose, (factors, terms), axis=1)
    cells = kept * cell + added
    outputs = (nn.sigmoid(output) * cells).astype(hidden.dtype)

    vectors = jnp.stack([cells, rows.astype(jnp.float32)], axis=2)
    carry = recurrent.last_carry(vectors, state, shared)
    dropout = dropout_lib.of_states(config)
    mixed = dropout(outputs, dropout_lanes=shared.dropout_lanes)
    return mixed, mixer.Kept(carry)

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """Operations of the three gates' matrix, from two tokens."""
    del reading
    return 2.0 * 6 * config.model_dim**2


def _compose(
  first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
  """The map c -> k c + a that does the first and then the second."""
  kept, added = first
  kept_after, added_after = second
  return kept * kept_after, added * kept_after + added_after
