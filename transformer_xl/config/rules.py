"""Which values a configuration may have, alone and together.

A broken rule is a UserError that names the values and what to set instead.
"""

import itertools
import math
from typing import Any

from transformer_xl import errors
from transformer_xl.config import encodings
from transformer_xl.config import schema

CHOICES = {
  "model.tie_projections": ("none", "all", "all_but_first"),
  "model.encoding": tuple(encodings.FACTS),
  "model.memory_start": ("masked", "zeros"),
  "model.same_length_window": ("mem_len", "mem_len_plus_one"),
  "model.init_style": ("tensorflow", "pytorch"),
  "model.dtype": ("float32", "bfloat16"),
  "model.attention": (
    *("auto", "reference", "head_major", "chunked", "pallas"),
  ),
  "model.remat": ("none", "full", "dots", "attention"),
  "train.loss_on": ("all", "recent_half"),
  "train.optimizer": ("adam", "adamw", "lamb", "sgd"),
  "train.schedule": ("cosine", "inverse_sqrt", "constant"),
  "train.schedule_convention": ("next_step", "tensorflow", "pytorch"),
  "divergence.action": ("stop", "skip", "lower_rate"),
  "eval.parameters": ("raw", "ema", "asgd"),
  "analysis.context": ("tokens", "attention"),
  "eval.memory": ("auto", "hidden", "key_value"),
  "eval.dynamic.kind": ("none", "sgd", "rms"),
  "eval.dynamic.lanes": ("apart", "shared"),
  "score.memory": ("fresh", "carry"),
}
POSITIVE = (
  "model.num_layers",
  "model.model_dim",
  "model.num_heads",
  "model.head_dim",
  "model.ff_dim",
  "model.embed_dim",
  "model.div_val",
  "model.num_positions",
  "train.num_steps",
  "train.batch_size",
  "train.segment_len",
  "train.segments_per_call",
  "train.accumulation_steps",
  "train.log_every_steps",
  "divergence.window",
  "divergence.tries",
  "divergence.rate_factor",
  "eval.batch_size",
  "eval.segment_len",
  "eval.segments_per_call",
  "eval.dynamic.statistics_segments",
  "checkpoint.every_steps",
  "checkpoint.keep_latest",
  "mesh.fsdp",
  "mesh.tensor",
  "generate.num_samples",
  "generate.tokens_per_call",
  "generate.segment_len",
  "score.batch_size",
  "score.segment_len",
  "analysis.context_start",
  "analysis.context_step",
  "analysis.num_tokens",
)
NOT_NEGATIVE = (
  "seed",
  "model.vocab_size",
  "model.scan_unroll",
  "train.mem_len",
  "train.clamp_len",
  "train.warmup_steps",
  "train.learning_rate",
  "train.clip_norm",
  "train.weight_decay",
  "train.activation_penalty",
  "train.temporal_activation_penalty",
  "train.asgd_start_step",
  "train.asgd_patience",
  "train.eval_every_steps",
  "train.eval_mem_len",
  "divergence.spike_nats",
  "eval.clamp_len",
  "eval.cache.size",
  "checkpoint.every_minutes",
  "checkpoint.keep_best",
  "generate.num_tokens",
  "generate.temperature",
  "generate.top_k",
  "generate.no_repeat_ngram",
  "generate.repetition_window",
  "generate.mem_len",
  "score.top_k",
  "score.mem_len",
)
FRACTIONS = (
  "model.dropout_rate",
  "model.input_dropout_rate",
  "model.output_dropout_rate",
  "model.attention_dropout_rate",
  "model.embedding_dropout_rate",
  "model.weight_dropout_rate",
  "train.min_learning_rate_ratio",
  "train.adam_b1",
  "train.adam_b2",
  "train.ema_decay",
  "divergence.rate_factor",
)


