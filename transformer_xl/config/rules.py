"""Rules that combine fields; the rule for one value stands in its declaration.

A broken rule is a UserError that names the values and what to set instead.
"""

import itertools
import math

from absl import logging

from transformer_xl import errors
from transformer_xl.config import layer_rules
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.config import training_fields

# Modes that train variants of the configuration and compare them.
TRAIN_VARIANTS = ("ablation", "paper", "study")
# Modes whose results state no temperature.
_AT_TEMPERATURE_1 = ("ablation", "attention", "recall", "recl", "study")
# Modes whose losses are of fixed parameters alone.
_WITH_FIXED_PARAMETERS = ("ablation", "recall", "recl", "study")
# Settings without a memory: padding must not be remembered, nor what is read
# again.
_WITHOUT_MEMORY = {
  "train.context_len": "train.mem_len",
  "train.segment_len_std": "train.mem_len",
  "eval.context_len": "eval.mem_len",
}
# Settings of attention to tokens, which other layers have no use for.
_OF_ATTENTION = (
  "model.num_kv_heads",
  "model.qk_norm",
  "model.projection_dropout_rate",
  "model.attention_dropout_rate",
  "train.clamp_len",
  "train.mem_len_low",
  "train.same_length",
)
# What makes training keep an average of the parameters.
_AVERAGES = {"ema": "train.ema_decay", "asgd": "train.asgd_start_step"}


def check(config: schema.ExperimentConfig) -> None:
  """Raises a UserError for the first rule that the values break."""
  for name, declared in schema.all_fields().items():
    value = config.value_of(name)
    if declared.rule is not None and not declared.rule.holds(value):
      raise errors.UserError(
        f"{name} must be {declared.rule.text}: it is {value!r}; set "
        f"--config.{name}."
      )
  for name, memory in _WITHOUT_MEMORY.items():
    for each in (memory, "model.num_memory_tokens"):
      _check_no_memory(name, config.value_of(name), each, config.value_of(each))
  layer_rules.check(config.model)
  layer_rules.check_memory_tokens(config.model, config.train)
  _check_model(config.model)
  _check_clamps(config.model, config.train, config.eval)
  _check_mesh(config.model, config.mesh)
  _check_training(config.train)
  _check_reading(config.model, config.data, config.train, config.eval)
  _check_average(config.train, config.eval)
  _check_test_time(config.eval)


def check_command(config: schema.ExperimentConfig, mode: str) -> None:
  """Raises a UserError for a configuration that a mode cannot serve.

  Training asks for the modes of `train.finish_with`, too. Warns of settings
  without effect. This is for what a person asks for, not for the configurations
  that programs derive from it.
  """
  idle = {
    **_idle_in_training(config.train),
    **_idle_in_model(config.model),
    **_idle_in_evaluation(config.eval),
    **_idle_in_generation(config.generate),
  }
  if mode == "train":  # Variants may have other layers and encodings.
    idle |= _fields_of_other_layers(config.model)
  for name, needed in idle.items():
    if config.is_set(name):
      logging.warning(
        "%s=%s has no effect without %s.", name, config.value_of(name), needed
      )
  if mode == "train":
    _warn_of_idle_updates(config.train)
  recipe = config.recipe
  scoring = config.scoring
  _check_mode(mode, f"--mode={mode}", recipe, scoring, config.generate)
  if mode in TRAIN_VARIANTS:
    _check_checkpoint(config.train, config.eval, f"--mode={mode}")
  if mode == "train" and config.train.finish_with:
    _check_checkpoint(config.train, config.eval, "train.finish_with")
    for later in config.train.finish_with:
      what = f"{later} in train.finish_with"
      _check_mode(later, what, recipe, scoring, config.generate)


