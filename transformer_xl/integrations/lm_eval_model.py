"""The model that the lm-evaluation-harness calls `transformer_xl`.

Importing this module registers it. Texts of any length are read in segments,
with the memory between them, so nothing is truncated.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tqdm
from lm_eval.api import model as harness_model
from lm_eval.api import registry
from lm_eval.models import utils as harness_utils

from transformer_xl import arguments
from transformer_xl import errors
from transformer_xl import pretrained as pretrained_lib
from transformer_xl.text import decoding
from transformer_xl.text import inputs
from transformer_xl.text import score as score_lib

# Settings of generation that tasks may give; those below have names of ours.
_SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty")
_KNOWN = (*_SAMPLING, "do_sample", "until", "max_gen_toks")
_DEFAULT_NUM_TOKENS = 256  # As for the harness's own models.
# What a task does not give: not what the run has, so that all models are asked
# alike.
_PLAIN: dict[str, Any] = {
  "temperature": 0.0,
  "top_k": 0,
  "top_p": 1.0,
  "repetition_penalty": 1.0,
  "no_repeat_ngram": 0,
  "num_samples": 1,
  "stop": "",
}

_log = logging.getLogger(__name__)  # The harness's log, not absl's.


class Request(Protocol):
  """What the harness asks: the arguments of one call."""

  args: tuple


@registry.register_model("transformer_xl")
class HarnessModel(harness_model.LM):
  """A model of this package behind the harness's three questions."""

  @arguments.checked
  def __init__(
    self,
    pretrained: str,
    *,
    mem_len: int | None = None,
    segment_len: int | None = None,
    checkpoint: str | int | None = None,
    parameters: str | None = None,
    init_from: str | None = None,
    prefix: str | None = None,
    batch_size: int | str | None = None,
    max_batch_size: int | None = None,
    device: str | None = None,
  ):
    """Loads the model as `transformer_xl.load` does.

    Args:
      pretrained: a workdir, a HuggingFace folder, or an address of the Hub.
      mem_len: length of the memory in tokens.
      segment_len: tokens that are read at once.
      checkpoint: latest, best, or a step.
      parameters: raw, ema or asgd.
      init_from: folder with the base of a run's adapters, if it has moved.
      prefix: text that precedes texts without a context; by default the start
        token of an import, else its end token, else `config.score.prefix`.
      batch_size: texts that are scored at once; auto is `config.score`'s.
      max_batch_size: is not used: memory does not grow with the text.
      device: is not used: JAX chooses, as JAX_PLATFORMS says.
    """
    super().__init__()
    del max_batch_size, device
    self.model = pretrained_lib.load(
      pretrained,
      mem_len=mem_len,
      segment_len=segment_len,
      checkpoint=checkpoint,
      parameters=parameters,
      init_from=init_from,
    )
    options = self.model.config.score
    # Of an import's vocabulary alone.
    roles = getattr(self.model.vocabulary, "roles", {})
    start = roles.get("bos_token", "")
    self._end = roles.get("eos_token", "")
    known = options.prefix if prefix is None else prefix
    # A start token that its tokenizer puts in front of no text begins those
    # without a context alone, as for the harness's own models.
    self._start = start if known == start else ""
    if prefix is None:
      known = start or self._end or known
    self._prefix = known
    if batch_size is None or str(batch_size).startswith("auto"):
      batch_size = options.batch_size
    elif isinstance(batch_size, str) and batch_size.isdecimal():
      batch_size = int(batch_size)
    self.batch_size = arguments.whole_number(batch_size, "batch_size", least=1)

  def loglikelihood(
    self, requests: Sequence[Request], disable_tqdm: bool = False
  ) -> list[tuple[float, bool]]:
    """Log-probabilities of continuations, and whether they are the likeliest.

    A continuation is scored after its context, however long that is, or after
    the prefix if it has none.

    Raises:
      UserError: a continuation, or what precedes it, has no tokens.
    """
    rows = []
    counts = []
    for request in requests:
      context, continuation = self._encode_pair(*request.args)
      rows.append(np.concatenate([context, continuation]))
      counts.append(len(continuation))
    result = []
    scores = self._score(rows, top_k=1, disable_tqdm=disable_tqdm)
    for request, row, count, found in zip(
      requests, rows, counts, scores, strict=True
    ):
      start = len(row) - count
      nll = np.sum(found.nll[start - 1 :], dtype=np.float64)
      likeliest = found.top_tokens[start - 1 :, 0]
      answer = float(-nll), bool((likeliest == row[start:]).all())
      self.cache_hook.add_partial("loglikelihood", request.args, answer)
      result.append(answer)
    return result

  def loglikelihood_rolling(
    self, requests: Sequence[Request], disable_tqdm: bool = False
  ) -> list[float]:
    """The log-probability of each text, after the prefix, as `score` has it."""
    texts = [inputs.Text(request.args[0], "fresh") for request in requests]
    streams = inputs.streams(texts, self.model.vocabulary, prefix=self._prefix)
    rows = [stream.tokens for stream in streams]
    result = []
    scores = self._score(rows, top_k=0, disable_tqdm=disable_tqdm)
    for request, stream, found in zip(requests, streams, scores, strict=True):
      (place,) = stream.texts.values()
      # Of each token but the first, which nothing precedes.
      nll = found.nll[max(place.start - 1, 0) :]
      answer = float(-np.sum(nll, dtype=np.float64))
      self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
      result.append(answer)
    return result

  def generate_until(
    self, requests: Sequence[Request], disable_tqdm: bool = False
  ) -> list[str]:
    """Continues each context until one of its stop texts, which is cut off.

    The token that ends a text is one of them, where an import has one.
    One context after the other: a batch is of samples of the same context. A
    task that asks for several samples repeats the context, so each request has
    a seed of its own.
    """
    seed = self.model.config.seed
    result = []
    unknown: set[str] = set()
    shown = tqdm.tqdm(requests, disable=disable_tqdm, desc="generate")
    for number, request in enumerate(shown):
      context, given = request.args
      options = harness_utils.normalize_gen_kwargs(given, _DEFAULT_NUM_TOKENS)
      unknown |= set(options) - set(_KNOWN)
      stops = [stop for stop in (*options["until"], self._end) if stop]
      given_here = {key: options[key] for key in _SAMPLING if key in options}
      if options["do_sample"] and "temperature" not in given:
        given_here["temperature"] = 1.0
      tokens = self._started(context, self._encode(context))
      if not len(tokens):
        tokens = self._encode(self._prefix)
      pieces = self.model.stream(
        "",
        state=decoding.empty_state(self.model.trained).extended(tokens),
        num_tokens=options["max_gen_toks"],
        seed=int(np.random.SeedSequence((seed, number)).generate_state(1)[0]),
        **_PLAIN | given_here,
      )
      text = ""
      for piece in pieces:
        text += piece
        if any(stop in text for stop in stops):
          break  # No more is drawn.
      for stop in stops:
        text = text.partition(stop)[0]
      self.cache_hook.add_partial("generate_until", request.args, text)
      result.append(text)
    if unknown:
      _log.warning("Settings of generation without effect: %s", sorted(unknown))
    return result

  def apply_chat_template(
    self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
  ) -> str:
    """Raises a UserError: this package renders no chat template."""
    raise _no_templates()

  @property
  def tokenizer_name(self) -> str:
    """What the harness asks before a chat template, which is refused."""
    raise _no_templates()

  def _encode_pair(
    self, context: str, continuation: str
  ) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a context, or of the prefix, and of its continuation.

    Spaces between them belong to the continuation, and a context is read after
    the start token, as the harness has it for other models. Both have tokens,
    since a continuation without a score would be the likeliest of all.

    Raises:
      UserError: one of them has no tokens.
    """
    stripped = context.rstrip()
    moved = context[len(stripped) :] + continuation
    before, after = self.model.vocabulary.encode_after(stripped, moved)
    before = self._started(stripped, before)
    if not len(before):
      before, after = self._encode(self._prefix), self._encode(moved)
    if not continuation or not len(after):
      raise errors.UserError(
        f"the continuation {continuation!r} of {context[-40:]!r} has no tokens "
        "in this vocabulary, and nothing to score: give the task continuations "
        "that have some."
      )
    if not len(before):
      raise errors.UserError(
        f"the continuation {continuation!r} has no context, and the prefix "
        f"{self._prefix!r} has no tokens in this vocabulary, so the first "
        "token would have no score: set prefix to text that has some."
      )
    return before, after

  def _encode(self, text: str) -> np.ndarray:
    return self.model.vocabulary.encode(text)

  def _started(self, context: str, tokens: np.ndarray) -> np.ndarray:
    """The tokens of a context behind the start token.

    A chat template may have set that token. It is encoded by itself: behind
    another token, some tokenizers put no space before the first word.
    """
    if not len(tokens) or context.startswith(self._start):
      return tokens
    return np.concatenate([self._encode(self._start), tokens])

  def _score(
    self, rows: Sequence[np.ndarray], *, top_k: int, disable_tqdm: bool
  ) -> list[score_lib.TokenScores]:
    """Scores rows of tokens, and shows how many are done."""
    found: dict[int, score_lib.TokenScores] = {}
    batches = score_lib.score_batches(
      self.model.trained, rows, batch_size=self.batch_size, top_k=top_k
    )
    bar = tqdm.tqdm(total=len(rows), disable=disable_tqdm, desc="score")
    for scores in batches:
      found |= scores
      bar.update(len(scores))
    bar.close()
    return [found[index] for index in range(len(rows))]


def _no_templates() -> errors.UserError:
  return errors.UserError(
    "there are no chat templates here (docs/text.md): leave out "
    "--apply_chat_template, or write the template into the task's texts."
  )
