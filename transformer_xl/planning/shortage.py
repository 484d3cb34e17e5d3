"""Advice for a device that has run out of memory."""

import contextlib
import itertools

import jax

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.config import rules
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.planning import plan
from transformer_xl.training import programs

_NUM_ALTERNATIVES = 4
# Fields whose smaller values need less memory, by mode, apart from training.
_FIELDS = {
  "generate": ("generate.num_samples", "generate.mem_len"),
  "score": ("score.batch_size", "score.mem_len"),
  "recl": ("eval.batch_size", "eval.segment_len", "analysis.contexts"),
  "attention": ("eval.segment_len", "eval.mem_len"),
  "eval_speed": ("analysis.speed_lens", "eval.segment_len"),
  "ablation": ("eval.batch_size", "analysis.attention_lens"),
}
_EVALUATION = ("eval.batch_size", "eval.segment_len", "eval.mem_len")


def explain(
  config: schema.ExperimentConfig, mode: str, error: BaseException
) -> str | None:
  """Describes an error of a device or a machine without memory.

  Returns:
    What the error says, the memory that an update holds, and settings that
    need less; None if the error has another cause.
  """
  if not errors.is_shortage(error):
    return None
  text = " ".join(str(error).split())
  said = f"a device has too little memory ({text[:200]})"
  names = _FIELDS.get(mode, _EVALUATION)
  fields = ", ".join(f"--config.{name}" for name in names)
  if mode != "train" and mode not in rules.TRAIN_VARIANTS:
    return f"{said}; lower one of {fields}."
  tries = plan.smaller(
    config,
    num_devices=jax.device_count(),
    num_slices=mesh_lib.num_slices(jax.devices()),
  )
  changes = [flags for flags, _ in itertools.islice(tries, _NUM_ALTERNATIVES)]
  changes = changes or ["a lower --config.train.mem_len"]
  needs_less = (
    f"These need less, the smallest change first: {'; or '.join(changes)}."
  )
  if mode in rules.TRAIN_VARIANTS:
    return (
      f"{said}. If a variant was being trained: {needs_less} Use another "
      "--workdir with them, since a folder keeps what it was trained with. If "
      f"a variant was being evaluated: lower one of {fields}."
    )
  if not config.model.vocab_size:
    meta = token_file.read_meta(config.data.dataset_dir)
    config = load.with_vocab_size(config, meta)
  held = ""
  with contextlib.suppress(jax.errors.JaxRuntimeError):
    mesh = programs.make_mesh(config.recipe, config.mesh)
    lowered = plan.lower_updates(
      config.recipe, config.data, mesh, count=config.updates_per_call
    )
    num_bytes = plan.held_bytes(lowered.compile())
    held = f"; an update holds {num_bytes / 2**30:.2f} GiB on each device"
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    held += f", which has {limit / 2**30:.2f} GiB" if limit else ""
  return (
    f"{said}{held}. {needs_less} The same command with one of them resumes "
    "from the last checkpoint."
  )
