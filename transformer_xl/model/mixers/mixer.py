"""The interface of a mixer: all that the rest of the project knows of one.

A layer is a block around a mixer (`block.py`). The mixer is what lets a token
see the tokens before it: attention to hidden states of earlier segments, a
recurrent cell, or whatever comes next. It owns what its layer remembers, as a
value: a segment takes the layer's state and returns the next one.

A mixer is one file with a class that registers itself, in this folder or in an
extension:

    @registry.mixers.register("name")
    class Name(mixer.Mixer):
      ...

Its name is then an entry of `model.layers`. It needs `empty_state`, `__call__`
and `flops`, and `has_limit` or `remembered_tokens` where its state is not made
of `mem_len` tokens. If it can read faster while its parameters do not change,
it names a `Streaming` form; without one, evaluation and generation use the
state of training.

Shapes: B lanes, T tokens of a segment, K keys, D model width.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import shapes
from transformer_xl.config import fields
from transformer_xl.config import schema
from transformer_xl.model import parameters
from transformer_xl.model import scores
from transformer_xl.model import visibility

# What one layer remembers: a pytree of arrays with lanes first, [B, ...], and
# of scalars. In a network, the turns of the pattern are stacked in front:
# [N / P, B, ...]. If its class has them, these are used: `num_positions`, if
# the layer attends to positions in its state; `repeat_lane`, for several
# samples of one prompt; and `partition_specs`, if a mesh splits more than the
# lanes.
LayerState = shapes.PyTree
Norm = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Settings:
  """How a network reads: what is chosen for a run and not learned.

  Attributes:
    clamp_len: distances from this one on share one encoding; 0 for no limit.
    same_length: every query sees the same number of keys.
    temperature: divides the logits.
    returns_losses: mixers return the losses that train their own parameters,
      and layers the outputs that auxiliary predictions read.
    trains_memory: gradients pass into the segments before.
    inspects: mixers return what attention is computed from.
    mem_len: length of a layer's memory in tokens, for streaming forms alone;
      other states have it in their shapes.
  """

  clamp_len: int = 0
  same_length: bool = False
  temperature: float = 1.0
  returns_losses: bool = False
  trains_memory: bool = False
  inspects: bool = False
  mem_len: int = 0


class Reading(NamedTuple):
  """The lengths that the work of a layer for a token depends on.

  Attributes:
    segment_len: tokens of a segment, T.
    mem_len: length of the layer's memory in tokens, M.
    context_len: tokens that are read again before every segment.
    same_length: every query sees the same number of keys.
    step_len: tokens that are read at a time; 0 for a segment.
  """

  segment_len: int
  mem_len: int
  context_len: int = 0
  same_length: bool = False
  step_len: int = 0

  def visible_keys(
    self, config: schema.ModelConfig
  ) -> jt.Int[np.ndarray, "tokens"]:
    """How many keys attention shows to each token once the memory is full.

    A token sees memory, context, the tokens before it in its step, and itself;
    `visibility.visible_distance` has the window. Without memory a step sees its
    whole segment.
    """
    num_tokens = self.segment_len
    if self.mem_len and self.step_len:
      num_tokens = self.step_len
    keys = self.mem_len + self.context_len + np.arange(1, num_tokens + 1)
    if visibility.has_window(self.mem_len, same_length=self.same_length):
      has_one_more = config.same_length_window == "mem_len_plus_one"
      keys = np.minimum(keys, self.mem_len + has_one_more)
    return keys


class Step(NamedTuple):
  """Where a step of a reader stands, which may be a part of a segment.

  Attributes:
    num_read: tokens that were read before.
    first_position: position of the first token in its segment.
    num_tokens: how many of the first tokens are read, at least one; those
      behind them are padding, and then nothing resets. None without padding.
  """

  num_read: jt.Int[shapes.Array, ""]
  first_position: jt.Int[shapes.Array, ""]
  num_tokens: jt.Int[shapes.Array, ""] | None


class Shared(NamedTuple):
  """Facts of a segment that all layers share while they read it.

  Attributes:
    resets: True where a token is the first of a document.
    forgets: lanes that forget everything before the segment; None if none does.
    length: tokens of the same document before the segment, as far as they were
      read.
    since_reset: from each token back to the last document start after the first
      token; larger than any distance where there is none.
    distances: encodings of the distances K-1 to 0 that layers project, for the
      largest K.
    biases: u and v of the paper, if all layers share them.
    dropout_lanes: numbers of the lanes in the batch; None without dropout.
    step: of a reader; None for a whole segment.
  """

  resets: shapes.Resets
  forgets: jt.Bool[shapes.Array, "B"] | None
  length: jt.Int[shapes.Array, "B"]
  since_reset: shapes.Reach
  distances: shapes.Positions | None = None
  biases: shapes.BiasPair | None = None
  dropout_lanes: shapes.Lanes | None = None
  step: Step | None = None

  @property
  def first_position(self) -> jt.Int[shapes.Array, ""] | None:
    """Position of the first token in its segment; None for the start."""
    return None if self.step is None else self.step.first_position

  @property
  def num_tokens(self) -> jt.Int[shapes.Array, ""] | None:
    """How many of the first tokens are read; None without padding."""
    return None if self.step is None else self.step.num_tokens

  def num_counted(self, segment_len: int) -> int | jt.Int[shapes.Array, ""]:
    """How many tokens of the segment are not padding."""
    return segment_len if self.num_tokens is None else self.num_tokens

  def counts(self, segment_len: int) -> jt.Bool[shapes.Array, "T"]:
    """Which tokens of the segment are not padding."""
    return jnp.arange(segment_len) < self.num_counted(segment_len)

  def newest(self, held: jax.Array, num_rows: int) -> jax.Array:
    """The last rows that are not padding, oldest first.

    Args:
      held: rows of `num_rows` older tokens and of the segment,
        [B, num_rows + T, ...].
      num_rows: how many rows to remember.
    """
    if self.num_tokens is None:
      return held[:, held.shape[1] - num_rows :]
    return jax.lax.dynamic_slice_in_dim(held, self.num_tokens, num_rows, axis=1)


class Kept(NamedTuple):
  """Results of a mixer besides its output.

  Attributes:
    state: what the layer remembers after the segment.
    loss: a loss of each token that trains the mixer's own parameters, if it has
      one.
    inspected: what attention was computed from, if the settings ask for it.
    output: the output of the whole layer, if training predicts from it; no
      mixer sets it.
  """

  state: LayerState
  loss: jt.Float[shapes.Array, "B T"] | None = None
  inspected: scores.ScoreFactors | None = None
  output: shapes.Hidden | None = None

  def of_rows(self, start: int, stop: int) -> "Kept":
    """The losses and outputs of some rows, of layers that are stacked."""
    loss = None if self.loss is None else self.loss[:, :, start:stop]
    output = None if self.output is None else self.output[:, :, start:stop]
    return self._replace(loss=loss, output=output)


class Streaming(Protocol):
  """Another form of a mixer, for reading with fixed parameters.

  The parameters of a layer are prepared once. Then `form`, a `Mixer` in the
  place of the other, reads with a state of its own.

  Attributes:
    form: the class of that mixer.
  """

  form: "ClassVar[type[Mixer]]"

  @staticmethod
  def prepare(
    config: schema.ModelConfig,
    settings: Settings,
    layer: shapes.PyTree,
    *,
    name: str,
    biases: shapes.BiasPair | None,
    step_len: int,
  ) -> shapes.PyTree:
    """The layer's parameters, and arrays that are computed from them alone."""

  @staticmethod
  def start(
    config: schema.ModelConfig,
    parameters: shapes.PyTree,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> LayerState:
    """The layer's state before the first token."""

  @staticmethod
  def for_tokens(
    parameters: shapes.PyTree, state: LayerState, *, mem_len: int
  ) -> tuple[shapes.PyTree, LayerState]:
    """The parameters and the state to continue with single tokens."""


class Mixer(nn.Module):
  """One way of seeing the tokens before; subclasses define the rest.

  Attributes:
    config: of the model.
    settings: how the network reads.
    registered_name: the name in `model.layers`.
    Fields: fields of its own, which are `config.model.NAME.*`; None for none.
    attends: settings of attention and encodings concern it.
    takes_limit: its memory may be shorter than the model's, as in NAME:128.
    attends_zeros: it can attend to zeros with `memory_start="zeros"`.
    writes_segments: results depend on where a segment starts.
    keys_are_tokens: each key that is attended to is one token.
    has_gradient_to_memory: gradients pass through all that is remembered, where
      training lets them.
    has_limit: there is a number of tokens that is remembered at most.
    sure_reach: how many tokens later a token still has to show in the outputs,
      for the conformance kit; None if it is for as long as memory reaches. A
      mixer that forgets as it likes has 0.
    streaming: another form of the mixer, which reads faster with fixed
      parameters; None if there is none.
  """

  config: schema.ModelConfig
  settings: Settings

  registered_name: ClassVar[str] = ""
  Fields: ClassVar[type[fields.Group] | None] = None
  attends: ClassVar[bool] = False
  takes_limit: ClassVar[bool] = False
  attends_zeros: ClassVar[bool] = True
  writes_segments: ClassVar[bool] = False
  keys_are_tokens: ClassVar[bool] = True
  has_gradient_to_memory: ClassVar[bool] = True
  has_limit: ClassVar[bool] = True
  sure_reach: ClassVar[int | None] = None
  streaming: ClassVar[type[Streaming] | None] = None

  @staticmethod
  def check(config: schema.ModelConfig) -> None:
    """Raises a UserError for a model that the mixer cannot serve."""
    del config

  @staticmethod
  def trial(num_tokens: int) -> tuple[int, Mapping[str, object]]:
    """How the conformance kit builds a layer that remembers `num_tokens`.

    Returns:
      The `mem_len`, and values of the mixer's own fields, which should be so
      small that a text of a dozen tokens shows everything.
    """
    return num_tokens, {}

  @staticmethod
  def empty_state(
    config: schema.ModelConfig,
    *,
    batch_size: int,
    mem_len: int,
    step_len: int,
  ) -> LayerState:
    """The state of one layer before the first token.

    Args:
      config: of the model.
      batch_size: B.
      mem_len: length of the memory in tokens; 0 remembers nothing from segment
        to segment.
      step_len: tokens that are read at a time. States may depend on it, for
        mixers that take several tokens together.
    """
    raise NotImplementedError

  def __call__(
    self,
    hidden: shapes.Hidden,
    state: LayerState,
    shared: Shared,
    norm: Norm,
  ) -> tuple[shapes.Hidden, Kept]:
    """Reads one segment of all lanes.

    Args:
      hidden: the layer's input.
      state: what the layer remembers.
      shared: what all layers share.
      norm: normalises rows before they are projected; the identity unless
        `config.pre_norm`. Attention remembers what is not normalised yet.

    Returns:
      The term that is added to the residual stream, and the other results.
    """
    raise NotImplementedError

  @staticmethod
  def with_output(
    state: LayerState, output: shapes.Hidden, shared: Shared
  ) -> LayerState:
    """The state of a mixer that remembers what its layer made of a segment.

    Args:
      state: what `__call__` returned.
      output: of the whole layer, behind the feed-forward part.
      shared: what all layers share.
    """
    del output, shared
    return state

  @classmethod
  def remembered_tokens(
    cls, config: schema.ModelConfig, mem_len: int
  ) -> int | None:
    """How many tokens before a segment the layer's state is made of.

    The result is None if there is no limit. By default it is `mem_len`, and
    without `has_limit` there is none if that is above 0.
    """
    del config
    return mem_len if cls.has_limit or not mem_len else None

  @staticmethod
  def flops(config: schema.ModelConfig, reading: Reading) -> float:
    """Useful operations of one layer's mixer for a token.

    A multiplication and an addition count as two. Keys that a token does not
    see do not count, nor does work that is done again for the same token.
    """
    raise NotImplementedError

  # Wrapped by Flax, these methods would add their names to those of all
  # operations in them, which profiles show.
  @nn.nowrap
  def reach(
    self, shared: Shared, visible: jt.Int[shapes.Array, "B"], mem_len: int
  ) -> shapes.Reach:
    """The largest distance that each query may attend to.

    Args:
      shared: what all layers share.
      visible: how many of the newest keys before the segment each lane sees.
      mem_len: keys before the segment.
    """
    return visibility.visible_distance(
      visible,
      shared.since_reset,
      mem_len=mem_len,
      same_length=self.settings.same_length,
      window=self.config.same_length_window,
    )

  @nn.nowrap
  def matrix(
    self,
    name: str,
    shape: tuple[int, ...],
    *,
    split: str = "whole",
    dropout_lanes: shapes.Lanes | None = None,
  ) -> jax.Array:
    """A parameter drawn from N(0, init_std), in the compute type.

    Args:
      name: of the parameter.
      shape: [inputs, outputs].
      split: how a mesh splits it, a word of `mesh.SPLITS`.
      dropout_lanes: those of `Shared` if weight dropout may drop its numbers.
    """
    return parameters.matrix(
      self, name, shape, split=split, dropout_lanes=dropout_lanes
    )

  @nn.nowrap
  def vector(self, name: str, size: int, *, split: str = "whole") -> jax.Array:
    """A parameter [size] of zeros, such as a bias, in the compute type."""
    return parameters.vector(self, name, size, split=split)


def zeros_if_absent(array: jax.Array, size: int) -> jax.Array:
  """An array of a state, [B, size, ...], as zeros if nothing is carried on.

  With a `mem_len` of 0 the second axis of such an array has length 0.
  """
  missing = size - array.shape[1]
  return jnp.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])


def identity(rows: jax.Array) -> jax.Array:
  """The norm of layers that normalise their outputs."""
  return rows
