"""Log-probabilities of texts, token by token; `--mode=score`.

Each stream (a text and those that carry on its memory) has its own lane of a
batch. Lanes are padded only at the end, so neither other texts nor padding
reach the memory or the sums of a text.

Shapes: B lanes, T tokens of a segment, k likeliest tokens.
"""

import functools
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import evaluation_fields
from transformer_xl.config import schema
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.evaluation import settings as settings_lib
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import nats
from transformer_xl.model import reader as reader_lib
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.processes import exchange
from transformer_xl.text import inputs as inputs_lib
from transformer_xl.text import language_model
from transformer_xl.workdir import metrics_log


class TextScore(NamedTuple):
  """The score of a text; entries are None for a token without context.

  Attributes:
    text: the text.
    memory: `fresh`, or `carry` if it remembered the text before it.
    nll: minus the sum of the log-probabilities, in nats.
    num_tokens: the number of tokens in that sum.
    num_unknown: the number of all tokens that are unknown to the vocabulary.
    perplexity: of these tokens; None if there are none.
    tokens: all tokens, printable and without white space.
    log_probs: one for each token, in nats.
    top: the likeliest tokens in the place of each token; None unless `top_k` is
      set.
  """

  text: str
  memory: str
  nll: float
  num_tokens: int
  num_unknown: int
  perplexity: float | None
  tokens: list[str]
  log_probs: list[float | None]
  top: list[list[language_model.Candidate] | None] | None


# Streams of similar length are read together, out of so many.
_STREAMS_AT_ONCE = 2048
_SECONDS_BETWEEN_LINES = 10.0
_MOST_LINES = 20  # More texts have no lines of their own in the log.
_EXCERPT = 40  # Characters of a text in the log.

Scores = jax.Array | np.ndarray  # On the devices, then on the host.


class TokenScores(NamedTuple):
  """Scores of all tokens of a stream but the first, which has no context."""

  nll: Scores  # [tokens].
  top_log_probs: Scores  # [tokens, k].
  top_tokens: Scores  # [tokens, k].


def score_rows(
  model: language_model.LanguageModel,
  rows: Sequence[np.ndarray],
  *,
  batch_size: int,
  top_k: int,
) -> list[TokenScores]:
  """Scores rows of tokens, each from an empty memory, in batches."""
  result: dict[int, TokenScores] = {}
  for scores in score_batches(model, rows, batch_size=batch_size, top_k=top_k):
    result |= scores
  return [result[index] for index in range(len(rows))]


def score_batches(
  model: language_model.LanguageModel,
  rows: Sequence[np.ndarray],
  *,
  batch_size: int,
  top_k: int,
) -> Iterator[dict[int, TokenScores]]:
  """The scores of `score_rows` by the index of a row, batch by batch."""
  segment_len = model.reader.segment_len
  lanes = max(1, min(batch_size, len(rows)))
  contexts = [row[:-1] for row in rows]
  for chosen, inputs in inputs_lib.batches(
    contexts, num_lanes=lanes, segment_len=segment_len
  ):
    targets = np.zeros_like(inputs)
    for lane, index in enumerate(chosen):
      targets[lane, : len(contexts[index])] = rows[index][1:]
    state = model.start(lanes)
    found = []
    for start in range(0, inputs.shape[1], segment_len):
      scores, state = _read_segment(
        model.frozen,
        state,
        jnp.asarray(inputs[:, start : start + segment_len]),
        jnp.asarray(targets[:, start : start + segment_len]),
        reader=model.reader,
        top_k=top_k,
      )
      found.append(scores)
    found = exchange.fetch(found)
    whole = [np.concatenate(part, axis=1) for part in zip(*found, strict=True)]
    scored = {}
    for lane, index in enumerate(chosen):
      end = len(contexts[index])
      scored[index] = TokenScores(*(array[lane, :end] for array in whole))
    yield scored


# Compiled once for each shape, whichever texts are scored.
@functools.partial(
  jax.jit, static_argnames=("reader", "top_k"), donate_argnames="state"
)
def _read_segment(
  frozen: shapes.PyTree,
  state: reader_lib.State,
  inputs: shapes.Tokens,
  targets: shapes.Targets,
  *,
  reader: reader_lib.Reader,
  top_k: int,
) -> tuple[TokenScores, reader_lib.State]:
  """Scores of one segment, and the next state."""
  hidden, state = reader.read(frozen, state, inputs)
  head = reader.head(frozen)
  nll = adaptive_softmax.nll(hidden, targets, head)
  best = (jnp.zeros((*nll.shape, 0)),) * 2
  if top_k:
    count = min(top_k, reader.config.vocab_size)
    best = adaptive_softmax.top_k(hidden, head, count)
  return TokenScores(nll, *best), state


def score(
  model: language_model.LanguageModel,
  texts: Sequence[inputs_lib.Text],
  options: evaluation_fields.ScoreConfig,
) -> list[TextScore]:
  """Scores texts, each independent of the batch.

  Memory is carried in the order of the texts. The prefix is read before each;
  without one, the first token of a fresh text has no context and is not scored.
  At each position the `top_k` likeliest tokens are reported.

  Raises:
    UserError: a text has symbols outside the vocabulary.
  """
  return [*each_score(model, texts, options)]


