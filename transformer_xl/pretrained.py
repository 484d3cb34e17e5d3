"""Trained models in Python: what `transformer_xl.load` returns.

Every method calls the function that the command-line mode calls, so that both
give the same numbers with the same lengths. Functions are compiled at their
first call with a shape and kept for the life of the process.

Shapes: B lanes, T tokens of a call, L tokens of a text, V vocabulary, D width.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence

import jax
import jaxtyping as jt
import numpy as np
from absl import logging
from numpy.typing import ArrayLike

from transformer_xl import arguments
from transformer_xl import errors
from transformer_xl import log_lines
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl import storage
from transformer_xl.config import extensions as extensions_lib
from transformer_xl.config import load as load_lib
from transformer_xl.config import precision
from transformer_xl.config import schema
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.importers import import_run
from transformer_xl.importers import vocabulary as imported_vocabulary
from transformer_xl.model import reader as reader_lib
from transformer_xl.text import attention as attention_lib
from transformer_xl.text import decoding
from transformer_xl.text import generate as generate_lib
from transformer_xl.text import hidden_states as hidden_states_lib
from transformer_xl.text import inputs
from transformer_xl.text import language_model
from transformer_xl.text import score as score_lib
from transformer_xl.text import streaming
from transformer_xl.workdir import compile_cache
from transformer_xl.workdir import run_vocabulary
from transformer_xl.workdir import trained_model

# A text, or an object of JSON as the file of `--mode=score` has them on its
# lines.
Scorable = str | Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class PretrainedModel:
  """A trained model with its vocabulary, on the first device.

  Attributes:
    source: the folder or address that the model was loaded from; for the Hub,
      with the commit.
    loaded: the parameters, and all settings of the run.
    trained: the model with its parameters prepared for reading.
  """

  source: str
  loaded: trained_model.TrainedModel
  trained: language_model.LanguageModel

  def __repr__(self) -> str:
    settings = ", ".join(f"{k}={v}" for k, v in self.trained.settings().items())
    return f"<Transformer-XL of {self.source}: {settings}>"

  @property
  def config(self) -> schema.ExperimentConfig:
    """All settings of the run."""
    return self.loaded.config

  @property
  def params(self) -> shapes.PyTree:
    """The parameters, as `network.Network` takes them."""
    return self.loaded.params

  @property
  def vocabulary(self) -> vocabulary_lib.Vocabulary:
    """The vocabulary, with `encode(text)`, `decode(ids)` and `size`."""
    return self.trained.vocabulary

  @arguments.checked
  def score(
    self,
    texts: Sequence[Scorable],
    *,
    prefix: str | None = None,
    memory: str | None = None,
    top_k: int | None = None,
    batch_size: int | None = None,
    mem_len: int | None = None,
  ) -> list[score_lib.TextScore]:
    """Scores each text; the others in the batch do not matter.

    Without a value, an option is that of `config.score`.

    Args:
      texts: of any lengths, each as a text or as `{"text": "...", "memory":
        "carry"}`.
      prefix: is read before each text and not scored.
      memory: of the texts that do not name one: fresh, or carry, to remember
        the text before.
      top_k: the number of likeliest tokens to report in each place.
      batch_size: the number of texts that are read at once.
      mem_len: length of the memory in tokens.
    """
    values = arguments.listed(texts, "texts", example="model.score([text])")
    chosen = self._changed(
      "score",
      prefix=prefix,
      memory=memory,
      top_k=top_k,
      batch_size=batch_size,
      mem_len=mem_len,
    )
    entries = inputs.from_python(values, memory=chosen.score.memory)
    model = self.trained
    if chosen.score.mem_len != model.reader.mem_len:
      model = self._prepared(chosen.score.mem_len)
    with arguments.in_words_of_python(["score.prefix"]):
      return score_lib.score(model, entries, chosen.score)

  @arguments.checked
  def generate(
    self,
    prompt: str,
    *,
    state: decoding.TextState | None = None,
    seed: int | None = None,
    num_tokens: int | None = None,
    num_samples: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    no_repeat_ngram: int | None = None,
    stop: str | None = None,
    tokens_per_call: int | None = None,
  ) -> generate_lib.Generation:
    """Continues a prompt.

    Without a value, an option is that of `config.generate`. The lengths of
    segments and memory are those of `load`, as for all other methods.

    Args:
      prompt: the text to continue, of any length. It may be empty if there is a
        state.
      state: the `state` of an earlier result or stream. The prompt is read as
        the continuation of its text, which is not read again.
      seed: of the random numbers; by default that of the run.
      num_tokens: the number of tokens to draw.
      num_samples: the number of continuations, which are drawn in one batch.
      temperature: divides the log-probabilities; 0 always takes the likeliest
        token.
      top_k: draws from so many of the likeliest tokens; 0 is for all.
      top_p: draws from the likeliest of these that together reach this
        probability.
      repetition_penalty: divides the probabilities of recent tokens; 1 for no
        penalty.
      no_repeat_ngram: no sequence of this many tokens occurs twice; 0 for no
        rule.
      stop: a text that ends a continuation, which includes it.
      tokens_per_call: the number of tokens that are drawn in one compiled call.
    """
    pieces = self.stream(
      prompt,
      state=state,
      seed=seed,
      num_tokens=num_tokens,
      num_samples=num_samples,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      repetition_penalty=repetition_penalty,
      no_repeat_ngram=no_repeat_ngram,
      stop=stop,
      tokens_per_call=tokens_per_call,
    )
    for _ in pieces:
      pass
    assert pieces.result is not None
    return pieces.result

  @arguments.checked
  def stream(
    self,
    prompt: str,
    *,
    state: decoding.TextState | None = None,
    seed: int | None = None,
    num_tokens: int | None = None,
    num_samples: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    no_repeat_ngram: int | None = None,
    stop: str | None = None,
    tokens_per_call: int | None = None,
  ) -> generate_lib.TextStream:
    """Continues a prompt, and yields pieces of the first sample's text.

    A piece comes every `tokens_per_call` tokens; all pieces joined are the text
    that `generate` returns, which explains the arguments.
    """
    text = arguments.text(prompt, "prompt")
    if state is not None and not isinstance(state, decoding.TextState):
      raise errors.UserError(
        "state must be the state of a text that was generated, such as "
        f"found.state: it is a {type(state).__name__}."
      )
    chosen = self._changed(
      "generate",
      num_tokens=num_tokens,
      num_samples=num_samples,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      repetition_penalty=repetition_penalty,
      no_repeat_ngram=no_repeat_ngram,
      stop=stop,
      tokens_per_call=tokens_per_call,
    )
    if not text and state is None:
      raise errors.UserError("prompt is empty; give a text to continue.")
    if seed is not None:
      with arguments.in_words_of_python(["seed"]):
        chosen = load_lib.changed(chosen, {"seed": _of_python(seed)})
    with arguments.in_words_of_python(["generate.prompt", "generate.stop"]):
      progress = generate_lib.generate(
        self.trained, text, chosen.generate, seed=chosen.seed, state=state
      )
    return generate_lib.TextStream(progress)

  @arguments.checked
  def next_tokens(
    self, text: str, k: int = 10
  ) -> list[language_model.Candidate]:
    """The k likeliest tokens after a text, the likeliest first."""
    count = arguments.whole_number(k, "k", least=1)
    text = arguments.text(text, "text")
    if not text:
      raise errors.UserError("text is empty; give the text before the token.")
    return generate_lib.next_tokens(self.trained, text, count)

  @arguments.checked
  def hidden_states(
    self, text: str, layers: Sequence[int] = (-1,)
  ) -> hidden_states_lib.HiddenStates:
    """The states [layers, L, D] after each token of a text of any length.

    The text is read in segments; each layer remembers `mem_len` tokens of the
    segments before. Layer 0 is the embeddings, -1 the last layer, whose states
    are those before `final_norm`.
    """
    text = arguments.text(text, "text")
    return hidden_states_lib.read(self.trained, text, _layers(layers))

  @arguments.checked
  def embed(
    self,
    texts: Sequence[str],
    *,
    layer: int = -1,
    batch_size: int | None = None,
  ) -> jt.Float[np.ndarray, "texts D"]:
    """A vector for each text: the mean of a layer's states over its tokens.

    Args:
      texts: of any lengths; the others in the batch do not matter.
      layer: 0 for the embeddings, -1 for the last layer, whose states are those
        before `final_norm`.
      batch_size: the number of texts that are read at once; by default that of
        `config.score`.
    """
    values = arguments.listed(texts, "texts", example="model.embed([text])")
    for number, value in enumerate(values, start=1):
      arguments.text(value, f"text {number}")
    (number,) = _layers((layer,))
    chosen = self._changed("score", batch_size=batch_size).score
    return hidden_states_lib.means(
      self.trained, values, layer=number, batch_size=chosen.batch_size
    )

  @arguments.checked
  def attention(
    self, text: str, layers: Sequence[int] = (-1,)
  ) -> attention_lib.Attention:
    """The attention [layers, H, L, L] of each token to the tokens before it.

    The text is read in segments, and may be longer than the memory: a token
    attends to nothing that its layer has forgotten. Layers count from 1, -1 is
    the last. The result grows with the square of the text.
    """
    text = arguments.text(text, "text")
    return attention_lib.read(self.trained, self.params, text, _layers(layers))

  @arguments.checked
  def init_state(self, batch_size: int = 1) -> streaming.StreamState:
    """The memory of B lanes before their first token, for `step`."""
    count = arguments.whole_number(batch_size, "batch_size", least=1)
    reader, frozen = self._tokens
    memory = language_model.start(reader, frozen, count)
    return streaming.StreamState(memory, self.trained.origin)

  @arguments.checked
  def step(
    self,
    state: streaming.StreamState,
    tokens: ArrayLike,
    resets: ArrayLike | None = None,
  ) -> tuple[streaming.StreamState, jt.Float[shapes.Array, "B T V"]]:
    """Reads the next tokens of each lane; any number may be read at a time.

    Args:
      state: of `init_state` or the last step; it stays valid.
      tokens: ids [B, T].
      resets: [B, T], True where a token is the first of a document, which
        empties the lane's memory.

    Returns:
      The next state, and the log-probabilities of every next token.
    """
    reader, frozen = self._tokens
    return streaming.read(
      self.trained, state, tokens, resets, reader=reader, frozen=frozen
    )

  @functools.cached_property
  def _tokens(self) -> tuple[reader_lib.Reader, shapes.PyTree]:
    """The reader of single tokens, and its parameters."""
    reader, frozen, _ = language_model.for_tokens(
      self.trained.reader, self.trained.frozen, self.trained.start(1)
    )
    return reader, frozen

  def _changed(self, group: str, **values: object) -> schema.ExperimentConfig:
    """The run's configuration with the values that are given in a group."""
    changes = {
      f"{group}.{name}": _of_python(value)
      for name, value in values.items()
      if value is not None
    }
    with arguments.in_words_of_python(changes):
      return load_lib.changed(self.config, changes)

  def _prepared(self, mem_len: int) -> language_model.LanguageModel:
    """The model with a memory of another length."""
    return language_model.make(
      self.loaded,
      self.vocabulary,
      mem_len=mem_len,
      segment_len=self.trained.reader.segment_len,
      source=self.source,
    )