def check(config: schema.ExperimentConfig) -> None:
  """Raises a UserError for the first rule that the values break."""
  for name, choices in CHOICES.items():
    _require(name, _get(config, name) in choices, config, f"one of {choices}")
  for name in POSITIVE:
    value = _get(config, name)
    rule = "at least 1" if isinstance(value, int) else "above 0"
    _require(name, value > 0, config, rule)
  for name in NOT_NEGATIVE:
    _require(name, _get(config, name) >= 0, config, "0 or more")
  for name in FRACTIONS:
    value = _get(config, name)
    _require(name, 0 <= value < 1, config, "in [0, 1)")
  _check_model(config.model)
  _check_lengths(config)
  _check_mesh(config)
  _check_schedule(config)
  _check_generate(config)
  _check_average(config)
  _check_test_time(config)
  if config.data.reset_at_documents and config.model.memory_start == "zeros":
    raise errors.UserError(
      "memory cannot be reset inside a segment when empty memory is attended: "
      "set --config.model.memory_start=masked or "
      "--config.data.reset_at_documents=False."
    )


def _check_model(model: schema.ModelConfig) -> None:
  if model.model_dim % 2:
    raise errors.UserError(
      "model.model_dim must be even, for one sine and one cosine a frequency: "
      f"it is {model.model_dim}; try {model.model_dim + 1}."
    )
  ends = (0, *model.cutoffs, *([model.vocab_size] if model.vocab_size else []))
  if any(low >= high for low, high in itertools.pairwise(ends)):
    raise errors.UserError(
      "model.cutoffs must rise between 0 and the vocabulary size: they are "
      f"{model.cutoffs} with model.vocab_size={model.vocab_size}."
    )
  shares = model.cluster_capacities
  if shares and len(shares) != len(model.cutoffs):
    raise errors.UserError(
      "model.cluster_capacities must be () or one share for each tail cluster: "
      f"there are {len(shares)} for model.cutoffs={model.cutoffs}."
    )
  if any(not 0 < share <= 1 for share in shares):
    raise errors.UserError(
      f"model.cluster_capacities must be in (0, 1]: they are {shares}."
    )
  narrowest = model.embed_dim // model.div_val ** len(model.cutoffs)
  if narrowest < 1:
    raise errors.UserError(
      f"model.embed_dim={model.embed_dim} divided {len(model.cutoffs)} times "
      f"by model.div_val={model.div_val} leaves no width; lower div_val."
    )


def _check_lengths(config: schema.ExperimentConfig) -> None:
  if any(length < 0 for length in config.eval.mem_len):
    raise errors.UserError(
      f"eval.mem_len must be 0 or more: it is {config.eval.mem_len}."
    )
  if not config.eval.mem_len:
    raise errors.UserError("eval.mem_len names no length; try (0,).")
  _check_clamp(config)
  lanes, parts = config.train.batch_size, config.train.accumulation_steps
  if lanes % parts:
    raise errors.UserError(
      f"train.batch_size={lanes} must be a multiple of "
      f"train.accumulation_steps={parts}; try "
      f"--config.train.batch_size={_nearest_multiple(lanes, parts)}."
    )


def _check_clamp(config: schema.ExperimentConfig) -> None:
  for name in ("train.clamp_len", "eval.clamp_len"):
    clamps = encodings.FACTS[config.model.encoding].clamps
    if _get(config, name) and not clamps:
      raise errors.UserError(
        f"{name}={_get(config, name)} clamps distances, which "
        f"model.encoding={config.model.encoding} does not encode so; set "
        f"--config.{name}=0."
      )


def _check_mesh(config: schema.ExperimentConfig) -> None:
  """What would be left whole on every device, without a word, is an error."""
  model = config.model
  for axis, divided in (
    ("fsdp", {"model_dim": model.model_dim}),
    ("tensor", {"num_heads": model.num_heads, "ff_dim": model.ff_dim}),
  ):
    parts = getattr(config.mesh, axis)
    if any(size % parts for size in divided.values()):
      legal = _divisors(math.gcd(*divided.values()))
      near = sorted(legal, key=lambda n: abs(n - parts))[:2]
      sizes = " and ".join(f"model.{n}={size}" for n, size in divided.items())
      raise errors.UserError(
        f"mesh.{axis}={parts} must divide {sizes}; the nearest that do are "
        f"{' and '.join(map(str, sorted(near)))}: set --config.mesh.{axis}."
      )


