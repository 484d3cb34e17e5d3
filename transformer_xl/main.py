"""Command line: flags, a log of the devices, and dispatch on --mode."""

import functools
import importlib
import logging as stdlib_logging
import os
import re
import sys
from collections.abc import Callable
from typing import Any
from typing import NoReturn

from absl import app
from absl import flags
from absl import logging
from ml_collections import config_flags

from transformer_xl import errors

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "File in experiments/, with --config.name=value overrides."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder for checkpoints, logs and results."
)
# Modes that are modules of `analysis/`.
_ANALYSES = {
  "ablation": "ablation",
  "attention": "attention_maps",
  "eval_speed": "eval_speed",
  "recl": "recl",
}
_MODE = flags.DEFINE_enum(
  "mode",
  "train",
  ["train", "eval", "generate", "score", "plan", *_ANALYSES],
  "What to do.",
)
_TOPOLOGY = flags.DEFINE_string(
  "topology", "v5e:4x4", "TPU slice that --mode=plan compiles for."
)
_MULTIHOST = flags.DEFINE_bool(
  "multihost", False, "One of several hosts that find each other (Cloud TPU)."
)
_COORDINATOR = flags.DEFINE_string(
  "coordinator", None, "HOST:PORT of the first process, where none is found."
)
_PROCESSES = flags.DEFINE_integer("num_processes", None, "With --coordinator.")
_PROCESS = flags.DEFINE_integer("process_id", None, "With --coordinator.")


def main(argv: list[str]) -> None:
  """Runs one mode."""
  del argv
  import jax  # After the flags, so that --help is quick.

  from transformer_xl.config import load
  from transformer_xl.planning import topology

  if _MODE.value == "plan":
    topology.compile_only()

  logging.get_absl_handler().addFilter(_is_not_noise)
  config = load.from_config_dict(_CONFIG.value)
  workdir = _workdir()
  for name, path in (
    ("workdir", workdir),
    ("config.data.dir", config.data.dir),
  ):
    _require_folder(name, path)
  _keep_compiled(workdir)
  if _MULTIHOST.value or _COORDINATOR.value:
    jax.distributed.initialize(
      _COORDINATOR.value, _PROCESSES.value, _PROCESS.value
    )
  logging.info(
    "%d x %s, process %d of %d.",
    jax.device_count(),
    jax.devices()[0].device_kind,
    jax.process_index(),
    jax.process_count(),
  )
  if _MODE.value == "train" and config.data.prepare:
    _prepare_data(config.data)
  if _MODE.value != "train":
    _run(_MODE.value, config, workdir)
  elif _run("train", config, workdir):
    for mode in config.train.finish_with:
      _run(mode, config, workdir)


def _prepare_data(data) -> None:
  """Prepares a dataset that is missing, in the first process for all."""
  import jax
  from jax.experimental import multihost_utils

  missing = not os.path.exists(os.path.join(data.dataset_dir, "meta.json"))
  if missing and jax.process_index() == 0:
    from data_prep import preparation  # Only this needs its libraries.

    logging.info("Preparing %s in %s.", data.name, data.dir)
    preparation.prepare(dataset=data.name, data_dir=data.dir)
  multihost_utils.sync_global_devices("data is prepared")


def _run(mode: str, config, workdir: str):
  if mode in _ANALYSES:  # Only they need the library that draws.
    name = f"transformer_xl.analysis.{_ANALYSES[mode]}"
    return importlib.import_module(name).run(config, workdir)
  from transformer_xl.evaluation.dynamic import evaluate as dynamic_evaluate
  from transformer_xl.planning import plan
  from transformer_xl.text import generate
  from transformer_xl.text import score
  from transformer_xl.training import loop

  modes: dict[str, Callable[..., Any]] = {
    "train": loop.train,
    "eval": dynamic_evaluate.run,
    "generate": generate.run,
    "score": score.run,
    "plan": functools.partial(plan.run, topology=_TOPOLOGY.value),
  }
  return modes[mode](config, workdir)


def _workdir() -> str:
  """--workdir, or the one that --config=experiments/saved.py:WORKDIR names."""
  if _WORKDIR.value:
    return _WORKDIR.value
  name = config_flags.get_config_filename(flags.FLAGS["config"])
  _, found, workdir = name.partition("saved.py:")
  if not found:
    raise errors.UserError(
      "a run needs a folder to write to: set --workdir=FOLDER."
    )
  return workdir


def _keep_compiled(workdir: str) -> None:
  """Compiled programs go beside the workdir, or where the environment says.

  Not those for other devices than ours: JAX could write but not read them.
  """
  if _MODE.value == "plan" or "JAX_COMPILATION_CACHE_DIR" in os.environ:
    return
  import jax

  parent = os.path.dirname(os.path.abspath(workdir))
  cache = os.path.join(parent, ".jax_cache")
  jax.config.update("jax_compilation_cache_dir", cache)


def _require_folder(name: str, path: str) -> None:
  """Buckets are reached as folders; os.path would make one named `gs:`."""
  if "://" in path:
    raise errors.UserError(
      f"--{name}={path} must be a folder: mount the bucket with gcsfuse on "
      "every host and name the mount (docs/tpu.md)."
    )


def _is_not_noise(record: stdlib_logging.LogRecord) -> bool:
  """Drops what libraries log of their own doings; their warnings stay.

  Orbax logs some fifty lines for each save, and warns of what is intended.
  """
  if not re.search(r"/(orbax|jax)/", record.pathname):
    return True
  intended = ("did not provide metrics", "read_only=True", "is read only")
  text = record.getMessage()
  return record.levelname != "INFO" and not any(
    part in text for part in intended
  )


def _parse_flags(argv: list[str]) -> list[str]:
  """Parses flags; a wrong name or file ends in one line."""
  try:
    rest = flags.FLAGS(argv)
    if _CONFIG.value is None:
      raise errors.UserError(
        "name an experiment: --config=experiments/quickstart.py"
      )
    _CONFIG.value.keys()  # A missing file shows on first use only.
    return rest
  except (AttributeError, KeyError) as error:
    # The text is a quoted name, quoted again, and a hint on a second line.
    name, *hint = re.sub(r"[\\']", "", str(error.args[0])).split("nDid", 1)
    _exit(
      f"the configuration has no field {name}"
      + "".join(f". Did{text}" for text in hint),
      status=2,
    )
  except flags.Error as error:
    _exit(str(error), status=2)
  except OSError:
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    _exit(
      f"cannot read {path}: --config takes a file, as in "
      "--config=experiments/quickstart.py",
      status=2,
    )
  except errors.UserError as error:
    _exit(str(error), status=2)


def _exit(message: str, *, status: int) -> NoReturn:
  line = " ".join(message.split())
  print(f"error: {line}", file=sys.stderr)
  sys.exit(status)


def run() -> None:
  """The entry point; a user's mistake ends in one line, a bug in a trace."""

  def guarded(argv: list[str]) -> None:
    try:
      main(argv)
    except errors.UserError as error:
      _exit(str(error), status=2)
    except errors.DivergenceError as error:
      _exit(str(error), status=1)
    except Exception as error:
      refusal = errors.refusal(error)
      if refusal is None:
        raise
      _exit(refusal, status=1)

  app.run(guarded, flags_parser=_parse_flags)


if __name__ == "__main__":
  run()