def _of_python(value: object) -> object:
  """A number of NumPy as one of Python."""
  return value.item() if isinstance(value, np.generic) else value


def _layers(layers: Sequence[int]) -> tuple[int, ...]:
  """The numbers of layers."""
  values = arguments.listed(layers, "layers", example="layers=(0, -1)")
  return tuple(
    arguments.whole_number(value, "a layer", least=None) for value in values
  )


@arguments.checked
def load(
  source: str | os.PathLike[str],
  *,
  mem_len: int | None = None,
  segment_len: int | None = None,
  checkpoint: str | int | None = None,
  parameters: str | None = None,
  init_from: str | os.PathLike[str] | None = None,
  extensions: Sequence[str] = (),
) -> PretrainedModel:
  """Loads a trained model onto the first device.

  What it compiles is kept for later processes, as commands keep it, unless JAX
  was given a folder for that.

  Args:
    source: the workdir of a run or an import, a folder with a HuggingFace
      model of the types `transfo-xl`, `llama`, `mistral`, `qwen2` or `qwen3`,
      both also as `gs://BUCKET/FOLDER`, or `hf://OWNER/NAME[@REVISION]`.
    mem_len: length of the memory in tokens; by default `config.score.mem_len`.
    segment_len: tokens that are read at once; by default
      `config.score.segment_len`.
    checkpoint: of a run: latest, best, or the number of its step.
    parameters: of a run: raw, ema or asgd.
    init_from: of a run of adapters: the folder with their base, if it has
      moved.
    extensions: files (`my_memory.py`) or modules that define what the model is
      made of; nothing is imported from the source.

  Raises:
    UserError: there is no such model, or it cannot be loaded; or JAX computes
      with 64 bits.
  """
  logging.get_absl_logger().addFilter(log_lines.is_not_noise)
  precision.require_32_bits()
  compile_cache.use()
  if not isinstance(source, str | os.PathLike):
    raise errors.UserError(
      "source must be a folder or an address, such as 'runs/quickstart': it is "
      f"a {type(source).__name__}."
    )
  extensions_lib.load(
    arguments.listed(extensions, "extensions", example='["my_memory.py"]')
  )
  address = storage.expanded(os.fspath(source))
  folder = address
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
    "train.init_from": init_from and storage.expanded(init_from),
  }
  values = {
    name: _of_python(one) for name, one in given.items() if one is not None
  }
  if _is_run(folder):
    loaded, vocabulary = _read_run(folder, values)
  elif (checkpoint, parameters, init_from) == (None, None, None):
    loaded, vocabulary = _read_import(folder, values)
  else:
    raise errors.UserError(
      f"{address} is no run: it has one set of parameters; leave out "
      "checkpoint, parameters and init_from."
    )
  lengths = language_model.lengths(loaded.config.score)
  model = language_model.make(loaded, vocabulary, source=address, **lengths)
  return PretrainedModel(address, loaded, model)