def each_score(
  model: language_model.LanguageModel,
  texts: Sequence[inputs_lib.Text],
  options: evaluation_fields.ScoreConfig,
) -> Iterator[TextScore]:
  """The scores of `score`, in the order of the texts.

  All texts are encoded before the first is scored, so an error comes early, and
  again a few thousand at a time, so that not all tokens are in memory.
  """
  num_unknown = num_tokens = 0
  for part in inputs_lib.each_stream(
    texts, model.vocabulary, prefix=options.prefix
  ):
    for place in part.texts.values():
      tokens = part.tokens[place]
      num_tokens += len(tokens)
      num_unknown += model.vocabulary.count_unknown(tokens)
  warning = vocabulary_lib.unknown_warning(
    num_unknown / max(num_tokens, 1), of="the texts"
  )
  if warning:
    logging.warning("%s", warning)
  parts = inputs_lib.each_stream(texts, model.vocabulary, prefix=options.prefix)
  num_scored = 0
  said_at = time.monotonic()
  while group := [*itertools.islice(parts, _STREAMS_AT_ONCE)]:
    scored = score_rows(
      model,
      [part.tokens for part in group],
      batch_size=options.batch_size,
      top_k=options.top_k,
    )
    for part, scores in zip(group, scored, strict=True):
      for index, place in part.texts.items():
        yield _text_score(
          model, texts[index], place, part.tokens[place], scores
        )
        num_scored += 1
    if time.monotonic() - said_at >= _SECONDS_BETWEEN_LINES:
      logging.info("Scored %d of %d texts.", num_scored, len(texts))
      said_at = time.monotonic()


def _text_score(
  model: language_model.LanguageModel,
  text: inputs_lib.Text,
  place: slice,
  tokens: np.ndarray,
  scores: TokenScores,
) -> TextScore:
  """The score of a text of these tokens, which are at this place of a stream.

  The scores are those of the stream.
  """
  # The first token of a stream has no context.
  first = max(place.start, 1)
  stop = max(place.stop, first)
  scored = slice(first - 1, stop - 1)
  count = stop - first
  nll = float(np.sum(scores.nll[scored], dtype=np.float64))
  unscored = [None] * (len(tokens) - count)
  top = None
  if scores.top_tokens.shape[1]:
    top = unscored + [
      model.candidates(ids, log_probs)
      for ids, log_probs in zip(
        scores.top_tokens[scored], scores.top_log_probs[scored], strict=True
      )
    ]
  return TextScore(
    text.text,
    text.memory,
    nll,
    count,
    model.vocabulary.count_unknown(tokens),
    nats.perplexity(nll / count) if count else None,
    [sys.intern(model.vocabulary.symbol(i)) for i in tokens],
    unscored + (-scores.nll[scored]).tolist(),
    top,
  )


def _line(score: TextScore) -> str:
  """A line of the log on one text, with its beginning."""
  excerpt = vocabulary_lib.printable(" ".join(score.text.split()))
  if len(excerpt) > _EXCERPT:
    excerpt = f"{excerpt[:_EXCERPT]}..."
  perplexity = score.perplexity
  shown = "-" if perplexity is None else f"{perplexity:.3f}"
  return (
    f"{score.num_tokens:6} tokens: nll {score.nll:10.4f}  "
    f"perplexity {shown:>10}  {excerpt}"
  )


def _json(score: TextScore) -> metrics_log.Json:
  result = score._asdict()
  if score.top is None:
    del result["top"]
  else:
    result["top"] = [
      best and [candidate._asdict() for candidate in best] for best in score.top
    ]
  return result


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Checks the texts against the vocabulary of the data.

  Raises:
    UserError: no file is given, or it cannot be read or encoded; or the
      encoding cannot read such segments.
  """
  del workdir
  encoding = encodings.of(config.model)
  encoding.check_segment_len(config.model, config.score.segment_len)
  if config.score.file == "-":  # Standard input is read only once.
    return
  texts = _read_texts(config.score)
  vocabulary = vocabulary_lib.load(config.data.dataset_dir)
  for _ in inputs_lib.each_stream(
    texts, vocabulary, prefix=config.score.prefix
  ):
    pass  # An error says what cannot be encoded.


def _read_texts(
  options: evaluation_fields.ScoreConfig,
) -> list[inputs_lib.Text]:
  """The texts of `score.file`."""
  if not options.file:
    raise errors.UserError(
      "name the texts to score: --config.score.file=FILE, or - for standard "
      "input."
    )
  content = inputs_lib.read_file(options.file, field="score.file")
  is_json = options.file.endswith(".jsonl")
  return inputs_lib.parse(content, memory=options.memory, is_json=is_json)


def run(config: schema.ExperimentConfig, workdir: str) -> None:
  """Scores the texts of a file and writes `results/score.json`.

  An entry is written as soon as it is made. None is kept, since there may be
  more than memory holds.

  Raises:
    UserError: no file is given, it cannot be read or encoded, or it has nothing
      to score.
  """
  options = config.score
  texts = _read_texts(options)
  with language_model.loaded(
    config,
    workdir,
    mem_len=options.mem_len,
    segment_len=options.segment_len,
  ) as model:
    card = {
      "prefix": options.prefix,
      "top_k": options.top_k,
      **model.settings(),
      "checkpoint_step": model.checkpoint_step,
    }
    count = 0
    nll = 0.0
    lines = []

    def entries() -> Iterator[metrics_log.Json]:
      nonlocal count, nll
      for one in each_score(model, texts, options):
        count += one.num_tokens
        nll += one.nll
        if len(texts) <= _MOST_LINES:
          lines.append(_line(one))
        yield _json(one) | card
      if not count:
        raise errors.UserError(
          f"no token of the {len(texts)} texts can be scored: they are empty, "
          "or have one token without a score.prefix before it."
        )

    metrics_log.write_json_list(workdir, "results/score.json", entries())
  for line in lines:
    logging.info("%s", line)
  logging.info(
    "%d texts, %d tokens: nll %.4f  perplexity %.3f  [memory %s, %s, segment "
    "%d, step %d]",
    len(texts),
    count,
    nll / count,
    nats.perplexity(nll / count),
    settings_lib.memory_text(model.settings()),
    options.memory,
    options.segment_len,
    model.checkpoint_step,
  )
