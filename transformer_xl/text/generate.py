"""Continues a text; `--mode=generate` prints it while it is drawn."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.model.encodings import table as encodings
from transformer_xl.text import decoding
from transformer_xl.text import inputs
from transformer_xl.text import language_model
from transformer_xl.workdir import metrics_log

_OVERLAP = 8  # Tokens of the prompt that are decoded before the first piece.


class Sample(NamedTuple):
  """One continuation of a prompt."""

  text: str  # Without the prompt.
  tokens: np.ndarray  # Ids [num_tokens].
  stopped: bool  # Whether it ended with the stop text.


class Generation(NamedTuple):
  """A prompt and its continuations."""

  prompt: str
  samples: list[Sample]
  tokens_per_second: float  # All samples, without compilation and prompt.

  @property
  def text(self) -> str:
    """The text of the first sample."""
    return self.samples[0].text

  @property
  def tokens(self) -> np.ndarray:
    """The ids [num_tokens] of the first sample."""
    return self.samples[0].tokens


def next_tokens(
  model: language_model.LanguageModel, text: str, k: int
) -> list[language_model.Candidate]:
  """The k likeliest tokens after a text, the likeliest first.

  Raises:
    UserError: the text is empty or not in the vocabulary, or k is below 1.
  """
  if k < 1:
    raise errors.UserError(f"k={k} must be at least 1.")
  prompt = _encode_prompt(model.vocabulary, text)
  return decoding.likeliest(model, prompt, min(k, model.vocabulary.size))


def generate(
  model: language_model.LanguageModel,
  text: str,
  options: schema.GenerateConfig,
  *,
  seed: int,
) -> Iterator[tuple[str, Generation | None]]:
  """Continues a text as `options` say, whose prompt is not used.

  Returns:
    An iterator over what the first sample gained; the first comes, without
    text, when everything is compiled, and the last with all samples.

  Raises:
    UserError: the text is empty, or it or the stop text is not in the
      vocabulary.
  """
  prompt = _encode_prompt(model.vocabulary, text)
  parts = decoding.stream(
    model,
    prompt,
    config=options,
    keys=decoding.sample_keys(seed, options.num_samples),
    stop=stop_tokens(model.vocabulary, options.stop),
  )
  return _pieces(text, prompt, parts, model.vocabulary)


def _pieces(
  text: str,
  prompt: np.ndarray,
  parts: Iterator[decoding.Samples],
  vocabulary: vocabulary_lib.Vocabulary,
) -> Iterator[tuple[str, Generation | None]]:
  """Decodes what is new of the first sample after each call.

  What a token adds can depend on the one before it, as the space between words
  and the bytes of a character do. So what the last piece was made of is decoded
  again, and nothing older.
  """
  ids = prompt
  known = max(len(prompt) - _OVERLAP, 0)  # Where the last piece begins.
  read = len(prompt)  # Where the next one begins.
  shown = ""
  for samples in parts:
    ids = np.concatenate([prompt, samples.tokens[0]])
    piece = continuation(vocabulary, ids[known:read], ids[read:], is_last=True)
    if piece.endswith("\ufffd"):  # Maybe the first bytes of a character.
      piece = ""
    if piece:
      known = read
      read = len(ids)
    shown += piece
    yield piece, None

  drawn = []
  for tokens, stopped in zip(samples.tokens, samples.stopped, strict=True):
    added = continuation(vocabulary, prompt, tokens, is_last=True)
    drawn.append(Sample(added, tokens, stopped))
  count = sum(len(sample.tokens) for sample in drawn)
  speed = count / max(samples.seconds, 1e-9)
  yield drawn[0].text[len(shown) :], Generation(text, drawn, speed)


def _encode_prompt(
  vocabulary: vocabulary_lib.Vocabulary, text: str
) -> np.ndarray:
  """The ids [P] of a prompt, of which there is at least one."""
  prompt = vocabulary.encode(text)
  if len(prompt) == 0:
    raise errors.UserError(
      "the prompt is empty; set --config.generate.prompt='...'"
    )
  return prompt


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


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Checks prompt and stop text against the vocabulary of the data.

  Raises:
    UserError: the prompt cannot be read, is empty, or it or the stop text is
      not in the vocabulary; or the encoding cannot read such segments.
  """
  del workdir
  vocabulary = vocabulary_lib.load(config.data.dataset_dir)
  if config.generate.prompt_file != "-":  # Standard input is read only once.
    _encode_prompt(vocabulary, _read_prompt(config.generate))
  stop_tokens(vocabulary, config.generate.stop)
  encoding = encodings.of(config.model)
  encoding.check_segment_len(config.model, config.generate.segment_len)


def _read_prompt(options: schema.GenerateConfig) -> str:
  """The prompt, from its file if there is one."""
  if not options.prompt_file:
    return options.prompt
  return inputs.read_file(options.prompt_file, field="generate.prompt_file")


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Continues a prompt, prints the text and writes `results/generate.json`.

  Raises:
    UserError: the prompt is empty or not in the vocabulary.
  """
  options = config.generate
  text = _read_prompt(options)
  model = language_model.load(
    config,
    workdir,
    mem_len=options.mem_len,
    segment_len=options.segment_len,
  )
  parts = generate(model, text, options, seed=config.seed)
  _print(text)
  for piece, found in parts:  # noqa: B007 - the last has everything.
    _print(piece)
  assert found is not None
  _print("\n")
  for index, sample in enumerate(found.samples[1:], start=2):
    _print(f"--- sample {index}\n{text}{sample.text}\n")
  drawn: list[metrics_log.Json] = [
    {
      "text": sample.text,
      "num_tokens": len(sample.tokens),
      "stopped": sample.stopped,
    }
    for sample in found.samples
  ]
  names = (
    "num_samples",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "no_repeat_ngram",
    "stop",
  )
  result = {
    "prompt": text,
    "text": found.text,
    "num_tokens": len(found.tokens),
    "tokens_per_second": found.tokens_per_second,
    "seed": config.seed,
    "samples": drawn,
    **{name: getattr(options, name) for name in names},
    **model.settings(),
    "checkpoint_step": model.checkpoint_step,
  }
  metrics_log.write_json(workdir, "results/generate.json", result)
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