def _read_run(
  folder: str, values: Mapping[str, object]
) -> tuple[trained_model.TrainedModel, vocabulary_lib.Vocabulary]:
  """The checkpoint of a run, and its vocabulary; `values` are by field."""
  config = load_lib.from_config_dict(load_lib.saved(folder))
  if "train.init_from" in values and not config.train.lora.rank:
    raise errors.UserError(
      f"{folder} is no run of adapters, so it has no base elsewhere: leave "
      "init_from out."
    )
  with arguments.in_words_of_python([*values, "train.init_from"]):
    config = load_lib.changed(config, values)
    config, vocabulary = run_vocabulary.load_for(config, folder)
    loaded = trained_model.load_on_one_device(config, folder)
  return loaded._replace(config=config), vocabulary


def _read_import(
  folder: str, values: Mapping[str, object]
) -> tuple[trained_model.TrainedModel, vocabulary_lib.Vocabulary]:
  """The model of a HuggingFace folder; `values` are by field."""
  device = jax.devices()[0]
  with import_run.opened(import_run.Request("huggingface", folder)) as found:
    with arguments.in_words_of_python(values):
      config = load_lib.changed(found.config, values)
    vocabulary = imported_vocabulary.read(
      found.vocabulary, size=config.model.vocab_size
    )
    params = jax.tree.map(
      lambda leaf: jax.device_put(np.asarray(leaf), device), found.params
    )
  mesh = mesh_lib.of_one_device(device)
  loaded = trained_model.TrainedModel(config, mesh, params, step=0)
  return loaded, vocabulary


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
