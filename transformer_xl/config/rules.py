"""Rules that combine fields; the rule for one value stands in its declaration.

A broken rule is a UserError that names the values and what to set instead.
"""

import itertools
import math
import re

from transformer_xl import errors
from transformer_xl.config import encodings
from transformer_xl.config import fields
from transformer_xl.config import schema

# Modes that update parameters.
_TRAINING = ("train", "ablation")
# What a setting needs to have an effect: one of these conditions.
_ADAM = tuple(f"train.optimizer={name}" for name in ("adam", "adamw", "lamb"))
_DYNAMIC = ("eval.dynamic.kind=sgd", "eval.dynamic.kind=rms")
_VALIDATION = ("train.eval_every_steps>0",)
NEEDED = {
  "train.weight_decay": ("train.optimizer=adamw", "train.optimizer=lamb"),
  "train.adam_b1": _ADAM,
  "train.adam_b2": _ADAM,
  "train.adam_epsilon": _ADAM,
  "train.min_learning_rate_ratio": ("train.schedule=cosine",),
  "train.decay_steps": ("train.schedule=cosine",),
  "train.penalise_before_dropout": ("train.activation_penalty>0",),
  "train.average_rate_factor": (
    *("train.asgd_start_step>0", "train.asgd_patience>0"),
  ),
  "train.schedule_convention": ("train.warmup_steps>0",),
  "train.eval_mem_len": _VALIDATION,
  "train.log_memory_use": _VALIDATION,
  "checkpoint.keep_best": _VALIDATION,
  "divergence.tries": (
    *("divergence.action=skip", "divergence.action=lower_rate"),
  ),
  "divergence.rate_factor": ("divergence.action=lower_rate",),
  "eval.dynamic.lanes": _DYNAMIC,
  "eval.dynamic.learning_rate": _DYNAMIC,
  "eval.dynamic.decay": _DYNAMIC,
  "eval.dynamic.epsilon": ("eval.dynamic.kind=rms",),
  "eval.dynamic.statistics_segments": ("eval.dynamic.kind=rms",),
  "eval.cache.flatness": ("eval.cache.size>0",),
  "eval.cache.share": ("eval.cache.size>0",),
  "generate.top_k": ("generate.temperature>0",),
  "generate.top_p": ("generate.temperature>0",),
  "generate.repetition_window": (
    *("generate.repetition_penalty>1", "generate.no_repeat_ngram>0"),
  ),
}


def check(config: schema.ExperimentConfig) -> None:
  """Raises a UserError for the first rule that the values break."""
  for declared in schema.FIELDS.values():
    value = fields.get(config, declared.name)
    if declared.rule is not None and not declared.rule.holds(value):
      raise errors.UserError(
        f"{declared.name} must be {declared.rule.text}: it is {value!r}; "
        f"set --config.{declared.name}."
      )
  _check_model(config.model)
  _check_lengths(config)
  _check_mesh(config)
  _check_schedule(config)
  _check_generate(config.generate)
  _check_average(config)
  _check_test_time(config)
  if config.data.reset_at_documents and config.model.memory_start == "zeros":
    raise errors.UserError(
      "memory cannot be reset inside a segment when empty memory is attended: "
      "set --config.model.memory_start=masked or "
      "--config.data.reset_at_documents=False."
    )


def check_command(config: schema.ExperimentConfig, mode: str) -> None:
  """Raises a UserError for a setting that would change nothing.

  For what a person asks for, not for the configurations that programs derive
  from it, where such a setting is harmless.

  Args:
    config: one that `check` accepts.
    mode: of the command.
  """
  for name, needed in NEEDED.items():
    value = fields.get(config, name)
    default = fields.default(config, schema.FIELDS[name])
    # Zero turns off what the setting does, so nothing is lost.
    is_set = value and value != default
    if is_set and not any(_holds(config, condition) for condition in needed):
      raise errors.UserError(
        f"{name}={value} has no effect without {' or '.join(needed)}; set "
        f"that, or --config.{name}={default}."
      )
  train = config.train
  if mode == "train" and train.eval_every_steps:
    _check_no_memory(
      *(config, "eval.context_len", "train.eval_mem_len"),
      (train.eval_mem_len,),
    )
  average, kind = config.eval.parameters, config.train.average_kind
  if mode in _TRAINING and average != "raw" and not kind:
    keeps = {
      "ema": "--config.train.ema_decay",
      "asgd": "--config.train.asgd_start_step or --config.train.asgd_patience",
    }[average]
    raise errors.UserError(
      f"eval.parameters={average}, but training keeps no average of the "
      f"parameters; set {keeps}, or --config.eval.parameters=raw."
    )


def _holds(config: schema.ExperimentConfig, condition: str) -> bool:
  name, operator, value = re.split("([=>])", condition)
  actual = fields.get(config, name)
  return actual > int(value) if operator == ">" else actual == value


