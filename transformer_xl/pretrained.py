"""Trained models in Python: what `transformer_xl.load` returns.

Every method calls the function that the command-line mode calls, so that both
give the same numbers. Functions are compiled at their first call with a shape
and kept for the life of the process.

Shapes: B lanes, T tokens of a call, L tokens of a text, V vocabulary, D width.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence

import jaxtyping as jt
import numpy as np
from absl import logging
from numpy.typing import ArrayLike

from transformer_xl import errors
from transformer_xl import log_lines
from transformer_xl import shapes
from transformer_xl import storage
from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.importers import import_run
from transformer_xl.importers import vocabulary as imported_vocabulary
from transformer_xl.model import reader as reader_lib
from transformer_xl.text import generate as generate_lib
from transformer_xl.text import hidden_states as hidden_states_lib
from transformer_xl.text import inputs
from transformer_xl.text import language_model
from transformer_xl.text import score as score_lib
from transformer_xl.text import streaming

_FILES = ("file", "prompt_file")


@dataclasses.dataclass(frozen=True)
class PretrainedModel:
  """A trained model with its vocabulary, on the first device."""

  source: str  # Where it is from; of the Hub, with the commit.
  config: schema.ExperimentConfig
  trained: language_model.LanguageModel

  def __repr__(self) -> str:
    settings = ", ".join(f"{k}={v}" for k, v in self.trained.settings().items())
    return f"<Transformer-XL of {self.source}: {settings}>"

  @property
  def vocabulary(self) -> vocabulary_lib.Vocabulary:
    """The vocabulary, with `encode(text)`, `decode(ids)` and `size`."""
    return self.trained.vocabulary

  def score(
    self, texts: Sequence[str], **options: object
  ) -> list[score_lib.TextScore]:
    """Scores each text; the others in the batch do not matter.

    Args:
      texts: of any lengths.
      **options: `prefix`, `memory`, `top_k` and `batch_size` of `config.score`.
    """
    if isinstance(texts, str):
      raise errors.UserError("score takes a list: model.score([text]).")
    chosen = self._with_options("score", options).score
    entries = [inputs.Text(text, chosen.memory) for text in texts]
    return score_lib.score(self.trained, entries, chosen)

  def generate(
    self, prompt: str, *, seed: int | None = None, **options: object
  ) -> generate_lib.Generation:
    """Continues a prompt.

    Args:
      prompt: the text to continue, of any length.
      seed: of the random numbers; by default that of the run.
      **options: `num_tokens`, `num_samples`, `temperature`, `top_k`, `stop` and
        the other fields of `config.generate`.
    """
    for _, found in self._generate(prompt, seed, options):
      if found is not None:
        return found
    raise AssertionError("the last piece comes with all samples")

  def stream(
    self, prompt: str, *, seed: int | None = None, **options: object
  ) -> Iterator[str]:
    """Continues a prompt, and yields pieces of the first sample's text.

    A piece comes every `tokens_per_call` tokens; all pieces joined are the text
    that `generate` returns.

    Args:
      prompt: the text to continue, of any length.
      seed: of the random numbers; by default that of the run.
      **options: fields of `config.generate`, such as `num_tokens`.
    """
    pieces = self._generate(prompt, seed, options)
    return (piece for piece, _ in pieces if piece)

  def next_tokens(
    self, text: str, k: int = 10
  ) -> list[language_model.Candidate]:
    """The k likeliest tokens after a text, the likeliest first."""
    return generate_lib.next_tokens(self.trained, text, k)

  def hidden_states(
    self, text: str, layers: Sequence[int] = (-1,)
  ) -> hidden_states_lib.HiddenStates:
    """The states [layers, L, D] after each token of a text of any length.

    The text is read in segments; each layer remembers `mem_len` tokens of the
    segments before. Layer 0 is the embeddings, -1 the last layer.
    """
    return hidden_states_lib.read(self.trained, text, layers)

  def init_state(self, batch_size: int = 1) -> reader_lib.State:
    """The memory of B lanes before their first token, for `step`."""
    reader, frozen = self._tokens
    return language_model.start(reader, frozen, batch_size)

  def step(
    self,
    state: reader_lib.State,
    tokens: ArrayLike,
    resets: ArrayLike | None = None,
  ) -> tuple[reader_lib.State, jt.Float[shapes.Array, "B T V"]]:
    """Reads the next tokens of each lane; any number may be read at a time.

    Args:
      state: of `init_state` or the last step; it stays valid.
      tokens: ids [B, T].
      resets: [B, T], True where a token is the first of a document, which
        empties the lane's memory.

    Returns:
      The next state, and the log-probabilities of every next token.
    """
    ids = np.asarray(tokens)
    lanes = state.num_lanes
    if ids.ndim != 2 or len(ids) != lanes:
      raise errors.UserError(
        f"tokens have the shape {ids.shape}, but the state has {lanes} "
        f"lanes: pass ids [{lanes}, T]."
      )
    least = ids.min(initial=0)
    most = ids.max(initial=0)
    size = self.vocabulary.size
    if ids.dtype.kind not in "iu" or least < 0 or most >= size:
      raise errors.UserError(
        f"tokens must be integers from 0 to {size - 1}; these are "
        f"{ids.dtype} from {least} to {most}."
      )
    starts = None if resets is None else np.asarray(resets, bool)
    if starts is not None and starts.shape != ids.shape:
      raise errors.UserError(
        f"resets have the shape {starts.shape}, tokens {ids.shape}; pass "
        "one for each token."
      )
    reader, frozen = self._tokens
    ids = ids.astype(np.int32)
    return streaming.step(frozen, state, ids, starts, reader=reader)

  @functools.cached_property
  def _tokens(self) -> tuple[reader_lib.Reader, shapes.PyTree]:
    """The reader of single tokens, and its parameters."""
    reader = self.trained.reader
    frozen = self.trained.frozen
    return reader.for_tokens(frozen, self.trained.start(1))[:2]

  def _generate(
    self, prompt: str, seed: int | None, options: Mapping[str, object]
  ) -> Iterator[tuple[str, generate_lib.Generation | None]]:
    chosen = self._with_options("generate", options).generate
    seed = self.config.seed if seed is None else seed
    return generate_lib.generate(self.trained, prompt, chosen, seed=seed)

  def _with_options(
    self, group: str, values: Mapping[str, object]
  ) -> schema.ExperimentConfig:
    """The run's configuration with other values in a group of settings."""
    for name in values:
      if name in language_model.LENGTHS:
        raise errors.UserError(
          f"{name} is the same for all calls of a model; set it in "
          f"transformer_xl.load(..., {name}={values[name]!r})."
        )
      if name in _FILES:
        raise errors.UserError(f"{name} is for commands only; pass the text.")
    changes = {f"{group}.{name}": value for name, value in values.items()}
    return load_lib.changed(self.config, changes)


