"""Which field a person means who writes a name that is none."""

import difflib
import functools

from transformer_xl.config import schema

# Names that other programs have for our fields.
OTHER_NAMES = {
  # Text and memory.
  "bptt": "train.segment_len",
  "tgt_len": "train.segment_len",
  "seq_len": "train.segment_len",
  "seq_length": "train.segment_len",
  "block_size": "train.segment_len",
  "context_length": "train.segment_len",
  "sequence_length": "train.segment_len",
  "max_seq_len": "train.segment_len",
  "n_ctx": "train.segment_len",
  "memory_len": "train.mem_len",
  "memory_length": "train.mem_len",
  "bs": "train.batch_size",
  "bsz": "train.batch_size",
  "batch": "train.batch_size",
  "data_dir": "data.dir",
  "dataset": "data.name",
  # Sizes of the network.
  "n_layer": "model.num_layers",
  "n_layers": "model.num_layers",
  "layer": "model.num_layers",
  "depth": "model.num_layers",
  "d_model": "model.model_dim",
  "n_embd": "model.model_dim",
  "hidden_size": "model.model_dim",
  "width": "model.model_dim",
  "n_head": "model.num_heads",
  "n_heads": "model.num_heads",
  "heads": "model.num_heads",
  "d_head": "model.head_dim",
  "d_inner": "model.ff_dim",
  "d_ff": "model.ff_dim",
  "d_embed": "model.embed_dim",
  "dropout": "model.dropout_rate",
  "dropatt": "model.attention_dropout_rate",
  "untie_r": "model.untie_biases",
  "attn_type": "model.encoding",
  "pre_lnorm": "model.pre_norm",
  "precision": "model.dtype",
  "bf16": "model.dtype",
  "fp16": "model.dtype",
  # Optimizer.
  "lr": "train.learning_rate",
  "min_lr": "train.min_learning_rate_ratio",
  "eta_min": "train.min_learning_rate_ratio",
  "wd": "train.weight_decay",
  "optim": "train.optimizer",
  "scheduler": "train.schedule",
  "warmup": "train.warmup_steps",
  "warmup_iters": "train.warmup_steps",
  "warmup_step": "train.warmup_steps",
  "clip": "train.clip_norm",
  "grad_clip": "train.clip_norm",
  "max_grad_norm": "train.clip_norm",
  "beta2": "train.adam_b2",
  "eps": "train.adam_epsilon",
  "batch_chunk": "train.accumulation_steps",
  "gradient_accumulation_steps": "train.accumulation_steps",
  # How long, and what happens meanwhile.
  "epochs": "train.num_steps",
  "num_epochs": "train.num_steps",
  "max_epochs": "train.num_steps",
  "steps": "train.num_steps",
  "max_step": "train.num_steps",
  "max_steps": "train.num_steps",
  "max_iters": "train.num_steps",
  "iterations": "train.num_steps",
  "log_interval": "train.log_every_steps",
  "eval_interval": "train.eval_every_steps",
  "save_interval": "checkpoint.every_steps",
  "save_steps": "checkpoint.every_steps",
  # Generation.
  "max_new_tokens": "generate.num_tokens",
  "max_tokens": "generate.num_tokens",
  "max_length": "generate.num_tokens",
  "num_return_sequences": "generate.num_samples",
}
# What to do instead of a flag that other programs have and this one lacks.
OTHER_FLAGS = {
  "output_dir": "did you mean --workdir?",
  "out_dir": "did you mean --workdir?",
  "work_dir": "did you mean --workdir?",
  "save_dir": "did you mean --workdir?",
  "model_dir": "did you mean --workdir?",
  "resume": "the same command with the same --workdir resumes a run.",
  "restart": "the same command with the same --workdir resumes a run.",
  "device": "all devices that JAX finds are used; JAX_PLATFORMS=cpu before the "
  "command leaves it the processor alone.",
  "cuda": "all devices that JAX finds are used.",
  "gpu": "all devices that JAX finds are used.",
}

# What other programs call our modes.
OTHER_MODES = {
  "finetune": "train",
  "fit": "train",
  "test": "eval",
  "validate": "eval",
  "evaluate": "eval",
  "infer": "generate",
  "inference": "generate",
  "predict": "generate",
  "sample": "generate",
  "convert": "export",
  "sweep": "study",
}


def called(path: str) -> list[str]:
  """Fields and groups of this name, here or in other programs.

  `path` is one below `config`, or its last part alone. Where the group that it
  names has such a field, the others are left out.
  """
  group, _, name = path.lower().replace("-", "_").rpartition(".")
  ours = OTHER_NAMES.get(name, name).rpartition(".")[2]
  inside = [f for f in _names().get(ours, []) if f.startswith(f"{group}.")]
  return inside or _names().get(name, [])


def meant(path: str) -> list[str]:
  """Fields and groups that a wrong path may stand for; none if nothing is near.

  They are those that are `called` so, or else something similar.
  """
  found = called(path)
  if found:
    return found
  group, _, name = path.lower().replace("-", "_").rpartition(".")
  near = difflib.get_close_matches(name, _names(), n=1)
  return called(f"{group}.{near[0]}") if near else []


def hint_of_flag(flag: str) -> str:
  """How a sentence ends that says that there is no such flag."""
  fields = called(flag)
  if fields:
    return f"did you mean {' or '.join(f'--config.{f}' for f in fields)}?"
  name = flag.lower().replace("-", "_")
  return OTHER_FLAGS.get(name, "--help lists the flags.")


def hint(path: str) -> str:
  """How a sentence ends that says that there is no such field."""
  found = meant(path)
  if not found:
    return "; --help=all lists the fields."
  names = " or ".join(f"config.{field}" for field in found)
  if OTHER_NAMES.get(path.rpartition(".")[2]) == found[0]:
    return f"; did you mean {names}? {schema.all_fields()[found[0]].remark}"
  return f"; did you mean {names}?"


def _names() -> dict[str, list[str]]:
  """The fields and groups that each name without its group may stand for."""
  return _names_in(tuple(schema.all_fields()))


@functools.lru_cache(maxsize=1)
def _names_in(paths: tuple[str, ...]) -> dict[str, list[str]]:
  """The fields of `paths`, and groups, that each name may stand for."""
  names: dict[str, list[str]] = {}
  for field in paths:
    group, _, name = field.rpartition(".")
    names.setdefault(name, []).append(field)
    if group:
      names[group.rpartition(".")[2]] = [group]
  for name, field in OTHER_NAMES.items():
    names.setdefault(name, []).append(field)
  return names