def _check_schedule(config: schema.ExperimentConfig) -> None:
  train, every = config.train, config.train.segments_per_call
  for name, value in (
    ("train.num_steps", train.num_steps),
    ("train.log_every_steps", train.log_every_steps),
    ("train.eval_every_steps", train.eval_every_steps),
    ("checkpoint.every_steps", config.checkpoint.every_steps),
  ):
    if value % every:
      raise errors.UserError(
        f"{name}={value} must be a multiple of train.segments_per_call="
        f"{every}; try --config.{name}={_nearest_multiple(value, every)}."
      )
  if any(length < 1 for length in train.segment_lens):
    raise errors.UserError(
      f"train.segment_lens must be lengths of 1 or more: {train.segment_lens}."
    )
  if train.segment_lens and config.data.rotate_epochs:
    raise errors.UserError(
      "with train.segment_lens every epoch is cut elsewhere already; set "
      "--config.data.rotate_epochs=False."
    )
  if train.warmup_steps and train.warmup_steps >= train.num_steps:
    raise errors.UserError(
      f"train.warmup_steps={train.warmup_steps} must be below "
      f"train.num_steps={train.num_steps}."
    )


def _check_average(config: schema.ExperimentConfig) -> None:
  train, wanted = config.train, config.eval.parameters
  kinds = {
    "train.ema_decay": train.ema_decay,
    "train.asgd_start_step": train.asgd_start_step,
    "train.asgd_patience": train.asgd_patience,
  }
  chosen = [f"{name}={value}" for name, value in kinds.items() if value]
  if len(chosen) > 1:
    raise errors.UserError(
      f"one average of the parameters can be kept, not {' and '.join(chosen)}; "
      "set all but one to 0."
    )
  if train.asgd_patience and not train.eval_every_steps:
    raise errors.UserError(
      f"train.asgd_patience={train.asgd_patience} counts validation losses; "
      "set --config.train.eval_every_steps."
    )
  kind = train.average_kind
  if kind and wanted not in ("raw", kind):
    raise errors.UserError(
      f"eval.parameters={wanted}, but training keeps the average {kind!r}; "
      f"set --config.eval.parameters={kind} or raw."
    )


def _check_generate(config: schema.ExperimentConfig) -> None:
  generate = config.generate
  _require("generate.top_p", 0 < generate.top_p <= 1, config, "in (0, 1]")
  penalty = generate.repetition_penalty
  _require("generate.repetition_penalty", penalty >= 1, config, "1 or more")
  if generate.no_repeat_ngram > generate.repetition_window:
    raise errors.UserError(
      f"generate.no_repeat_ngram={generate.no_repeat_ngram} is looked for in "
      f"generate.repetition_window={generate.repetition_window} tokens; "
      "make the window longer."
    )


def _check_test_time(config: schema.ExperimentConfig) -> None:
  """What evaluation may change while it reads: docs/dynamic.md."""
  evaluation = config.eval
  dynamic, cache = evaluation.dynamic, evaluation.cache
  for name, rule, holds in (
    ("dynamic.learning_rate", "0 or more", lambda value: value >= 0),
    ("dynamic.decay", "0 or more", lambda value: value >= 0),
    ("cache.flatness", "0 or more", lambda value: value >= 0),
    ("cache.share", "in [0, 1)", lambda value: 0 <= value < 1),
  ):
    values = _get(config, f"eval.{name}")
    is_right = len(values) > 0 and all(map(holds, values))
    _require(f"eval.{name}", is_right, config, f"{rule}, one or several")
  _require("eval.dynamic.epsilon", dynamic.epsilon > 0, config, "above 0")
  if dynamic.kind == "none" and not cache.size:
    return
  if evaluation.memory == "key_value":
    raise errors.UserError(
      "cached keys and values are those of parameters that stay, and dynamic "
      "evaluation and the neural cache need hidden states: set "
      "--config.eval.memory=auto."
    )
  if evaluation.split == "test" and evaluation.num_settings > 1:
    raise errors.UserError(
      f"{evaluation.num_settings} settings of eval.dynamic and eval.cache "
      "would be chosen from on the test split: compare them with "
      "--config.eval.split=valid and evaluate one on test."
    )


def _divisors(number: int) -> list[int]:
  small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
  return sorted({*small, *(number // n for n in small)})


def _nearest_multiple(value: int, of: int) -> int:
  return max(1, round(value / of)) * of


def _get(config: schema.ExperimentConfig, name: str) -> Any:
  for part in name.split("."):
    config = getattr(config, part)
  return config


def _require(name, holds, config, rule):
  if not holds:
    raise errors.UserError(
      f"{name} must be {rule}: it is {_get(config, name)!r}; "
      f"set --config.{name}."
    )