def _warn_of_idle_updates(train: training_fields.TrainConfig) -> None:
  """Warns of a learning rate that is 0 before the end of training."""
  num_idle = train.num_steps - train.decay_steps
  decays = "decay_steps" in registry.schedules[train.schedule].uses
  decays_to_zero = decays and not train.min_learning_rate_ratio
  if decays_to_zero and num_idle > 0:
    logging.warning(
      "The learning rate of the last %d updates is 0, since "
      "train.decay_steps=%d is below train.num_steps=%d; set "
      "--config.train.decay_steps=%d.",
      num_idle,
      train.decay_steps,
      train.num_steps,
      train.num_steps,
    )


def _check_checkpoint(
  train: schema.TrainConfig, evaluation: schema.EvalConfig, what: str
) -> None:
  """Raises a UserError for a checkpoint that training will not make.

  Errors call what would read it `what`.
  """
  if evaluation.checkpoint == "best" and not train.eval_every_steps:
    raise errors.UserError(
      f"{what} would read eval.checkpoint=best, but no checkpoint is validated,"
      " since train.eval_every_steps is 0; set"
      " --config.eval.checkpoint=latest, or --config.train.eval_every_steps."
    )


def _check_mode(
  mode: str,
  what: str,
  recipe: schema.Recipe,
  scoring: schema.Scoring,
  generation: schema.GenerateConfig,
) -> None:
  """Raises a UserError for what a mode, which errors call `what`, needs."""
  train = recipe.train
  evaluation = scoring.eval
  if mode == "generate" and generation.prompt_file and generation.prompt_split:
    raise errors.UserError(
      f"{what} continues one prompt, and generate.prompt_file is "
      f"{generation.prompt_file} beside generate.prompt_split="
      f"{generation.prompt_split}; set one of them to nothing, as in "
      "--config.generate.prompt_split=."
    )
  if mode == "attention":
    layer_rules.require_attention(recipe.model, what)
  if mode in ("ablation", "eval_speed"):
    layer_rules.require_full_memory(recipe.model, what)

  if mode in ("recl", "ablation") and scoring.data.targets != "all":
    raise errors.UserError(
      f"{what} measures the loss of all tokens, and data.targets is "
      f"{scoring.data.targets}; set --config.data.targets=all."
    )

  if mode in _AT_TEMPERATURE_1 and evaluation.temperature != (1.0,):
    raise errors.UserError(
      f"{what} has temperature 1, and eval.temperature is "
      f"{evaluation.temperature}; set --config.eval.temperature=1.0."
    )
  if mode in _WITH_FIXED_PARAMETERS:
    adapting = {
      "eval.dynamic.kind": (evaluation.dynamic.kind, "none"),
      "eval.cache.size": (evaluation.cache.size, 0),
    }
    for name, (value, fixed) in adapting.items():
      if value != fixed:
        raise errors.UserError(
          f"{what} evaluates with fixed parameters, and {name} is {value}; "
          f"set --config.{name}={fixed}."
        )

  if mode != "train" and mode not in TRAIN_VARIANTS:
    return
  if train.eval_every_steps:
    _check_no_memory(
      "eval.context_len",
      evaluation.context_len,
      "train.mem_len",
      train.mem_len,
    )
    if train.log_memory_use and not train.mem_len:
      raise errors.UserError(
        "train.log_memory_use needs a memory: train.mem_len is 0; set "
        "--config.train.log_memory_use=False."
      )
    if train.log_memory_use:
      layer_rules.require_attention(recipe.model, "train.log_memory_use")
  average = evaluation.parameters
  if average != "raw" and not train.average_kind:
    raise errors.UserError(
      f"eval.parameters={average}, but training keeps no average of the "
      f"parameters; set --config.{_AVERAGES[average]}, or "
      "--config.eval.parameters=raw."
    )


