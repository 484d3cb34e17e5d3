"""Loads a trained model with its vocabulary, to generate and score text."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import P
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl import shapes
from transformer_xl.config import evaluation_fields
from transformer_xl.config import schema
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.evaluation import settings as settings_lib
from transformer_xl.model import reader as reader_lib
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_vocabulary
from transformer_xl.workdir import trained_model

# What the memory's shapes follow from.
LENGTHS = ("segment_len", "mem_len")


class Candidate(NamedTuple):
  """A token that may come next.

  Attributes:
    token: the token, printable and without white space.
    id: its number in the vocabulary.
    log_prob: its log-probability in nats.
  """

  token: str
  id: int
  log_prob: float


class Origin(NamedTuple):
  """The model that a state was made with; no other can go on from it."""

  source: str
  checkpoint_step: int
  parameters: str
  reader: reader_lib.Reader

  def __str__(self) -> str:
    return (
      f"{self.source} (step {self.checkpoint_step}, {self.parameters} "
      f"parameters, mem_len={self.reader.mem_len}, "
      f"segment_len={self.reader.segment_len})"
    )


class LanguageModel(NamedTuple):
  """A model that reads text, its parameters and its vocabulary."""

  vocabulary: vocabulary_lib.Vocabulary
  reader: reader_lib.Reader
  frozen: shapes.PyTree
  checkpoint_step: int
  parameters: str  # raw, ema or asgd.
  source: str  # Folder or address.

  @property
  def origin(self) -> Origin:
    """The origin of this model's states."""
    return Origin(
      self.source, self.checkpoint_step, self.parameters, self.reader
    )

  def settings(self) -> metrics_log.Json:
    """The settings of reading, as results state them."""
    reader = self.reader
    settings = settings_lib.of_reading(
      reader.config,
      segment_len=reader.segment_len,
      mem_len=reader.mem_len,
      clamp_len=reader.clamp_len,
      same_length=reader.same_length,
    )
    return {**settings, "parameters": self.parameters}

  def start(self, batch_size: int) -> reader_lib.State:
    """The memory of B lanes before their first token."""
    return start(self.reader, self.frozen, batch_size)

  def candidates(
    self, ids: Iterable[int], log_probs: Iterable[float]
  ) -> list[Candidate]:
    """Candidates of k ids [k] and their log-probabilities [k]."""
    pairs = zip(ids, log_probs, strict=True)
    return [
      Candidate(self.vocabulary.symbol(token), int(token), float(log_prob))
      for token, log_prob in pairs
    ]


def for_tokens(
  reader: reader_lib.Reader, frozen: shapes.PyTree, state: reader_lib.State
) -> tuple[reader_lib.Reader, shapes.PyTree, reader_lib.State]:
  """Continues with single tokens: a reader, its parameters and its state.

  CPUs then compute in float32, whatever the model's type: of the matrices that
  XLA multiplies by one vector, it would cast all at every token.
  """
  reader, frozen, state = reader.for_tokens(frozen, state)
  if hardware.device_kind() != "cpu" or reader.config.dtype == "float32":
    return reader, frozen, state
  config = dataclasses.replace(reader.config, dtype="float32")
  return (
    dataclasses.replace(reader, config=config),
    jax.tree.map(_in_float32, frozen),
    jax.tree.map(_in_float32, state),
  )


def _in_float32(leaf: jax.Array) -> jax.Array:
  is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
  return leaf.astype(jnp.float32) if is_float else leaf


@functools.partial(jax.jit, static_argnames=("reader", "batch_size"))
def start(
  reader: reader_lib.Reader, frozen: shapes.PyTree, batch_size: int
) -> reader_lib.State:
  """Makes the first state on the devices where the next states will be.

  Otherwise functions of states would be compiled for both places.
  """
  return reader.start(frozen, batch_size=batch_size)


def lengths(
  options: evaluation_fields.GenerateConfig | evaluation_fields.ScoreConfig,
) -> dict[str, int]:
  """The lengths that a group of the configuration gives."""
  return {name: getattr(options, name) for name in LENGTHS}


def check_origin(origin: Origin, model: LanguageModel) -> None:
  """Raises a UserError if a state is of another model or of other lengths."""
  if origin != model.origin:
    raise errors.UserError(
      f"the state is of {origin}, and this model is {model.origin}; go on with "
      "the model that made the state, or start without one."
    )


@contextlib.contextmanager
def loaded(
  config: schema.ExperimentConfig,
  workdir: str,
  *,
  mem_len: int,
  segment_len: int,
) -> Iterator[LanguageModel]:
  """Loads a run's model and vocabulary from its workdir alone.

  The model is placed on the mesh of `config.mesh`, and is to be read inside the
  context, where that mesh is set: kernels are split by it. For the lengths see
  `make`.

  Raises:
    UserError: the workdir has no such checkpoint or no vocabulary, or the
      model cannot read segments of this length, or its parameters are not
      numbers.
  """
  config, vocabulary = run_vocabulary.load_for(config, workdir)
  trained = trained_model.load(config, workdir)
  with jax.set_mesh(trained.mesh):
    trained_model.require_numbers(
      trained.params, f"checkpoint {trained.step} of {workdir}"
    )
    yield make(
      trained,
      vocabulary,
      mem_len=mem_len,
      segment_len=segment_len,
      source=workdir,
    )


def make(
  trained: trained_model.TrainedModel,
  vocabulary: vocabulary_lib.Vocabulary,
  *,
  mem_len: int,
  segment_len: int,
  source: str,
) -> LanguageModel:
  """Prepares the parameters of a checkpoint for reading text.

  The model remembers `mem_len` tokens, and reads at most `segment_len` in a
  call. Clamp length and attention window are those of `config.eval`.
  """
  config = trained.config
  trained_model.warn_of_untrained_segments(
    config.model, config.train, segment_len=segment_len, mem_len=mem_len
  )
  reader = reader_lib.Reader(
    config.model,
    mem_len=mem_len,
    segment_len=segment_len,
    clamp_len=config.eval.clamp_len,
    same_length=config.eval.same_length,
  )
  return LanguageModel(
    vocabulary,
    reader,
    frozen=reader.freeze(jax.tree.map(_on_device, trained.params)),
    checkpoint_step=trained.step,
    parameters=config.eval.parameters,
    source=source,
  )


def _on_device(leaf: ArrayLike) -> jax.Array:
  """An array as results have it, so that no program is compiled twice.

  Those of NumPy, as importers read them, would be sent again for every call. On
  a mesh of one device, results have no axis that is split.
  """
  array = jnp.asarray(leaf)
  sharding = array.sharding
  if isinstance(sharding, NamedSharding) and sharding.num_devices == 1:
    return jax.device_put(array, NamedSharding(sharding.mesh, P()))
  return array
