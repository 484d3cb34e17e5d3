"""Continues a text, a token at a time; `--mode=generate`.

The prompt is read in segments. Then a compiled loop draws some tokens a call
from cached keys and values, so that a token costs the same however long the
text is, and each call's are printed.

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
  """What was drawn."""

  tokens: list[np.ndarray]  # Those of each sample.
  stopped: list[bool]  # At the stop text.
  seconds: float  # Of drawing, without compiling and the prompt.


def read_prompt(
  model: language_model.TextModel, prompt: np.ndarray
) -> tuple[kv_cache.State, jt.Float[shapes.Array, "1 1 D"]]:
  """Reads [P] tokens, P > 0, in segments.

  Returns:
    The state behind them, and the last layer's at the last token.
  """
  read = jax.jit(model.reader.read, donate_argnums=1)
  state = model.reader.start(model.frozen, batch_size=1)
  for start in range(0, len(prompt), model.reader.segment_len):
    segment = prompt[None, start : start + model.reader.segment_len]
    tokens = jnp.asarray(segment, jnp.int32)
    hidden, state = read(model.frozen, state, tokens)
  return state, hidden[:, -1:]


def stream(
  model: language_model.TextModel,
  prompt: np.ndarray,
  *,
  config: schema.GenerateConfig,
  keys: jax.Array,
  stop: tuple[int, ...] = (),
) -> Iterator[Samples]:
  """Draws `config.num_tokens` tokens for each of the keys, some at a time.

  Args:
    model: of `text_model.load`.
    prompt: ids, at least one.
    config: how to draw.
    keys: [S], one for each sample.
    stop: a sample ends with these tokens, if they come.

  Yields:
    What has been drawn so far; first nothing, after compiling.
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
  head = reader.head(frozen)
  call = jax.jit(
    functools.partial(sampling.decode, reader=reader, config=config, stop=stop),
    donate_argnums=2,
  )
  limit = np.int32(0)
  compiled = call.lower(frozen, head, drawing, keys, limit).compile()
  start, drawn = time.perf_counter(), np.zeros((len(keys), 0), prompt.dtype)
  samples = Samples(list(drawn), [False] * len(keys), 0.0)
  yield samples
  while drawn.shape[1] < config.num_tokens and not all(samples.stopped):
    missing = config.num_tokens - drawn.shape[1]
    limit = np.int32(min(config.tokens_per_call, missing))
    drawing, tokens = compiled(frozen, head, drawing, keys, limit)
    drawn = np.concatenate([drawn, np.asarray(tokens)[:, :limit]], axis=1)
    lengths, done = jax.device_get((drawing.length, drawing.done))
    seconds = time.perf_counter() - start
    rows = [row[:n] for row, n in zip(drawn, lengths, strict=True)]
    samples = Samples(rows, done.tolist(), seconds)
    yield samples


def sample_keys(seed: int, num_samples: int) -> jax.Array:
  """Keys [num_samples] of a seed; more samples change none of the first."""
  key = jax.random.fold_in(jax.random.key(seed), 2)  # 0 and 1: training.
  indices = jnp.arange(num_samples)
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, indices)


def continuation(
  vocabulary: vocabulary_lib.Vocabulary,
  prompt: np.ndarray,
  tokens: np.ndarray,
  *,
  is_last: bool,
) -> str:
  """The text that tokens [count] add to that of a prompt [prompt_len].

  Unless `is_last`, it ends before a character whose bytes may go on, so that
  it is a beginning of what it will be with more tokens.
  """
  before = vocabulary.decode(prompt)
  text = vocabulary.decode(np.concatenate([prompt, tokens]))
  if text.startswith(before):  # A word brings the space before it.
    text = text[len(before) :]
  else:
    text = vocabulary.decode(tokens)
  return text if is_last else text.rstrip("\ufffd")


def run(config: schema.ExperimentConfig, workdir: str) -> dict[str, Any]:
  """Continues a prompt, prints it and writes `results/generate.json`."""
  options = config.generate
  text = options.prompt
  if options.prompt_file:
    field = "generate.prompt_file"
    text = inputs.read_file(options.prompt_file, field=field)
  model = language_model.load(
    config,
    workdir,
    mem_len=options.mem_len,
    segment_len=options.segment_len,
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
  _say(text)
  show = functools.partial(continuation, model.vocabulary, prompt)
  shown = ""
  for samples in parts:
    now = show(samples.tokens[0], is_last=False)
    _say(now[len(shown) :])
    shown = now
  texts = [show(tokens, is_last=True) for tokens in samples.tokens]
  _say(texts[0][len(shown) :] + "\n")
  for index, other in enumerate(texts[1:], start=2):
    _say(f"--- sample {index}\n{text}{other}\n")
  result = _result(config, model, text, texts, samples)
  metrics_log.write_json(
    os.path.join(workdir, "results", "generate.json"), result
  )
  return result


def _say(text: str) -> None:
  if jax.process_index() == 0:
    print(text, end="", flush=True)


def _result(config, model, prompt, texts, samples) -> dict[str, Any]:
  """The first sample by itself, all of them, and how they were drawn."""
  options, reader = config.generate, model.reader
  counts = [len(tokens) for tokens in samples.tokens]
  return {
    "prompt": prompt,
    "text": texts[0],
    "num_tokens": counts[0],
    "tokens_per_second": sum(counts) / max(samples.seconds, 1e-9),
    "seed": config.seed,
    "samples": [
      {"text": text, "num_tokens": count, "stopped": stopped}
      for text, count, stopped in zip(
        texts, counts, samples.stopped, strict=True
      )
    ],
    "temperature": options.temperature,
    "top_k": options.top_k,
    "top_p": options.top_p,
    "repetition_penalty": options.repetition_penalty,
    "no_repeat_ngram": options.no_repeat_ngram,
    "repetition_window": options.repetition_window,
    "stop": options.stop,
    "segment_len": reader.segment_len,
    "mem_len": reader.mem_len,
    "clamp_len": reader.clamp_len,
    "same_length": reader.same_length,
    "checkpoint_step": model.checkpoint_step,
  }


def stop_tokens(
  vocabulary: vocabulary_lib.Vocabulary, text: str
) -> tuple[int, ...]:
  """The ids of a stop text, () for none.

  Raises:
    UserError: a model cannot draw it.
  """
  if not text:
    return ()
  tokens = vocabulary.encode(text)
  unknown = getattr(vocabulary, "unk", None)
  known = [vocabulary.symbols[token] for token in tokens]
  if not known or unknown in known:
    raise errors.UserError(
      f"the stop text {text!r} has no tokens in the vocabulary or unknown "
      "words; set --config.generate.stop to something the model can draw."
    )
  return tuple(tokens.tolist())