def _idle_in_training(train: schema.TrainConfig) -> dict[str, str]:
  """Fields of training that change nothing, with what each of them needs."""
  idle: dict[str, str] = {}
  if not train.init_from:
    idle["train.init_parameters"] = "train.init_from"
    idle["train.init_checkpoint"] = "train.init_from"
    idle["train.init_rest"] = "train.init_from"
  if not train.lora.rank:
    idle["train.lora.alpha"] = "train.lora.rank"
    idle["train.lora.targets"] = "train.lora.rank"
  idle |= _fields_of_others(registry.optimizers, train.optimizer)
  idle |= _fields_of_others(registry.schedules, train.schedule)
  if not train.asgd_start_step:
    idle["train.average_rate_factor"] = "train.asgd_start_step"
  elif train.asgd_start_step >= train.num_steps:
    idle["train.asgd_start_step"] = "train.num_steps above it"
    idle["train.average_rate_factor"] = (
      "train.asgd_start_step below train.num_steps"
    )
  if not train.mem_len:
    idle["train.mem_len_low"] = "train.mem_len"
  if not train.eval_every_steps:
    idle["train.log_memory_use"] = "train.eval_every_steps"
  return idle


def _idle_in_model(model: schema.ModelConfig) -> dict[str, str]:
  """Fields of the model that change nothing, with what each of them needs."""
  idle = {}
  if model.auxiliary.num_targets == 1:
    idle["model.auxiliary.target_weight"] = "model.auxiliary.num_targets"
  if model.num_layers == 1:
    idle["model.auxiliary.layers"] = "model.num_layers above 1"
  return idle


def _idle_in_evaluation(evaluation: schema.EvalConfig) -> dict[str, str]:
  """Fields of evaluation that change nothing, with what each of them needs."""
  idle = {}
  if evaluation.dynamic.kind == "none":
    idle["eval.dynamic.lanes"] = "eval.dynamic.kind"
    idle["eval.dynamic.learning_rate"] = "eval.dynamic.kind"
    idle["eval.dynamic.decay"] = "eval.dynamic.kind"
  if not evaluation.cache.size:
    idle["eval.cache.flatness"] = "eval.cache.size"
    idle["eval.cache.share"] = "eval.cache.size"
  return idle


def _idle_in_generation(generate: schema.GenerateConfig) -> dict[str, str]:
  """Fields of generation that change nothing, with what each of them needs."""
  idle = {}
  if not generate.prompt_split:
    idle["generate.prompt_start"] = "generate.prompt_split"
    idle["generate.prompt_len"] = "generate.prompt_split"
  if generate.temperature == 0:
    idle["generate.top_k"] = "generate.temperature above 0"
    idle["generate.top_p"] = "generate.temperature above 0"
  return idle


def _fields_of_others(
  parts: registry.Optimizers | registry.Schedules, chosen: str
) -> dict[str, str]:
  """Fields of `train` that only others than the chosen one read.

  Each has what it needs, as a user would set it.
  """
  readers: dict[str, list[str]] = {}
  for name, part in parts.items():
    own = part.Fields.__dataclass_fields__ if part.Fields else ()
    for field in (*part.uses, *(f"{name}.{field}" for field in own)):
      readers.setdefault(field, []).append(name)
  return {
    f"train.{field}": f"train.{parts.kind}={_any_of(names)}"
    for field, names in readers.items()
    if chosen not in names
  }


def _any_of(names: list[str]) -> str:
  """Names as a sentence lists them: "a, b or c"."""
  *names, last = names
  return f"{', '.join(names)} or {last}" if names else last


def _fields_of_other_layers(model: schema.ModelConfig) -> dict[str, str]:
  """Fields of what no layer of a model has, and what they need."""
  idle = {}
  if not model.has_attention:
    for name in _OF_ATTENTION:
      idle[name] = "a layer that attends in model.layers"
  encodings = registry.encodings
  if not encodings[model.encoding].has_table:
    tables = [name for name, kind in encodings.items() if kind.has_table]
    idle["model.num_positions"] = f"model.encoding={_any_of(tables)}"
  own_of_mixers = registry.mixers.groups()
  own_of_encodings = encodings.groups()
  for name in schema.all_fields():
    owner = name.removeprefix("model.").partition(".")[0]
    if owner in own_of_mixers and owner not in model.mixers:
      idle[name] = f"{owner} in model.layers"
    if owner in own_of_encodings and owner != model.encoding:
      idle[name] = f"model.encoding={owner}"
  return idle


