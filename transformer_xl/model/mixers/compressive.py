"""Attention with a compressed memory (Rae et al. 2020, section 3).

A layer remembers its inputs for the last M tokens, as Transformer-XL does.
Every c states that leave this memory become one slot of a compressed memory of
C slots, which is attended to like the states. The functions, the loss that
trains the convolution and what is visible: docs/specification.md, section 7.

Segments whose length is a multiple of c drop whole groups of c states. With
steps of other lengths, as in generation, up to c - 1 states that have left
memory wait there until they can be compressed together.

Shapes: B lanes, T tokens, M memory length, C compressed slots, c states in each
of them, S = T / c slots that a segment adds, D model width, H heads, Dh head
width.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import fields
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import norm as norm_lib
from transformer_xl.model import parameters
from transformer_xl.model import visibility
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import attention
from transformer_xl.model.mixers import mixer


class Memory(NamedTuple):
  """The state of one layer: slots, then its inputs.

  Attributes:
    slots: compressed inputs, newest last.
    waiting: room for inputs that have left memory and wait for others to be
      compressed with, right-aligned; none if steps have whole groups of c
      tokens.
    hiddens: inputs of the last M tokens, newest last.
    num_waiting: how many wait.
  """

  slots: jt.Float[shapes.Array, "B C D"]
  waiting: jt.Float[shapes.Array, "B W D"]
  hiddens: shapes.LayerMemory
  num_waiting: jt.Int[shapes.Array, ""]

  @property
  def num_positions(self) -> int:
    """The number of slots and of inputs that are held, C + W + M."""
    arrays = (self.slots, self.waiting, self.hiddens)
    return sum(array.shape[-2] for array in arrays)


@registry.mixers.register("compressive")
class Compressive(mixer.Mixer):
  """Attention to compressed slots, memory and segment."""

  class Fields(fields.Group):
    """The compressed memory of `compressive` layers (docs/memory.md)."""

    function: str = fields.field(
      "conv", ("mean", "max", "conv"), transfer="same_shapes"
    )
    """What makes a slot of the states that leave memory: their mean, their
    largest channels or a convolution."""
    rate: int = fields.field(4, "at least 1", transfer="same_shapes")
    """Number of states in one slot."""
    slots: int = fields.field(128, "at least 1", transfer="same_shapes")
    """Length of the compressed memory in slots; it may differ in evaluation."""

  attends = True
  attends_zeros = False
  keys_are_tokens = False  # States are compressed at the ends of segments.

  @staticmethod
  def trial(num_tokens: int) -> tuple[int, Mapping[str, object]]:
    """All tokens but those of three in slots, of as many tokens each."""
    rate = 3
    rows = min(num_tokens, rate)
    slots = max(1, math.ceil((num_tokens - rows) / rate))
    return rows, {"rate": rate, "slots": slots}

  @staticmethod
  def check(config: schema.ModelConfig) -> None:
    """Refuses shared and normalised heads, which the loss does not compute."""
    shares_heads = config.num_kv_heads != config.num_heads
    if shares_heads or config.qk_norm:
      raise errors.UserError(
        "compressive layers compare attention with plain heads of their own: "
        f"set --config.model.num_kv_heads={config.num_heads} and "
        "--config.model.qk_norm=False."
      )

  @staticmethod
  def empty_state(
    config: schema.ModelConfig,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> Memory:
    """A memory without tokens, and without slots if `mem_len` is 0."""
    compressive = config.own(Compressive.Fields)
    room = compressive.rate - 1 if step_len % compressive.rate else 0

    def zeros(length: int) -> jax.Array:
      shape = (batch_size, length if mem_len else 0, config.model_dim)
      return jnp.zeros(shape, config.dtype)

    return Memory(
      slots=zeros(compressive.slots),
      waiting=zeros(room),
      hiddens=zeros(mem_len),
      num_waiting=jnp.zeros((), jnp.int32),
    )

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: Memory,
    shared: mixer.Shared,
    norm: mixer.Norm,
  ) -> tuple[shapes.Hidden, mixer.Kept]:
    """Attends from the segment, and compresses what leaves memory."""
    config = self.config
    compressive = config.own(Compressive.Fields)
    rate = compressive.rate
    segment_len = hidden.shape[1]
    num_slots = state.slots.shape[1]
    room = state.waiting.shape[1]
    mem_len = state.hiddens.shape[1]

    num_free = room - state.num_waiting
    past = _joined(state, num_free)
    num_held = mem_len + state.num_waiting
    visible_slots = jnp.maximum(shared.length - num_held, 0) // rate
    num_visible = jnp.minimum(shared.length, num_held)
    num_visible += jnp.minimum(visible_slots, num_slots)
    reach = self.reach(shared, num_visible, num_slots + mem_len)
    output, inspected = attention.attend(
      self,
      norm(past),
      norm(hidden),
      reach=reach,
      shared=shared,
    )

    # The oldest inputs leave in groups of c, and each group becomes a slot.
    count = shared.num_counted(segment_len)
    held = jnp.concatenate([state.waiting, state.hiddens, hidden], axis=1)
    num_leaving = (state.num_waiting + count) // rate
    most_leaving = (room + segment_len) // rate
    leaving = jax.lax.dynamic_slice_in_dim(
      jnp.pad(held, ((0, 0), (0, room), (0, 0))),
      num_free,
      most_leaving * rate,
      axis=1,
    )
    compress = _Compression(config, name="compression")
    new_slots = compress(leaving)
    slots = jax.lax.dynamic_slice_in_dim(
      jnp.concatenate([state.slots, new_slots], axis=1),
      num_leaving,
      num_slots,
      axis=1,
    )
    held = jax.lax.dynamic_slice_in_dim(held, count, room + mem_len, axis=1)
    num_waiting = state.num_waiting + count - num_leaving * rate
    num_waiting = jnp.minimum(num_waiting, room)

    loss = None
    if self.settings.returns_losses and compressive.function == "conv":
      length = visibility.next_length(shared.length, shared.since_reset, count)
      num_after = jnp.maximum(length - mem_len - num_waiting, 0) // rate
      age = num_leaving - 1 - jnp.arange(most_leaving)
      is_visible = age[None] < jnp.minimum(num_after, num_slots)[:, None]
      is_visible = is_visible & (age >= 0)[None]
      fixed = jax.lax.stop_gradient(leaving)
      loss = self._reconstruction(
        hidden, fixed, compress(fixed), is_visible, norm
      )
    return output, mixer.Kept(
      Memory(slots, held[:, :room], held[:, room:], num_waiting),
      loss=loss,
      inspected=inspected,
    )

  def _reconstruction(
    self,
    hidden: shapes.Hidden,
    leaving: jt.Float[shapes.Array, "B L D"],
    slots: jt.Float[shapes.Array, "B S D"],
    is_visible: jt.Bool[shapes.Array, "B S"],
    norm: mixer.Norm,
  ) -> shapes.Losses:
    """The error of attention by compression, for each token of the segment.

    It is the squared difference between attention to the inputs that leave
    and to their slots, by content alone, as a mean over heads and channels.
    Gradients reach the slots only. Slots that are not visible afterwards do not
    count.
    """
    config = self.config
    rate = config.own(Compressive.Fields).rate
    # Attention has created these parameters in this module.
    names = ("query", "key", "value")
    kernels: dict[str, jax.Array] = {
      name: self.get_variable("params", name) for name in names
    }
    of_norm = norm.variables["params"] if isinstance(norm, nn.Module) else {}
    fixed = jax.lax.stop_gradient((kernels, of_norm, hidden, leaving))

    def loss_of(
      fixed: shapes.PyTree, slots: jt.Float[shapes.Array, "B S D"]
    ) -> shapes.Losses:
      """The squared difference for each token, as a mean."""
      kernels, of_norm, hidden, leaving = fixed

      def project(name: str, rows: jax.Array) -> jax.Array:
        if of_norm:
          plain = norm_lib.Norm(config, parent=None)
          rows = jnp.asarray(plain.apply({"params": of_norm}, rows))
        heads = rows @ kernels[name].astype(rows.dtype)
        shape = (*rows.shape[:2], config.num_heads, config.head_dim)
        return heads.reshape(shape)

      def attend(rows: jax.Array, mask: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(
          project("query", hidden),
          project("key", rows),
          project("value", rows),
          mask=mask[:, None, None],
        )

      is_visible_state = jnp.repeat(is_visible, rate, axis=1)
      difference = attend(leaving, is_visible_state) - attend(slots, is_visible)
      return jnp.mean(jnp.square(difference.astype(jnp.float32)), axis=(2, 3))

    # Computed again for the gradient: the scores are large.
    losses = jax.checkpoint(loss_of)(fixed, slots)
    return jnp.where(is_visible.any(axis=1)[:, None], losses, 0.0)

  @staticmethod
  def remembered_tokens(config: schema.ModelConfig, mem_len: int) -> int | None:
    """The tokens of memory, and c tokens in each slot."""
    compressive = config.own(Compressive.Fields)
    slots = compressive.slots if mem_len else 0
    return mem_len + slots * compressive.rate

  @staticmethod
  def flops(config: schema.ModelConfig, reading: mixer.Reading) -> float:
    """Operations of attention to memory and slots, and of a convolution.

    With steps of T tokens the number of states that wait is a multiple of the
    greatest common divisor of T and c, below c; all are equally frequent.
    """
    if not reading.mem_len:  # Nothing is compressed that a token would see.
      keys = reading.visible_keys(config)
      return attention.attention_flops(config, num_keys=keys.mean())
    compressive = config.own(Compressive.Fields)
    rate = compressive.rate
    num_held = reading.mem_len + compressive.slots
    keys = reading._replace(mem_len=num_held).visible_keys(config)
    if not reading.same_length:
      step_len = reading.step_len or reading.segment_len + reading.context_len
      keys = keys + (rate - math.gcd(rate, step_len)) / 2
    result = attention.attention_flops(config, num_keys=keys.mean())
    if compressive.function == "conv":
      result += 2 * config.model_dim**2
    return result


def _joined(
  memory: Memory, num_free: jt.Int[shapes.Array, ""]
) -> jt.Float[shapes.Array, "B K D"]:
  """The slots, and directly after them the inputs that are held.

  So distances count both alike. The `num_free` places for waiting inputs that
  are not used come first: of the K = C + W + M rows,
  [slots C | free | waiting w | M] become [free | slots C | waiting w | M].
  """
  rows = jnp.concatenate([memory.slots, memory.waiting, memory.hiddens], axis=1)
  if not memory.waiting.shape[1]:
    return rows
  is_held = jnp.arange(rows.shape[1]) >= memory.slots.shape[1] + num_free
  moved = jnp.roll(rows, num_free, axis=1)
  return jnp.where(is_held[None, :, None], rows, moved)


class _Compression(nn.Module):
  """Makes one slot of each c neighbouring states, oldest first."""

  config: schema.ModelConfig

  @nn.compact
  def __call__(
    self, states: jt.Float[shapes.Array, "B L D"]
  ) -> jt.Float[shapes.Array, "B S D"]:
    """The states' mean, their largest channels, or a convolution."""
    config = self.config
    compressive = config.own(Compressive.Fields)
    rate = compressive.rate
    lanes, length, width = states.shape
    groups = states.reshape(lanes, length // rate, rate, width)
    if compressive.function == "mean":
      return jnp.mean(groups, axis=2)
    if compressive.function == "max":
      return jnp.max(groups, axis=2)
    # As convolutions do, with a stride of c.
    joined = groups.reshape(lanes, length // rate, rate * width)
    shape = (rate * width, width)
    kernel = parameters.matrix(self, "kernel", shape, split="inputs")
    slots = dense.times(joined, kernel)
    return slots + parameters.vector(self, "bias", width)[None, None]
