"""Continues a text; `--mode=generate` prints it while it is drawn."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from transformer_xl import arguments
from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.text import decoding
from transformer_xl.text import inputs
from transformer_xl.text import language_model
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record

_OVERLAP = 8  # Tokens of the prompt that are decoded before the first piece.
# Fields of `config.generate` that a result states.
_STATED = (
  "num_samples",
  "temperature",
  "top_k",
  "top_p",
  "repetition_penalty",
  "no_repeat_ngram",
  "stop",
)


class Sample(NamedTuple):
  """One continuation of a prompt.

  Attributes:
    text: the continuation, without the prompt.
    tokens: its ids, [num_tokens].
    stopped: True if it ended with the stop text.
    state: the state after its last token.
  """

  text: str
  tokens: np.ndarray
  stopped: bool
  state: decoding.TextState


class Generation(NamedTuple):
  """A prompt and its continuations.

  Attributes:
    prompt: the prompt.
    samples: its continuations.
    tokens_per_second: of all samples together. The time for compiling and for
      the prompt is not counted.
  """

  prompt: str
  samples: list[Sample]
  tokens_per_second: float

  @property
  def text(self) -> str:
    """The text of the first sample."""
    return self.samples[0].text

  @property
  def tokens(self) -> np.ndarray:
    """The ids [num_tokens] of the first sample."""
    return self.samples[0].tokens

  @property
  def state(self) -> decoding.TextState:
    """The state after the first sample."""
    return self.samples[0].state


class Excerpt(NamedTuple):
  """A prompt from a split, and the tokens that follow it there.

  Attributes:
    prompt: ids [prompt_len].
    reference: ids [num_tokens], or fewer at the end of the split.
  """

  prompt: np.ndarray
  reference: np.ndarray


class Progress(NamedTuple):
  """The text that a call has added to the first sample."""

  piece: str
  state: decoding.TextState  # After all its tokens so far.
  result: Generation | None  # At the end.


class TextStream:
  """Pieces of a text while it is drawn.

  Attributes:
    state: after the tokens that are drawn so far, or after the prompt. The text
      can be continued from it, also if the rest is never drawn.
    result: what `generate` returns; None until the last piece.
  """

  def __init__(self, progress: Iterator[Progress]):
    self._progress = progress
    first = next(progress)  # When the prompt is read and all is compiled.
    self.state: decoding.TextState = first.state
    self.result: Generation | None = None

  def __iter__(self) -> Iterator[str]:
    return self

  def __next__(self) -> str:
    with arguments.in_enough_memory("stream"):
      for progress in self._progress:
        self.state = progress.state
        self.result = progress.result
        if progress.piece:
          return progress.piece
    raise StopIteration


class _Text(NamedTuple):
  """The text of a sample, which is decoded piece by piece.

  What a token adds can depend on the one before it, as the space between words
  and the bytes of a character do. So what the last piece was made of is decoded
  again, and nothing older.
  """

  known: int  # The token, of prompt and sample, where the last piece begins.
  read: int  # The one where the next piece begins.
  text: str
  end: int | None  # The token after the stop text, once it is there.


def next_tokens(
  model: language_model.LanguageModel, text: str, k: int
) -> list[language_model.Candidate]:
  """The k likeliest tokens after a text, the likeliest first.

  Raises:
    UserError: the text is empty or not in the vocabulary.
  """
  prompt = _encode_prompt(model.vocabulary, text, "text")
  return decoding.likeliest(model, prompt, min(k, model.vocabulary.size))


def generate(
  model: language_model.LanguageModel,
  text: str,
  options: schema.GenerateConfig,
  *,
  seed: int,
  state: decoding.TextState | None = None,
) -> Iterator[Progress]:
  """Continues a text as `options` say, whose prompt is not used.

  Args:
    model: draws the tokens.
    text: the prompt; it may be empty if there is a state.
    options: state how tokens are drawn.
    seed: of the random numbers.
    state: of the text that the prompt comes after.

  Returns:
    An iterator over what the first sample gained; the first comes, without
    text, when everything is compiled, and the last with all samples.

  Raises:
    UserError: the text is empty, or it or the stop text is not in the
      vocabulary, or the state is of another model.
  """
  if state is None:
    prompt = _encode_prompt(model.vocabulary, text)
    state = decoding.empty_state(model)
  else:
    language_model.check_origin(state.origin, model)
    prompt = inputs.encode_after(
      model.vocabulary, state.newest, text, "generate.prompt"
    )
  state = state.extended(prompt)
  if not len(state.newest):
    raise errors.UserError("there is no text to continue; pass a prompt.")
  stop = stop_tokens(model.vocabulary, options.stop)
  stop_text = ""
  if stop and model.vocabulary.unit == "subword":
    # Many sequences of subwords have the same text, so texts are compared.
    stop = ()
    stop_text = options.stop
    if getattr(model.vocabulary, "lower_case", False):
      stop_text = stop_text.lower()
  parts = decoding.stream(
    model,
    state,
    config=options,
    keys=decoding.sample_keys(seed, options.num_samples),
    stop=stop,
  )
  return _progress(text, parts, stop_text, model.vocabulary)


def _progress(
  prompt: str,
  parts: Iterator[decoding.Samples],
  stop: str,
  vocabulary: vocabulary_lib.Vocabulary,
) -> Iterator[Progress]:
  """Decodes what is new after each call, until all samples have the stop text.

  Without a stop text, only the first sample is decoded before the end.
  """
  texts: list[_Text] = []
  for samples in parts:
    before = samples.prompt.newest
    if not texts:
      start = _before_a_character(vocabulary, before)
      count = len(samples.tokens) if stop else 1
      texts = [_Text(start, len(before), "", None)] * count
    shown = texts[0].text
    for index, text in enumerate(texts):
      if text.end is None:
        ids = np.concatenate([before, samples.tokens[index]])
        texts[index] = _with_new_text(vocabulary, ids, text, stop)
    tokens = samples.tokens[0]
    if texts[0].end is not None:
      tokens = tokens[: texts[0].end - len(before)]
    state = samples.prompt.extended(tokens)
    yield Progress(texts[0].text[len(shown) :], state, None)
    if all(text.end is not None for text in texts):
      break

  drawn = []
  for index, tokens in enumerate(samples.tokens):
    stopped = samples.stopped[index]
    added = continuation(vocabulary, before, tokens)
    if stop and (end := texts[index].end) is not None:
      stopped = True
      tokens = tokens[: end - len(before)]
      added = added[: len(texts[index].text)]
    state = samples.prompt.extended(tokens)
    drawn.append(Sample(added, tokens, stopped, state))
  count = sum(len(sample.tokens) for sample in drawn)
  speed = count / max(samples.seconds, 1e-9)
  result = Generation(prompt, drawn, speed)
  piece = result.text[len(texts[0].text) :]
  yield Progress(piece, result.state, result)


def _with_new_text(
  vocabulary: vocabulary_lib.Vocabulary, ids: np.ndarray, text: _Text, stop: str
) -> _Text:
  """Adds the text of tokens that were not decoded, up to the stop text."""

  def new_text(end: int) -> str:
    known = ids[text.known : text.read]
    return continuation(vocabulary, known, ids[text.read : end])

  piece = new_text(len(ids))
  if stop:
    start = max(len(text.text) - len(stop) + 1, 0)
    before = text.text[start:]  # It may have the beginning of the stop text.
    found = (before + piece).find(stop)
    if found >= 0:
      ends = range(text.read + 1, len(ids) + 1)
      end = next(end for end in ends if stop in before + new_text(end))
      length = start + found + len(stop)
      return text._replace(text=(text.text + piece)[:length], end=end)
  # The last characters may lack bytes, which come with later tokens. They are
  # none once another character follows.
  whole = piece
  end = len(ids)
  while not _is_settled(piece, whole):
    end -= 1
    piece = new_text(end)
  if not piece:
    return text
  # Never from within a character on: bytes behind it would be none, either.
  alone = vocabulary.decode(ids[text.read : end])
  is_within = alone.startswith("\ufffd") and alone != piece
  known = text.known if is_within else text.read
  return _Text(known, end, text.text + piece, None)


def _before_a_character(
  vocabulary: vocabulary_lib.Vocabulary, prompt: np.ndarray
) -> int:
  """A place near the end of a prompt [P] that is not within a character.

  In what is no text at all, there need be none.
  """
  start = max(len(prompt) - _OVERLAP, 0)
  least = max(len(prompt) - 8 * _OVERLAP, 0)
  while start > least and vocabulary.decode(prompt[start:])[:1] == "\ufffd":
    start -= 1
  return start


def _is_settled(text: str, whole: str) -> bool:
  """Whether the first tokens of a text have the first part of what it will be.

  Args:
    text: the text of the first tokens alone.
    whole: the text of all tokens.
  """
  if not whole.startswith(text):
    return False
  # Llama's tokenizers show as many replacements as bytes, of whole characters,
  # too, as long as one of them is not finished.
  rest = whole[len(text) :]
  may_change = text.endswith("\ufffd") and not rest.strip("\ufffd")
  return not may_change


def _encode_prompt(
  vocabulary: vocabulary_lib.Vocabulary,
  text: str,
  name: str = "generate.prompt",
) -> np.ndarray:
  """The ids [P] of a prompt, of which there is at least one."""
  prompt = inputs.encode(vocabulary, text, name)
  if len(prompt) == 0:
    raise errors.UserError(
      f"{name} is empty, or has no token of the vocabulary; give another text."
    )
  return prompt


def continuation(
  vocabulary: vocabulary_lib.Vocabulary, prompt: np.ndarray, tokens: np.ndarray
) -> str:
  """The text that tokens [num_tokens] add to a prompt [P]."""
  before = vocabulary.decode(prompt)
  text = vocabulary.decode(np.concatenate([prompt, tokens]))
  # Words include the space before them. A prompt may end inside a character,
  # whose missing bytes come with the tokens; it has one replacement, or one for
  # each byte, until then.
  for known in (before, before.removesuffix("\ufffd"), before.rstrip("\ufffd")):
    if text.startswith(known):
      return text[len(known) :]
  return vocabulary.decode(tokens)


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Checks prompt and stop text against the data and their vocabulary.

  Raises:
    UserError: the prompt cannot be read, is empty, or it or the stop text is
      not in the vocabulary; its split is too short; or the encoding cannot read
      such segments.
  """
  del workdir
  options = config.generate
  vocabulary = vocabulary_lib.load(config.data.dataset_dir)
  if options.prompt_split:
    _read_excerpt(config.data, options)
  elif options.prompt_file != "-":  # Standard input is read only once.
    name = "generate.prompt_file" if options.prompt_file else "generate.prompt"
    _encode_prompt(vocabulary, _read_prompt(options), name)
  stop_tokens(vocabulary, options.stop)
  encoding = encodings.of(config.model)
  encoding.check_segment_len(config.model, options.segment_len)