def _check_no_memory(
  name: str, value: float, memory: str, length: int | tuple[int, ...]
) -> None:
  if value and length not in (0, (0,)):
    raise errors.UserError(
      f"{name}={value} is for models without memory, but {memory} is "
      f"{length}; set --config.{memory}=0 or --config.{name}=0."
    )


def _check_model(model: schema.ModelConfig) -> None:
  if model.model_dim % 2:
    raise errors.UserError(
      "model.model_dim must be even, for a sine and a cosine per frequency: "
      f"it is {model.model_dim}; try {model.model_dim + 1}."
    )
  ends = (0, *model.cutoffs, model.vocab_size or math.inf)
  if any(low >= high for low, high in itertools.pairwise(ends)):
    raise errors.UserError(
      "model.cutoffs must rise between 0 and the vocabulary size: they are "
      f"{model.cutoffs} with model.vocab_size={model.vocab_size}."
    )
  shares = model.cluster_capacities
  tails = len(model.cutoffs)
  if shares and len(shares) != tails:
    raise errors.UserError(
      "model.cluster_capacities must be () or one share for each tail cluster: "
      f"there are {len(shares)} for model.cutoffs={model.cutoffs}."
    )
  if model.embed_dim < model.div_val**tails:
    raise errors.UserError(
      f"model.embed_dim={model.embed_dim} divided {tails} times by model."
      f"div_val={model.div_val} leaves no width; set a lower "
      "--config.model.div_val."
    )
  if model.num_heads % model.num_kv_heads:
    raise errors.UserError(
      f"model.num_kv_heads={model.num_kv_heads} must divide "
      f"model.num_heads={model.num_heads}: set --config.model.num_kv_heads."
    )
  encoding = registry.encodings[model.encoding]
  if encoding.rotates and model.head_dim % 2:
    raise errors.UserError(
      f"model.head_dim must be even for model.encoding={model.encoding}, which "
      f"rotates pairs of channels: it is {model.head_dim}; try "
      f"{model.head_dim + 1}."
    )
  encoding.check(model)
  for name in sorted(model.mixers):
    registry.mixers[name].check(model)


def _check_clamps(
  model: schema.ModelConfig,
  train: schema.TrainConfig,
  evaluation: schema.EvalConfig,
) -> None:
  """Raises where distances are to be clamped and the encoding has none."""
  if registry.encodings[model.encoding].clamps:
    return
  lengths = {
    "train.clamp_len": train.clamp_len,
    "eval.clamp_len": evaluation.clamp_len,
  }
  for name, length in lengths.items():
    if length:
      raise errors.UserError(
        f"{name}={length} clamps distances for relative encodings only, "
        f"but model.encoding is {model.encoding}; set --config.{name}=0."
      )