def load(
  source: str | os.PathLike[str],
  *,
  mem_len: int | None = None,
  segment_len: int | None = None,
  checkpoint: str | int | None = None,
  parameters: str | None = None,
) -> PretrainedModel:
  """Loads a trained model onto the first device.

  Args:
    source: the workdir of a run or an import, a folder with a HuggingFace
      model of the type `transfo-xl`, both also as `gs://BUCKET/FOLDER`, or
      `hf://OWNER/NAME[@REVISION]`.
    mem_len: length of the memory in tokens; by default `config.score.mem_len`.
    segment_len: tokens that are read at once; by default
      `config.score.segment_len`.
    checkpoint: of a run: latest, best, or the number of its step.
    parameters: of a run: raw, ema or asgd.

  Raises:
    UserError: there is no such model, or it cannot be loaded.
  """
  logging.get_absl_logger().addFilter(log_lines.is_not_noise)
  folder = address = os.path.expanduser(os.fspath(source))
  if address.startswith("hf://"):
    from transformer_xl.importers import hub  # Only this needs its library.

    folder, address = hub.download(address)
  if storage.is_bucket(folder):
    storage.configure()
  given = {
    "score.mem_len": mem_len,
    "score.segment_len": segment_len,
    "eval.checkpoint": None if checkpoint is None else str(checkpoint),
    "eval.parameters": parameters,
  }
  values = {name: one for name, one in given.items() if one is not None}
  if _is_run(folder):
    config = load_lib.from_config_dict(load_lib.saved(folder))
    config = load_lib.changed(config, values)
    lengths = language_model.lengths(config.score)
    model = language_model.load(config, folder, one_device=True, **lengths)
    return PretrainedModel(address, config, model)
  if (checkpoint, parameters) != (None, None):
    raise errors.UserError(
      f"{address} is no run: it has one set of parameters; leave out "
      "checkpoint and parameters."
    )
  found = import_run.read(format_name="huggingface", source=folder)
  config = load_lib.changed(found.config, values)
  vocabulary = imported_vocabulary.read(
    found.vocabulary, size=config.model.vocab_size
  )
  lengths = language_model.lengths(config.score)
  model = language_model.make(
    config, found.params, vocabulary, step=0, **lengths
  )
  return PretrainedModel(address, config, model)


def _is_run(folder: str) -> bool:
  """Whether a folder is a workdir; otherwise it is of HuggingFace."""
  path = os.path.join(storage.local(folder), "config.json")
  try:
    with open(path, encoding="utf-8") as file:
      fields = json.load(file)
    return "model_type" not in fields
  except OSError as error:
    raise errors.UserError(
      f"{os.path.join(folder, 'config.json')} cannot be read "
      f"({error.strerror}); name the folder of a run, of an import or of a "
      "HuggingFace model, or hf://OWNER/NAME."
    ) from None
  except (ValueError, TypeError, RecursionError):
    return True  # Loading a run says what is damaged.