def _read_prompt(options: schema.GenerateConfig) -> str:
  """The prompt, from its file if there is one."""
  if not options.prompt_file:
    return options.prompt
  return inputs.read_file(options.prompt_file, field="generate.prompt_file")


def _read_excerpt(
  data: schema.DataConfig, options: schema.GenerateConfig
) -> Excerpt:
  """The prompt from `generate.prompt_split`, and what follows it there.

  Raises:
    UserError: there is no such split, or no token follows the prompt in it.
  """
  file = token_file.open_split(data.dataset_dir, options.prompt_split)
  start = options.prompt_start
  end = start + options.prompt_len
  if end >= len(file.tokens):
    raise errors.UserError(
      "a token must follow the prompt in its split: "
      f"{options.prompt_split} has {len(file.tokens)}, and the prompt ends at "
      f"{end}; set a lower --config.generate.prompt_start or "
      "--config.generate.prompt_len."
    )
  return Excerpt(
    prompt=np.asarray(file.tokens[start:end], np.int32),
    reference=np.asarray(file.tokens[end : end + options.num_tokens], np.int32),
  )


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Continues a prompt, prints the text and writes `results/generate.json`.

  Beside the samples of a prompt from a split, the file has the reference, which
  are the tokens that follow there (paper, appendix E).

  Raises:
    UserError: the prompt is empty or not in the vocabulary, or its split is too
      short or of another vocabulary.
  """
  options = config.generate
  excerpt = None
  if options.prompt_split:
    run_record.check_vocabulary(config.data.dataset_dir, workdir)
    excerpt = _read_excerpt(config.data, options)
  else:
    text = _read_prompt(options)
  with language_model.loaded(
    config,
    workdir,
    mem_len=options.mem_len,
    segment_len=options.segment_len,
  ) as model:
    if excerpt is None:
      parts = generate(model, text, options, seed=config.seed)
    else:
      # The ids themselves: encoding their text may give others.
      text = model.vocabulary.decode(excerpt.prompt)
      state = decoding.empty_state(model).extended(excerpt.prompt)
      parts = generate(model, "", options, seed=config.seed, state=state)
    _print(text)
    for progress in parts:
      _print(progress.piece)
  found = progress.result  # The last has everything.
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
  reference: metrics_log.Json = {}
  if excerpt is not None:
    text_after = continuation(
      model.vocabulary, excerpt.prompt, excerpt.reference
    )
    reference = {
      "prompt_split": options.prompt_split,
      "prompt_start": options.prompt_start,
      "reference": text_after,
      "num_reference_tokens": len(excerpt.reference),
    }
    _print(f"--- reference\n{text_after}\n")
  result = {
    "prompt": text,
    "num_prompt_tokens": found.state.num_tokens - len(found.tokens),
    "text": found.text,
    "num_tokens": len(found.tokens),
    **reference,
    "tokens_per_second": found.tokens_per_second,
    "seed": config.seed,
    "samples": drawn,
    **{name: getattr(options, name) for name in _STATED},
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
  tokens = inputs.encode(vocabulary, text, "generate.stop")
  symbols = [vocabulary.symbols[token] for token in tokens]
  if not symbols or getattr(vocabulary, "unk", None) in symbols:
    raise errors.UserError(
      f"the stop text {text!r} has no tokens, or unknown words, in this "
      "vocabulary; set --config.generate.stop to text the model can draw."
    )
  return tuple(tokens.tolist())
