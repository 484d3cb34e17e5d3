"""Exact negative log-likelihood of a split.

Every token is predicted exactly once, except the first of the split, which has
no context. Sums are float32 within a call and float64 across calls.
"""

import functools
import itertools
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import cards as cards_lib
from transformer_xl.evaluation import scorer
from transformer_xl.evaluation import units
from transformer_xl.model import kinds
from transformer_xl.model import visibility
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model


class Score(NamedTuple):
  """The loss of a split."""

  nll: float  # Sum, in nats.
  num_tokens: int
  seconds: float  # Excludes compilation.


def open_stream(
  config: schema.ExperimentConfig, mem_len: int
) -> streams.EvalStream:
  """The segments that an evaluation reads, including its warm-up."""
  warmup, capacity = config.eval.warmup_len, mem_len
  if mem_len:  # Else there is nothing to compress.
    capacity += config.eval.compressed_len * config.model.compression_rate
  return streams.EvalStream(
    token_file.open_split(config.data.dataset_dir, config.eval.split),
    num_lanes=config.eval.batch_size,
    segment_len=config.eval.segment_len,
    warmup_len=capacity if warmup < 0 else warmup,
    resets=streams.reset_rule(config),
    context_len=config.eval.context_len,
  )


class Evaluator:
  """Scores `eval.split` at one memory length; compiles once."""

  def __init__(
    self, config: schema.ExperimentConfig, mesh: Mesh, *, mem_len: int
  ):
    self._count = config.eval.segments_per_call
    self._sharding, self._is_compiled = mesh_lib.segments(mesh), False
    self._stream = open_stream(config, mem_len)
    self.file = self._stream.file
    self._scorer = scorer.Scorer(config, mesh, mem_len=mem_len)

  def __call__(self, params: shapes.PyTree) -> Score:
    """Scores the whole split."""
    score = self.score_until(params, should_stop=lambda: False)
    assert score is not None
    return score

  def score_until(
    self, params: shapes.PyTree, *, should_stop: Callable[[], bool]
  ) -> Score | None:
    """Scores the whole split; None if `should_stop` holds before its end."""
    frozen = self._scorer.freeze(params)
    if not self._is_compiled:
      # Compiles with a call past the end, in which every weight is 0.
      self._score(frozen, self._scorer.start(frozen), self._stream.num_steps)
      self._is_compiled = True
    memory, parts = self._scorer.start(frozen), []
    start = time.perf_counter()
    for step in range(0, self._stream.num_steps, self._count):
      if should_stop():
        return None
      memory, sums = self._score(frozen, memory, step)
      parts.append(sums)
    parts = jax.device_get(parts)
    return Score(
      nll=sum(float(sums.nll) for sums in parts),
      num_tokens=round(sum(float(sums.num_tokens) for sums in parts)),
      seconds=time.perf_counter() - start,
    )

  def _score(self, frozen, memory, step):
    segments = streams.device_segments(
      self._stream, step, self._count, self._sharding
    )
    return self._scorer.score(frozen, memory, segments)


class Subject(NamedTuple):
  """A loaded checkpoint to evaluate."""

  config: schema.ExperimentConfig
  mesh: Mesh
  params: shapes.PyTree
  step: int
  unit: str  # What a token is: "word", "character", "byte" or other.
  initialised_from: dict[str, Any] | None = None  # As in `config.json`.

  def at_each_temperature(self) -> Iterator["Subject"]:
    """Itself, with each of `eval.temperature` as the only one."""
    for value in self.config.eval.temperature:
      changed = {"eval.temperature": (value,)}
      yield self._replace(config=load_lib.replaced(self.config, changed))

  def card(
    self, score: Score, file: token_file.TokenFile, mem_len: int
  ) -> dict[str, Any]:
    """The evaluation card: a score with all settings that it depends on.

    `bits_per_character` is null unless tokens are characters or bytes.
    `bits_per_byte` and `word_perplexity` use the size of the original text, so
    they compare models with different vocabularies. `dataset_sha256` is that
    of the split's token file. What is not finite is null.
    """
    model, evaluation, meta = self.config.model, self.config.eval, file.meta
    nll = score.nll / score.num_tokens
    has_characters = self.unit in ("byte", "character")
    card = {
      "dataset": self.config.data.name,
      "dataset_sha256": file.sha256,
      "split": evaluation.split,
      "num_tokens": score.num_tokens,
      "nll": nll,
      "perplexity": units.perplexity(nll),
      "bits_per_character": units.bits(nll) if has_characters else None,
      "bits_per_byte": units.bits(score.nll) / meta["num_bytes"],
      "word_perplexity": units.perplexity(score.nll / meta["num_words"]),
      "segment_len": evaluation.segment_len,
      "context_len": evaluation.context_len,
      "mem_len": mem_len,
      **cards_lib.compressed(self.config, mem_len),
      "memory_lens": model.memory_lens or None,
      "temperature": evaluation.temperature[0],
      "clamp_len": evaluation.clamp_len,
      "position_scale": model.position_scale,
      "same_length": visibility.has_window(
        mem_len, same_length=evaluation.same_length
      ),
      "same_length_window": model.same_length_window,
      "memory_start": model.memory_start,
      "batch_size": evaluation.batch_size,
      "warmup_len": evaluation.warmup_len,
      "parameters": evaluation.parameters,
      "dtype": model.dtype,
      "checkpoint_step": self.step,
      "initialised_from": self.initialised_from,
      "num_parameters": kinds.num_parameters(self.params),
      "seconds": score.seconds,
      "tokens_per_second": score.num_tokens / score.seconds,
    }
    return metrics_log.finite(card)


