"""Readers of tokens with fixed parameters: evaluation, scoring, generation.

    reader = reader.Reader(config.model, mem_len=1600, segment_len=128,
                           clamp_len=1000, same_length=True)
    frozen = reader.freeze(params)
    state = reader.start(frozen, batch_size=1)
    log_probs, state = reader.step(frozen, state, tokens, resets)

`Reader` reads with the streaming forms of mixers: whole segments, then at most
one shorter step, then single tokens.
`NetworkReader` is the network itself, which reads whole segments alone. The
results are the same.

Shapes: B lanes, T tokens, U targets, V vocabulary.
"""

import abc
import dataclasses

import jax
import jaxtyping as jt

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import layers_reader
from transformer_xl.model import network
from transformer_xl.model import reader_state
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.model.mixers import mixer as mixer_lib

Frozen = reader_state.Frozen
State = reader_state.ReaderState


@dataclasses.dataclass(frozen=True)
class TokenReader(abc.ABC):
  """A reader of tokens, as evaluation uses it.

  The state and the prepared parameters of a reader are pytrees.

  Attributes:
    config: of the model.
    mem_len: length of the memory in tokens.
    segment_len: tokens of a full segment.
    clamp_len: distances from this one on share one encoding; 0 for no limit.
    same_length: all queries see the same number of keys.
    temperature: divides the logits.
  """

  config: schema.ModelConfig
  mem_len: int
  segment_len: int
  clamp_len: int
  same_length: bool
  temperature: float = 1.0

  def __post_init__(self) -> None:
    encodings.of(self.config).check_segment_len(self.config, self.segment_len)

  @abc.abstractmethod
  def freeze(self, params: shapes.PyTree) -> shapes.PyTree:
    """Computes everything that does not depend on the text."""

  @abc.abstractmethod
  def shardings(
    self, mesh: jax.sharding.Mesh, frozen: shapes.PyTree
  ) -> shapes.PyTree:
    """The shardings of what `freeze` returns."""

  @abc.abstractmethod
  def start(self, frozen: shapes.PyTree, *, batch_size: int) -> shapes.PyTree:
    """The state before the first token."""

  @abc.abstractmethod
  def read(
    self,
    frozen: shapes.PyTree,
    state: shapes.PyTree,
    tokens: shapes.Tokens,
    resets: shapes.Resets | None = None,
  ) -> tuple[shapes.Hidden, shapes.PyTree]:
    """The vectors that the softmax reads, and the next state."""

  @abc.abstractmethod
  def head(self, frozen: shapes.PyTree) -> adaptive_softmax.SoftmaxWeights:
    """The weights of the softmax, for the functions of `adaptive_softmax`."""

  def step(
    self,
    frozen: shapes.PyTree,
    state: shapes.PyTree,
    tokens: shapes.Tokens,
    resets: shapes.Resets | None = None,
  ) -> tuple[jt.Float[shapes.Array, "B T V"], shapes.PyTree]:
    """Log-probabilities of every next token, and the next state."""
    hidden, state = self.read(frozen, state, tokens, resets)
    return adaptive_softmax.log_probs(hidden, self.head(frozen)), state

  def nll(
    self,
    frozen: shapes.PyTree,
    state: shapes.PyTree,
    inputs: shapes.Tokens,
    targets: shapes.Targets,
    resets: shapes.Resets | None = None,
  ) -> tuple[shapes.Losses, shapes.PyTree]:
    """Negative log-probabilities of the targets, and the next state."""
    hidden, state = self.read(frozen, state, inputs, resets)
    hidden = hidden[:, -targets.shape[1] :]
    return adaptive_softmax.nll(hidden, targets, self.head(frozen)), state


