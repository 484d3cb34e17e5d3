"""Continues a text token by token; `--mode=generate`.

The prompt is read in segments. Then a compiled loop draws some tokens per call
with cached keys and values, so that the cost of a token does not depend on the
length of the text. The tokens of each call are printed at once.

Shapes: S samples, P tokens of the prompt, D model width.
"""

import functools
import os
import time
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.model import kv_cache
from transformer_xl.text import inputs
from transformer_xl.text import language_model
from transformer_xl.text import sampling
from transformer_xl.workdir import metrics_log


class Samples(NamedTuple):
  """The continuations so far."""

  tokens: list[np.ndarray]  # One array per sample.
  stopped: list[bool]  # Whether a sample ended with the stop text.
  seconds: float  # Spent drawing, without compilation and the prompt.


def read_prompt(
  model: language_model.LanguageModel, prompt: np.ndarray
) -> tuple[kv_cache.State, jt.Float[shapes.Array, "1 1 D"]]:
  """Reads a prompt [P], P > 0; returns the state and last hidden state."""
  reader, frozen = model.reader, model.frozen
  read = jax.jit(reader.read, donate_argnums=1)
  state = reader.start(frozen, batch_size=1)
  for start in range(0, len(prompt), reader.segment_len):
    segment = prompt[None, start : start + reader.segment_len]
    hidden, state = read(frozen, state, jnp.asarray(segment, jnp.int32))
  return state, hidden[:, -1:]


def stream(
  model: language_model.LanguageModel,
  prompt: np.ndarray,
  *,
  config: schema.GenerateConfig,
  keys: jax.Array,
  stop: tuple[int, ...] = (),
) -> Iterator[Samples]:
  """Draws `config.num_tokens` tokens per sample, in several calls.

  The prompt has at least one id, [P]; there is a random key for each sample,
  [S]; the token sequence `stop` ends a sample.

  Yields:
    The samples so far: without tokens after compilation, then after each call.
  """
  state, hidden = read_prompt(model, prompt)
  reader, frozen, state = model.reader.for_tokens(model.frozen, state)
  drawing = sampling.begin(
    state,
    hidden,
    prompt,
    num_samples=len(keys),
    window=max(sampling.window(config), len(stop)),
    vocab_size=model.vocabulary.size,
  )
  fixed = frozen, reader.head(frozen)
  call = jax.jit(
    functools.partial(sampling.decode, reader=reader, config=config, stop=stop),
    donate_argnums=2,
  )
  compiled = call.lower(*fixed, drawing, keys, np.int32(0)).compile()
  start, drawn = time.perf_counter(), np.zeros((len(keys), 0), prompt.dtype)
  samples = Samples(list(drawn), [False] * len(keys), 0.0)
  yield samples
  while drawn.shape[1] < config.num_tokens and not all(samples.stopped):
    missing = config.num_tokens - drawn.shape[1]
    limit = np.int32(min(config.tokens_per_call, missing))
    drawing, tokens = compiled(*fixed, drawing, keys, limit)
    drawn = np.concatenate([drawn, np.asarray(tokens)[:, :limit]], axis=1)
    lengths, done = jax.device_get((drawing.length, drawing.done))
    seconds = time.perf_counter() - start
    rows = [row[:n] for row, n in zip(drawn, lengths, strict=True)]
    samples = Samples(rows, done.tolist(), seconds)
    yield samples


def sample_keys(seed: int, num_samples: int) -> jax.Array:
  """Returns keys [num_samples]; more samples leave the first keys unchanged."""
  key = jax.random.fold_in(jax.random.key(seed), 2)  # Training uses 0 and 1.
  indices = jnp.arange(num_samples)
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, indices)


def continuation(
  vocabulary: vocabulary_lib.Vocabulary,
  prompt: np.ndarray,
  tokens: np.ndarray,
  *,
  is_last: bool,
) -> str:
  """The text that tokens [num_tokens] add to a prompt [P].

  Unless `is_last`, an incomplete character at the end is left out, so that the
  result is a prefix of the text with more tokens.
  """
  before = vocabulary.decode(prompt)
  text = vocabulary.decode(np.concatenate([prompt, tokens]))
  # Words include the space before them.
  is_prefix = text.startswith(before)
  text = text[len(before) :] if is_prefix else vocabulary.decode(tokens)
  return text if is_last else text.rstrip("\ufffd")


def run(config: schema.ExperimentConfig, workdir: str) -> dict[str, Any]:
  """Continues a prompt, prints the text and writes `results/generate.json`.

  Raises:
    UserError: the prompt is empty or not in the vocabulary.
  """
  options, text = config.generate, config.generate.prompt
  if options.prompt_file:
    text = inputs.read_file(options.prompt_file, field="generate.prompt_file")
  model = language_model.load(
    config, workdir, mem_len=options.mem_len, segment_len=options.segment_len
  )
  prompt = model.vocabulary.encode(text)
  if len(prompt) == 0:
    raise errors.UserError(
      "the prompt is empty; set --config.generate.prompt='...'"
    )
  parts = stream(
    model,
    prompt,
    config=options,
    keys=sample_keys(config.seed, options.num_samples),
    stop=stop_tokens(model.vocabulary, options.stop),
  )
  _print(text)
  show = functools.partial(continuation, model.vocabulary, prompt)
  shown = ""
  for samples in parts:
    now = show(samples.tokens[0], is_last=False)
    _print(now[len(shown) :])
    shown = now
  texts = [show(tokens, is_last=True) for tokens in samples.tokens]
  _print(texts[0][len(shown) :] + "\n")
  for index, other in enumerate(texts[1:], start=2):
    _print(f"--- sample {index}\n{text}{other}\n")
  drawn: list[dict[str, Any]] = [
    {"text": text, "num_tokens": len(tokens), "stopped": stopped}
    for text, tokens, stopped in zip(texts, *samples[:2], strict=True)
  ]
  count = sum(sample["num_tokens"] for sample in drawn)
  names = (
    *("temperature", "top_k", "top_p", "repetition_penalty"),
    *("no_repeat_ngram", "repetition_window", "stop"),
  )
  result = {
    "prompt": text,
    "text": texts[0],
    "num_tokens": drawn[0]["num_tokens"],
    "tokens_per_second": count / max(samples.seconds, 1e-9),
    "seed": config.seed,
    "samples": drawn,
    **{name: getattr(options, name) for name in names},
    **model.settings(),
    "checkpoint_step": model.checkpoint_step,
  }
  path = os.path.join(workdir, "results", "generate.json")
  metrics_log.write_json(path, result)
  return result


def _print(text: str) -> None:
  if jax.process_index() == 0:
    print(text, end="", flush=True)


def stop_tokens(
  vocabulary: vocabulary_lib.Vocabulary, text: str
) -> tuple[int, ...]:
  """Encodes a stop text; () for none.

  Raises:
    UserError: the model cannot draw it.
  """
  if not text:
    return ()
  tokens = vocabulary.encode(text)
  symbols = [vocabulary.symbols[token] for token in tokens]
  if not symbols or getattr(vocabulary, "unk", None) in symbols:
    raise errors.UserError(
      f"the stop text {text!r} has no tokens, or unknown words, in this "
      "vocabulary; set --config.generate.stop to text the model can draw."
    )
  return tuple(tokens.tolist())