def per_token(
  subject: Subject, functions: scorer.Functions, mem_len: int
) -> Any:
  """Reads `eval.split` once and returns what `functions.score` finds.

  Its arrays [B, T] become [num_tokens - 1]: one entry for each token of the
  split but the first, in order. `functions` are for `scorer.padded` lanes.
  """
  config, mesh, params = subject[:3]
  stream, count = open_stream(config, mem_len), config.eval.segments_per_call
  memory, sharding = functions.start(params), mesh_lib.segments(mesh)
  places = mesh_lib.parameters(mesh, memory), mesh_lib.replicated(mesh)
  read = jax.jit(
    functools.partial(jax.lax.scan, functools.partial(functions.score, params)),
    out_shardings=places,  # Every process reads all of it.
    compiler_options=mesh_lib.compiler_options(mesh),
  )
  parts, weights = [], []
  for step in range(0, stream.num_steps, count):
    segments = streams.device_segments(stream, step, count, sharding)
    memory, found = read(memory, segments)
    parts.append(jax.tree.map(np.asarray, found))
    weights.append(np.asarray(stream.read(step, count, slice(None)).weights))
  scored = _lanes(weights, stream.num_lanes) > 0
  return jax.tree.map(
    lambda *arrays: _lanes(arrays, stream.num_lanes)[scored], *parts
  )


def _lanes(arrays: Sequence[np.ndarray], num_lanes: int) -> np.ndarray:
  """Joins calls [S, B, T] to lanes [B, steps, T], consecutive runs of text."""
  return np.concatenate(arrays)[:, :num_lanes].swapaxes(0, 1)


def load(config: schema.ExperimentConfig, workdir: str) -> Subject:
  """Loads the checkpoint that `config.eval` names.

  Raises:
    UserError: it was trained with another vocabulary than the data have, or it
      cannot be loaded.
  """
  run_record.check_vocabulary(config.data.dataset_dir, workdir)
  meta = token_file.read_meta(config.data.dataset_dir)
  config = load_lib.with_vocab_size(config, meta)
  model = trained_model.load(config, workdir)
  logging.info("%s", mesh_lib.describe(model.mesh, config.eval.batch_size))
  source = run_record.initialised_from(workdir)
  return Subject(config, *model, meta["unit"], source)


def evaluate_loaded(subject: Subject, workdir: str) -> list[dict]:
  """Evaluates a checkpoint with fixed parameters.

  Returns:
    One card for each memory length and temperature, also written to
    `results/eval_<split>.json` and added to `results/cards.jsonl`, which keeps
    those of earlier calls.
  """
  config, cards = subject.config, []
  trained_model.warn_of_untrained_positions(
    config,
    segment_len=config.eval.context_len + config.eval.segment_len,
    mem_len=max(config.eval.mem_len),
  )
  each = itertools.product(config.eval.mem_len, subject.at_each_temperature())
  with jax.set_mesh(subject.mesh):
    for mem_len, one in each:
      evaluator = Evaluator(one.config, one.mesh, mem_len=mem_len)
      score = evaluator(one.params)
      cards.append(one.card(score, evaluator.file, mem_len))
      cards_lib.log(cards[-1])
  if len(config.eval.temperature) > 1:
    cards_lib.log_best(cards)
  cards_lib.keep(workdir, f"eval_{config.eval.split}", {"cards": cards})
  return cards