class NetworkReader(TokenReader):
  """The network as a reader: whole segments, and memory of hidden states.

  State and parameters are those of the network.
  """

  def freeze(self, params: shapes.PyTree) -> shapes.PyTree:
    """The parameters themselves."""
    return params

  def shardings(
    self, mesh: jax.sharding.Mesh, frozen: shapes.PyTree
  ) -> shapes.PyTree:
    """The shardings of the parameters in training."""
    return mesh_lib.shardings(mesh, frozen, network.splits(self.config))

  def start(self, frozen: shapes.PyTree, *, batch_size: int) -> network.State:
    """The state before the first token."""
    del frozen
    return network.empty_state(
      self.config,
      batch_size=batch_size,
      mem_len=self.mem_len,
      step_len=self.segment_len,
    )

  def read(
    self,
    frozen: shapes.PyTree,
    state: network.State,
    tokens: shapes.Tokens,
    resets: shapes.Resets | None = None,
  ) -> tuple[shapes.Hidden, network.State]:
    """The vectors that the softmax reads, and the next state."""
    return self._bound(frozen)(tokens, state, resets)

  def head(self, frozen: shapes.PyTree) -> adaptive_softmax.SoftmaxWeights:
    """The weights of the softmax, for the functions of `adaptive_softmax`."""
    return self._bound(frozen).head()

  def _bound(self, params: shapes.PyTree) -> network.Network:
    settings = mixer_lib.Settings(
      clamp_len=self.clamp_len,
      same_length=self.same_length,
      temperature=self.temperature,
    )
    return network.Network(self.config, settings).bind({"params": params})


@dataclasses.dataclass(frozen=True)
class Reader(TokenReader):
  """Reads tokens with the layers of a `LayersReader`, which says how.

  Attributes:
    step_len: the most tokens in a step; 0 for a segment.
    whole_steps: every step has `step_len` tokens.
  """

  step_len: int = 0
  whole_steps: bool = False

  @property
  def layers(self) -> layers_reader.LayersReader:
    """The reader of the tokens' vectors."""
    return layers_reader.LayersReader(
      self.config,
      mem_len=self.mem_len,
      segment_len=self.segment_len,
      clamp_len=self.clamp_len,
      same_length=self.same_length,
      step_len=self.step_len,
      whole_steps=self.whole_steps,
    )

  def for_tokens(
    self, frozen: Frozen, state: State
  ) -> tuple["Reader", Frozen, State]:
    """Continues with single tokens: a reader, its parameters and its state."""
    layers, frozen, state = self.layers.for_tokens(frozen, state)
    reader = dataclasses.replace(self, step_len=layers.step_len)
    return reader, frozen, state

  def freeze(self, params: shapes.PyTree) -> Frozen:
    """Computes everything that does not depend on the text."""
    return self.layers.freeze(params)

  def shardings(self, mesh: jax.sharding.Mesh, frozen: Frozen) -> Frozen:
    """The shardings of what `freeze` returns."""
    splits = network.splits(self.config)
    return self.layers.shardings(mesh, frozen, splits)

  def start(self, frozen: Frozen, *, batch_size: int) -> State:
    """The state before the first token."""
    return self.layers.start(frozen, batch_size=batch_size)

  def read(
    self,
    frozen: Frozen,
    state: State,
    tokens: shapes.Tokens,
    resets: shapes.Resets | None = None,
    count: jt.Int[shapes.Array, ""] | None = None,
  ) -> tuple[shapes.Hidden, State]:
    """The vectors that the softmax reads, and the next state.

    `read_layers` has the arguments.
    """
    vectors = self._bound(frozen).embed(tokens)
    return self.layers.read(frozen, state, vectors, resets, count)

  def read_layers(
    self,
    frozen: Frozen,
    state: State,
    tokens: shapes.Tokens,
    resets: shapes.Resets | None = None,
    count: jt.Int[shapes.Array, ""] | None = None,
  ) -> tuple[tuple[shapes.Hidden, ...], State]:
    """The states of all layers, N + 1 with the embeddings, and the next state.

    `tokens` are ids; all else is as in `LayersReader.read_layers`.
    """
    vectors = self._bound(frozen).embed(tokens)
    return self.layers.read_layers(frozen, state, vectors, resets, count)

  def head(self, frozen: Frozen) -> adaptive_softmax.SoftmaxWeights:
    """The weights of the softmax, for the functions of `adaptive_softmax`."""
    return self._bound(frozen).head()

  def _bound(self, frozen: Frozen) -> network.Network:
    settings = mixer_lib.Settings(temperature=self.temperature)
    model = network.Network(self.config, settings)
    return model.bind({"params": frozen.outside})