def _check_mesh(model: schema.ModelConfig, mesh: schema.MeshConfig) -> None:
  """Raises where an axis would silently leave matrices whole."""
  heads = ["num_heads"]
  if model.num_kv_heads != model.num_heads:
    heads = ["num_kv_heads"]  # They divide the others.
  for axis, names in (
    ("fsdp", ["model_dim"]),
    ("tensor", [*heads, "ff_dim"]),
  ):
    sizes = {f"model.{name}": getattr(model, name) for name in names}
    parts = getattr(mesh, axis)
    common = math.gcd(*sizes.values())
    if common % parts:  # -1 divides everything.
      small = [n for n in range(1, math.isqrt(common) + 1) if common % n == 0]
      legal = {*small, *(common // n for n in small)}
      near = sorted(sorted(legal), key=lambda n: abs(n - parts))[:2]
      raise errors.UserError(
        f"mesh.{axis}={parts} must divide "
        + " and ".join(f"{name}={size}" for name, size in sizes.items())
        + f"; the nearest that do are {' and '.join(map(str, sorted(near)))}: "
        f"set --config.mesh.{axis}."
      )


def _check_training(train: schema.TrainConfig) -> None:
  parts = train.accumulation_steps
  if train.batch_size % parts:
    near = max(1, round(train.batch_size / parts)) * parts
    raise errors.UserError(
      f"train.batch_size={train.batch_size} must be a multiple of "
      f"train.accumulation_steps={parts}; try "
      f"--config.train.batch_size={near}."
    )
  if train.segment_len_std and train.loss_on != "all":
    raise errors.UserError(
      f"train.segment_len_std={train.segment_len_std:g} draws the lengths, so "
      f"train.loss_on={train.loss_on} has no fixed half; set "
      "--config.train.loss_on=all."
    )
  if train.mem_len and train.mem_len_low > train.mem_len:
    raise errors.UserError(
      f"train.mem_len_low={train.mem_len_low} must be at most train.mem_len="
      f"{train.mem_len}, between which the memory of an update is drawn; set "
      f"--config.train.mem_len_low={train.mem_len} or --config.train.mem_len."
    )
  if train.lora.rank and not train.init_from:
    raise errors.UserError(
      f"train.lora.rank={train.lora.rank} adds adapters to the parameters of "
      "another run or an import: name it, --config.train.init_from=FOLDER, or "
      "set --config.train.lora.rank=0."
    )
  if train.lora.rank and not train.lora.targets:
    raise errors.UserError(
      f"train.lora.rank={train.lora.rank} needs matrices, and "
      "train.lora.targets is (): name some, "
      "--config.train.lora.targets=\"('query','value')\"."
    )
  last = min(train.num_steps, train.decay_steps)
  if train.warmup_steps and train.warmup_steps >= last:
    raise errors.UserError(
      f"train.warmup_steps={train.warmup_steps} must be below "
      f"train.num_steps={train.num_steps} and "
      f"train.decay_steps={train.decay_steps}; set "
      f"--config.train.warmup_steps={last // 10}."
    )
  if train.ema_decay and train.asgd_start_step:
    raise errors.UserError(
      "one average of the parameters can be kept, not train.ema_decay="
      f"{train.ema_decay} and train.asgd_start_step={train.asgd_start_step}; "
      "set one of them to 0."
    )


def _check_reading(
  model: schema.ModelConfig,
  data: schema.DataConfig,
  train: schema.TrainConfig,
  evaluation: schema.EvalConfig,
) -> None:
  """Raises where a text cannot be read by a model as it is to be."""
  if train.mem_len and train.mem_len_low >= 0:
    layer_rules.require_memory_of_tokens(model, "train.mem_len_low")
  num_targets = model.auxiliary.num_targets
  if num_targets > train.segment_len:
    raise errors.UserError(
      f"model.auxiliary.num_targets={num_targets} must be at most train."
      f"segment_len={train.segment_len}, since targets beyond the segment are "
      "not read; set --config.model.auxiliary.num_targets="
      f"{train.segment_len}."
    )
  reads_again = train.context_len or evaluation.context_len
  if reads_again and model.memory_start == "zeros":
    raise errors.UserError(
      "context_len needs a start of the text before which nothing is seen: "
      "set --config.model.memory_start=masked."
    )
  if data.targets == "answers" and train.segment_len_std:
    raise errors.UserError(
      "data.targets=answers needs segments of one length: set "
      "--config.train.segment_len_std=0."
    )
  if data.reset_at_documents and model.memory_start == "zeros":
    raise errors.UserError(
      "memory cannot be reset inside a segment when empty memory is attended: "
      "set --config.model.memory_start=masked or "
      "--config.data.reset_at_documents=False."
    )


def _check_average(
  train: schema.TrainConfig, evaluation: schema.EvalConfig
) -> None:
  """Raises if another average is to be evaluated than training keeps."""
  kind = train.average_kind
  wanted = evaluation.parameters
  if kind and wanted not in ("raw", kind):
    raise errors.UserError(
      f"eval.parameters={wanted}, but training keeps the average {kind!r}; "
      f"set --config.eval.parameters={kind} or raw."
    )


def _check_test_time(evaluation: schema.EvalConfig) -> None:
  """Rules of dynamic evaluation, cache and temperature: docs/dynamic.md."""
  adapts = evaluation.dynamic.kind != "none" or evaluation.cache.size
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
