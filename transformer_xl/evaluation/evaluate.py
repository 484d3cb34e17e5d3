"""Exact negative log-likelihood of a split.

Every token is predicted exactly once, except the first of the split, which has
no context. Sums are float32 within a call and float64 across calls.
"""

import itertools
import os
import time
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
from absl import logging

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import scorer
from transformer_xl.evaluation import units
from transformer_xl.model import transformer_xl
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model


class Score(NamedTuple):
  """The loss of a split."""

  nll: float  # Sum, in nats.
  num_tokens: int
  seconds: float  # Excludes compilation.


def open_stream(
  config: schema.ExperimentConfig, *, split: str, mem_len: int
) -> streams.EvalStream:
  """The segments that an evaluation reads, including its warm-up."""
  warmup = config.eval.warmup_len
  return streams.EvalStream(
    token_file.open_split(config.data.dataset_dir, split),
    num_lanes=config.eval.batch_size,
    segment_len=config.eval.segment_len,
    warmup_len=mem_len if warmup < 0 else warmup,
    resets=streams.reset_rule(config),
    context_len=config.eval.context_len,
  )


class Evaluator:
  """Scores one split at one memory length and temperature; compiles once."""

  def __init__(
    self,
    config: schema.ExperimentConfig,
    mesh: jax.sharding.Mesh,
    *,
    split: str,
    mem_len: int,
    temperature: float = 1.0,
  ):
    self._config, self._mesh = config, mesh
    self._is_compiled = False
    self._stream = open_stream(config, split=split, mem_len=mem_len)
    self.file = self._stream.file
    self._scorer = scorer.Scorer(
      config, mesh, mem_len=mem_len, temperature=temperature
    )

  def __call__(self, params: shapes.PyTree) -> Score:
    """Scores the whole split."""
    score = self.score_until(params, should_stop=lambda: False)
    assert score is not None
    return score

  def score_until(
    self, params: shapes.PyTree, *, should_stop: Callable[[], bool]
  ) -> Score | None:
    """Scores the whole split; None if `should_stop` holds before its end."""
    count = self._config.eval.segments_per_call
    frozen = self._scorer.freeze(params)
    memory, parts = self._scorer.start(frozen), []
    if not self._is_compiled:
      # Compiles with a call past the end, in which every weight is 0.
      self._run(frozen, self._stream.num_steps, count, memory)
      memory = self._scorer.start(frozen)
      self._is_compiled = True
    start = time.perf_counter()
    for step in range(0, self._stream.num_steps, count):
      if should_stop():
        return None
      memory, sums = self._run(frozen, step, count, memory)
      parts.append(sums)
    parts = jax.device_get(parts)
    return Score(
      nll=sum(float(sums.nll) for sums in parts),
      num_tokens=round(sum(float(sums.num_tokens) for sums in parts)),
      seconds=time.perf_counter() - start,
    )

  def _run(self, frozen, step, count, memory):
    segments = streams.device_segments(
      self._stream, step, count, mesh_lib.segments(self._mesh)
    )
    return self._scorer.score(frozen, memory, segments)


def card(
  score: Score,
  config: schema.ExperimentConfig,
  *,
  split: str,
  mem_len: int,
  temperature: float = 1.0,
  unit: str,
  file: token_file.TokenFile,
  checkpoint_step: int,
  num_parameters: int,
) -> dict[str, Any]:
  """The evaluation card: a result with all settings that it depends on.

  `bits_per_character` is null unless tokens are characters or bytes.
  `bits_per_byte` and `word_perplexity` use the size of the original text, so
  they compare models with different vocabularies. `dataset_sha256` is that of
  the split's token file.
  """
  nll, meta = score.nll / score.num_tokens, file.meta
  has_characters = unit in ("byte", "character")
  return {
    "dataset": config.data.name,
    "dataset_sha256": file.sha256,
    "split": split,
    "num_tokens": score.num_tokens,
    "nll": nll,
    "perplexity": units.perplexity(nll),
    "bits_per_character": units.bits(nll) if has_characters else None,
    "bits_per_byte": units.bits(score.nll) / meta["num_bytes"],
    "word_perplexity": units.perplexity(score.nll / meta["num_words"]),
    "segment_len": config.eval.segment_len,
    "context_len": config.eval.context_len,
    "mem_len": mem_len,
    "temperature": temperature,
    "clamp_len": config.eval.clamp_len,
    "same_length": config.eval.same_length,
    "memory_start": config.model.memory_start,
    "batch_size": config.eval.batch_size,
    "warmup_len": config.eval.warmup_len,
    "parameters": config.eval.parameters,
    "dtype": config.model.dtype,
    "checkpoint_step": checkpoint_step,
    "num_parameters": num_parameters,
    "seconds": score.seconds,
    "tokens_per_second": score.num_tokens / score.seconds,
  }


