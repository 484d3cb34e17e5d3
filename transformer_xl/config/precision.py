"""The types that a run computes in: JAX's number of bits, and `model.dtype`."""

import contextlib
import os
import time

import jax
from absl import logging

from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.config import rules
from transformer_xl.config import schema

_WRITING_SECONDS = 5.0  # Until another worker has written a word.


def require_32_bits() -> None:
  """Refuses JAX's 64-bit mode, in which some arrays of layers are float64.

  Raises:
    UserError: `jax_enable_x64` is set.
  """
  if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
    raise errors.UserError(
      "models are computed in float32 or bfloat16, and JAX's 64-bit mode makes "
      "some of their arrays float64: unset JAX_ENABLE_X64, or call "
      "jax.config.update('jax_enable_x64', False)."
    )


def dtype_of(model: schema.ModelConfig, workdir: str, mode: str) -> str:
  """The dtype of a model, where `auto` is that of the run or these devices.

  Trials of a comparison have the dtype of the devices that began it.
  """
  if model.dtype != "auto":
    return model.dtype
  if mode == "plan":
    dtype = "bfloat16"  # For TPUs, and for GPUs since Ampere.
  elif mode in rules.TRAIN_VARIANTS:
    dtype = _dtype_before(workdir, mode) or _dtype_of_trials(workdir)
  else:
    dtype = _dtype_before(workdir, mode) or hardware.fast_dtype()
  logging.info("model.dtype=auto is %s.", dtype)
  return dtype


def _dtype_before(workdir: str, mode: str) -> str | None:
  """The dtype that a run began with; None if there was none, or none is known.

  Raises:
    UserError: the record of it is damaged, and the mode will not write another.
  """
  if not os.path.exists(os.path.join(storage.local(workdir), "config.json")):
    return None
  try:
    return load.saved(workdir).model.dtype
  except errors.UserError as error:
    if mode != "train":
      raise
    logging.warning(
      "%s Set --config.model.dtype if the run had another than is fast here.",
      error,
    )
    return None


def _dtype_of_trials(workdir: str) -> str:
  """The dtype of a comparison's trials, which its first worker chooses."""
  folder = os.path.join(storage.absolute(workdir), "results")
  if not storage.is_bucket(folder):
    os.makedirs(folder, exist_ok=True)
  path = os.path.join(folder, "dtype.txt")
  with contextlib.suppress(FileExistsError):  # Another worker was first.
    storage.create_text(path, hardware.fast_dtype())
  logging.info("model.dtype=auto of all trials is in %s.", path)
  end = time.monotonic() + _WRITING_SECONDS
  dtype = storage.read_text(path)
  while not dtype:
    if time.monotonic() > end:
      raise errors.UserError(
        f"{path} is empty, as another worker was killed while it wrote it: "
        "delete that file."
      )
    time.sleep(0.1)
    dtype = storage.read_text(path)
  return dtype