def _check_model(model: schema.ModelConfig) -> None:
  if model.model_dim % 2:
    raise errors.UserError(
      "model.model_dim must be even, for a sine and a cosine per frequency: "
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
  narrowest = model.embed_dim // model.div_val ** len(model.cutoffs)
  if narrowest < 1:
    raise errors.UserError(
      f"model.embed_dim={model.embed_dim} divided {len(model.cutoffs)} times "
      f"by model.div_val={model.div_val} leaves no width; set a lower "
      "--config.model.div_val."
    )


def _check_lengths(config: schema.ExperimentConfig) -> None:
  _check_clamp(config)
  _check_without_memory(config)
  lanes, parts = config.train.batch_size, config.train.accumulation_steps
  if lanes % parts:
    raise errors.UserError(
      f"train.batch_size={lanes} must be a multiple of "
      f"train.accumulation_steps={parts}; try "
      f"--config.train.batch_size={_nearest_multiple(lanes, parts)}."
    )


def _check_without_memory(config: schema.ExperimentConfig) -> None:
  """Padding must not be remembered, nor what is read again."""
  train, evaluation = config.train, config.eval
  for name, memory, lengths in (
    ("train.context_len", "train.mem_len", (train.mem_len,)),
    ("train.segment_len_std", "train.mem_len", (train.mem_len,)),
    ("eval.context_len", "eval.mem_len", evaluation.mem_len),
  ):
    _check_no_memory(config, name, memory, lengths)
  reads_again = train.context_len or evaluation.context_len
  if reads_again and config.model.memory_start == "zeros":
    raise errors.UserError(
      "context_len needs a start of the text before which nothing is seen: "
      "set --config.model.memory_start=masked."
    )
  if train.segment_len_std and (train.segment_lens or train.loss_on != "all"):
    raise errors.UserError(
      f"train.segment_len_std={train.segment_len_std:g} draws the lengths, "
      "so set --config.train.segment_lens='()' and "
      "--config.train.loss_on=all."
    )


def _check_no_memory(config, name, memory, lengths) -> None:
  value = fields.get(config, name)
  if value and any(lengths):
    raise errors.UserError(
      f"{name}={value} is for models without memory, but {memory} is "
      f"{max(lengths)}; set --config.{memory}=0 or --config.{name}=0."
    )


def _check_clamp(config: schema.ExperimentConfig) -> None:
  for name in ("train.clamp_len", "eval.clamp_len"):
    length, encoding = fields.get(config, name), config.model.encoding
    if length and not encodings.FACTS[encoding].clamps:
      raise errors.UserError(
        f"{name}={length} clamps distances for model.encoding=relative only, "
        f"but it is {encoding}; set --config.{name}=0."
      )


def _check_mesh(config: schema.ExperimentConfig) -> None:
  """Raises where an axis would silently leave matrices whole."""
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
    ("train.log_every_steps", train.log_every_steps),
    ("train.eval_every_steps", train.eval_every_steps),
    ("checkpoint.every_steps", config.checkpoint.every_steps),
  ):
    if value % every:
      raise errors.UserError(
        f"{name}={value} must be a multiple of train.segments_per_call="
        f"{every}; try --config.{name}={_nearest_multiple(value, every)}."
      )
  varied = train.segment_lens or train.segment_len_std
  if varied and config.data.rotate_epochs:
    raise errors.UserError(
      "lengths that vary already cut every epoch differently, so "
      "data.rotate_epochs has no effect; set --config.data.rotate_epochs=False."
    )
  last = min(train.num_steps, train.decay_steps)
  if train.warmup_steps and train.warmup_steps >= last:
    raise errors.UserError(
      f"train.warmup_steps={train.warmup_steps} must be below "
      f"train.num_steps={train.num_steps} and "
      f"train.decay_steps={train.decay_steps}."
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


def _check_generate(generate: schema.GenerateConfig) -> None:
  if generate.no_repeat_ngram > generate.repetition_window:
    raise errors.UserError(
      f"generate.no_repeat_ngram={generate.no_repeat_ngram} must fit into "
      f"generate.repetition_window={generate.repetition_window}; set "
      f"--config.generate.repetition_window={generate.no_repeat_ngram}."
    )


def _check_test_time(config: schema.ExperimentConfig) -> None:
  """Rules of dynamic evaluation and the neural cache: docs/dynamic.md."""
  evaluation = config.eval
  dynamic, cache = evaluation.dynamic, evaluation.cache
  adapts = dynamic.kind != "none" or cache.size
  if adapts and evaluation.memory == "key_value":
    raise errors.UserError(
      "dynamic evaluation and the neural cache need hidden states in memory, "
      "not keys and values: set --config.eval.memory=auto."
    )
  if evaluation.split == "test" and evaluation.num_settings > 1:
    raise errors.UserError(
      f"{evaluation.num_settings} settings of eval.temperature, eval.dynamic "
      "and eval.cache may not be compared on the test split: compare them with "
      "--config.eval.split=valid and evaluate one on test."
    )


def _divisors(number: int) -> list[int]:
  small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
  return sorted({*small, *(number // n for n in small)})


def _nearest_multiple(value: int, of: int) -> int:
  return max(1, round(value / of)) * of