class Subject(NamedTuple):
  """A loaded checkpoint to evaluate."""

  config: schema.ExperimentConfig
  mesh: jax.sharding.Mesh
  params: shapes.PyTree
  step: int
  unit: str  # What a token is: "word", "character", "byte" or other.

  def card(
    self,
    score: Score,
    file: token_file.TokenFile,
    *,
    mem_len: int,
    temperature: float,
  ) -> dict:
    """The card of a score on `config.eval.split`."""
    return card(
      score,
      self.config,
      split=self.config.eval.split,
      mem_len=mem_len,
      temperature=temperature,
      unit=self.unit,
      file=file,
      checkpoint_step=self.step,
      num_parameters=transformer_xl.num_parameters(self.params),
    )


def load(config: schema.ExperimentConfig, workdir: str) -> Subject:
  """Loads the checkpoint that `config.eval` names.

  Raises:
    UserError: it was trained with another vocabulary than the data have, or it
      cannot be loaded.
  """
  run_record.check_vocabulary(config.data.dataset_dir, workdir)
  meta = token_file.read_meta(config.data.dataset_dir)
  config = load_lib.with_vocab_size(config, meta)
  model = trained_model.load(config, workdir, lanes=(config.eval.batch_size,))
  return Subject(config, *model, meta["unit"])


def evaluate_checkpoint(
  config: schema.ExperimentConfig, workdir: str
) -> list[dict]:
  """Evaluates a checkpoint at each memory length and temperature.

  Returns:
    One card for each of them, also written to `results/eval_<split>.json`, and
    added to `results/cards.jsonl`, which keeps those of earlier calls.
  """
  return evaluate_loaded(load(config, workdir), workdir)


def evaluate_loaded(subject: Subject, workdir: str) -> list[dict]:
  """`evaluate_checkpoint` for a loaded checkpoint."""
  config, cards = subject.config, []
  split = config.eval.split
  with jax.set_mesh(subject.mesh):
    for setting in settings(config.eval):
      evaluator = Evaluator(config, subject.mesh, split=split, **setting)
      score = evaluator(subject.params)
      cards.append(subject.card(score, evaluator.file, **setting))
      log_card(cards[-1])
  keep_cards(workdir, f"eval_{split}", {"cards": cards})
  return cards


def settings(config: schema.EvalConfig) -> list[dict[str, Any]]:
  """Each memory length with each temperature, by name."""
  pairs = itertools.product(config.mem_len, config.temperature)
  return [{"mem_len": length, "temperature": heat} for length, heat in pairs]


def keep_cards(workdir: str, name: str, result: dict[str, Any]) -> None:
  """Writes `results/<name>.json`; adds its cards to `results/cards.jsonl`."""
  folder = os.path.join(workdir, "results")
  metrics_log.append_lines(os.path.join(folder, "cards.jsonl"), result["cards"])
  metrics_log.write_json(os.path.join(folder, f"{name}.json"), result)


def log_card(values: dict[str, Any]) -> None:
  """Prints a result with the settings that it depends on."""
  bpc = values["bits_per_character"]
  logging.info(
    "%s %s: nll %.4f  perplexity %.3f%s over %d tokens  [segment %d, memory "
    "%d, clamp %d, same_length %s, start %s, batch %d, %s, step %d%s]",
    values["dataset"],
    values["split"],
    values["nll"],
    values["perplexity"],
    "" if bpc is None else f"  bits per character {bpc:.4f}",
    values["num_tokens"],
    values["segment_len"],
    values["mem_len"],
    values["clamp_len"],
    values["same_length"],
    values["memory_start"],
    values["batch_size"],
    values["dtype"],
    values["checkpoint_step"],
    "".join(
      f", {name} {values[name]:g}"
      for name, usual in (("context_len", 0), ("temperature", 1))
      if values[name] != usual
    ),
  )
