r"""Trains Transformer-XL, evaluates it, generates and scores text.

Each mode reads a configuration (--config=NAME, where --config.FIELD=VALUE sets
a single field) and writes its results to a folder (--workdir=FOLDER). Every
mode but train also works on the configuration that a run saved in its workdir
(--config=saved:FOLDER).

For example

    python -m transformer_xl.main --config=quickstart \
      --workdir=runs/quickstart --config.train.num_steps=1000
    python -m transformer_xl.main --mode=eval \
      --config=saved:runs/quickstart --config.eval.mem_len='(0,128,512)'
    python -m transformer_xl.main --mode=generate \
      --config=saved:runs/quickstart --config.generate.prompt='import '
    python -m transformer_xl.main --mode=export --format=transformers \
      --config=saved:runs/quickstart --target=exported
    python -m transformer_xl.main --mode=plan --topology=v5e:4x8 \
      --config=enwik8_large --workdir=runs/plan
    python -m transformer_xl.main --mode=check
"""

import types

from transformer_xl import command_line
from transformer_xl import signals
from transformer_xl.config import training_fields

if __name__ == "__main__":  # Before the imports that take long.
  command_line.use_huge_pages()
  signals.end_at_signals(keeps_running=True)

import contextlib
import importlib
import os
import sys
from typing import NamedTuple

from absl import flags
from absl import logging

from transformer_xl import errors
from transformer_xl import log_lines
from transformer_xl import storage
from transformer_xl.config import config_flag
from transformer_xl.config import help_text
from transformer_xl.config import load
from transformer_xl.config import name_parser
from transformer_xl.config import rules
from transformer_xl.config import schema
from transformer_xl.config import suggestions
from transformer_xl.data import token_file
from transformer_xl.processes import joining
from transformer_xl.processes import others
from transformer_xl.workdir import compile_cache


class Mode(NamedTuple):
  """The function that a value of --mode runs, and its help."""

  module: str  # Loaded when the mode is run.
  summary: str
  group: str  # The fields that only this mode and its like read; "" for none.
  function: str = "run"


# Modules of modes that may follow training have a function `check`, too.
MODES = {
  "train": Mode(
    "training.loop",
    "Train a model, or continue the run in --workdir.",
    "train",
    function="train",
  ),
  "eval": Mode(
    "evaluation.evaluate",
    "Loss and perplexity of a split, for one or several lengths of memory.",
    "eval",
  ),
  "generate": Mode("text.generate", "Continue a prompt.", "generate"),
  "score": Mode(
    "text.score",
    "Log-probabilities of given texts, token by token.",
    "score",
  ),
  "report": Mode(
    "report.report",
    "Show one run, or several, as a page for the browser.",
    "report",
  ),
  "plan": Mode(
    "planning.plan",
    "Compile for TPU chips or GPUs that are not there (--topology): whether it "
    "fits, how fast it is.",
    "",
  ),
  "check": Mode(
    "check.check",
    "Whether these devices compute the right numbers, and how fast; needs no "
    "configuration.",
    "",
  ),
  "study": Mode(
    "analysis.study",
    "Train variants of the configuration and compare them, such as learning "
    "rates.",
    "analysis",
  ),
  "ablation": Mode(
    "analysis.ablation",
    "Train without recurrence or with other encodings, and compare.",
    "analysis",
  ),
  "paper": Mode(
    "analysis.paper.repeat",
    "Repeat a table or figure of the paper (--config=paper:table6:small).",
    "analysis",
  ),
  "recall": Mode(
    "analysis.recall",
    "How far back models look values up, in a synthetic text.",
    "analysis",
  ),
  "recl": Mode(
    "analysis.recl",
    "How much context models make use of.",
    "analysis",
  ),
  "attention": Mode(
    "analysis.attention_maps",
    "Figures of where each head looks.",
    "analysis",
  ),
  "eval_speed": Mode(
    "analysis.eval_speed",
    "Time of evaluation with memory, and with sliding windows.",
    "analysis",
  ),
  "export": Mode(
    "importers.export_run",
    "Write a checkpoint as a folder (--target) that transformers or PEFT loads,"
    " or JAX without this package (--format).",
    "",
  ),
}
# They may start without data.
_TRAINING = ("train", "study", "ablation", "paper")
_CHECK_WORKDIR = "runs/check"
_CHECKED = {"config.model.layers", "config.model.encoding"}  # What it reads.
# Flags that some modes alone read.
_OF_SOME_MODES = {
  "topology": ("plan", "study"),
  "format": ("export",),
  "target": ("export",),
}
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder for checkpoints, logs and results."
)
_MODE = flags.DEFINE(
  name_parser.NameParser(list(MODES), hints=suggestions.OTHER_MODES),
  "mode",
  "train",
  "What to do.",
)
_TOPOLOGY = flags.DEFINE_string(
  "topology",
  "v5e:4x4",
  "TPU slice that --mode=plan compiles for, or GPUs of one host, such as "
  "h100:8. If it is named, --mode=study plans the time of each variant for one "
  "of its chips, too.",
)
_FORMAT = flags.DEFINE(
  name_parser.NameParser(
    ["transformers", "peft", "stablehlo"],
    hints={"hf": "transformers", "huggingface": "transformers"},
  ),
  "format",
  "transformers",
  "Format of --mode=export.",
)
_TARGET = flags.DEFINE_string("target", "", "Folder that --mode=export makes.")
_MULTIHOST = flags.DEFINE_bool(
  "multihost", None, "Join other hosts; by default where there are some."
)
_COORDINATOR = flags.DEFINE_string(
  "coordinator", None, "HOST:PORT of process 0, outside a Cloud TPU."
)
_PROCESSES = flags.DEFINE_integer(
  "num_processes", None, "Number of processes, with --coordinator."
)
_PROCESS = flags.DEFINE_integer(
  "process_id", None, "Number of this process, with --coordinator."
)


def main(argv: list[str]) -> None:
  """Runs one mode."""
  del argv
  try:
    config, workdir = _checked()
  except (errors.UserError, OSError) as error:
    _tell_of_mistake(error)
    raise
  _start_devices(config.model.attention)
  from transformer_xl.config import precision  # JAX is loaded now.
  from transformer_xl.training import data_checks
  from transformer_xl.workdir import agreement
  from transformer_xl.workdir import closing

  dtype = precision.dtype_of(config.model, workdir, _MODE.value)
  config = load.replaced(config, {"model.dtype": dtype})
  agreement.require_same_command(config, workdir, _MODE.value)
  if _MODE.value in _TRAINING and config.data.prepare:
    _prepare_data(config.data)
  agreement.require_same_data(config.data.dataset_dir)
  if _MODE.value in _TRAINING:
    data_checks.warn_of_another_writer(config.data)
  before = closing.changes(workdir)
  with errors.writing_to(_TARGET.value or workdir):
    try:
      if _MODE.value != "train":
        _run(_MODE.value, config, workdir)
      else:
        _train(config, workdir)
        prompt = config.generate.prompt
        closing.print_next(
          closing.commands(config.scoring, workdir, prompt=prompt)
        )
    finally:
      storage.publish(workdir, is_last=True)
  closing.log_files(workdir, before)


def _checked() -> tuple[schema.ExperimentConfig, str]:
  """The configuration and the workdir, as far as they can be checked so far.

  Raises:
    UserError: they are wrong.
    OSError: the workdir cannot be written.
  """
  config = config_flag.checked()
  rules.check_command(config, _MODE.value)
  for warning in flags_without_effect(sys.argv, _MODE.value):
    logging.warning("%s", warning)
  workdir = storage.expanded(_WORKDIR.value or config_flag.saved_workdir())
  if _MODE.value == "check":
    workdir = workdir or _CHECK_WORKDIR
  if not workdir:
    if _MODE.value not in (*_TRAINING, "plan"):
      raise errors.UserError(
        f"--mode={_MODE.value} reads a run: name its folder, as in "
        "--config=saved:FOLDER."
      )
    raise errors.UserError(
      "a run needs a folder to write to: set --workdir=FOLDER."
    )
  _require_folder("workdir", workdir)
  storage.require_checkpoint_path(workdir)
  storage.require_writable(workdir)
  _require_folder("config.data.dir", config.data.dir)
  _require_folder("config.train.init_from", config.train.init_from)
  return config, workdir


def _tell_of_mistake(mistake: Exception) -> None:
  """Ends the other processes, if there are some, which would wait for this."""
  if _COORDINATOR.value or _MULTIHOST.value or joining.may_be_launched():
    with contextlib.suppress(errors.UserError):
      _join(mistake)


def _join(mistake: Exception | None = None) -> None:
  """Joins the other processes that flags or the environment name."""
  joining.join(
    coordinator=_COORDINATOR.value,
    num_processes=_PROCESSES.value,
    process_id=_PROCESS.value,
    multihost=_MULTIHOST.value,
    mistake=mistake,
  )


def flags_without_effect(argv: list[str], mode: str) -> list[str]:
  """Warnings of the flags in a command line that a mode does not read."""
  warnings = []
  for name, readers in _OF_SOME_MODES.items():
    value, _ = command_line.split(argv, name)
    if value is not None and mode not in readers:
      modes = " or ".join(readers)
      warnings.append(f"--{name} has no effect without --mode={modes}.")
  experiment, rest = command_line.split(argv, "config")
  names = [word.lstrip("-").partition("=")[0] for word in rest]
  fields = {name for name in names if name.startswith("config.")}
  if mode == "check" and (experiment is not None or fields - _CHECKED):
    warnings.append(
      "--mode=check tries the mixers and the encoding of --config, in models "
      "of its own: nothing else of it has an effect."
    )
  return warnings


def _train(config: schema.ExperimentConfig, workdir: str) -> None:
  """Trains, and runs the modes that follow."""
  import jax

  from transformer_xl.training import data_checks

  data_checks.require(config.data, config.train, workdir)
  data_checks.warn_of_overfitting(config.data, config.train, config.model)
  # What these modes need besides the checkpoint has to be there, so that nobody
  # trains first to learn that it is missing.
  for mode in config.train.finish_with:
    try:
      _module(mode).check(config, workdir)
    except errors.UserError as error:
      raise errors.UserError(
        f"{mode} in train.finish_with could not run: {error}"
      ) from None
  _run("train", config, workdir)
  signals.drop_unread_output()  # Lost meanwhile; what follows prints.
  if config.train.finish_with:
    _share(workdir)
    names = ", ".join(config.train.finish_with)
    logging.info("What follows training (train.finish_with): %s.", names)

  # The modes after one that fails can still run.
  failures = []
  unexpected = None
  for mode in config.train.finish_with:
    try:
      _run(mode, config, workdir)
    except errors.UserError as error:
      failures.append(f"--mode={mode}: {error}")
      logging.error("--mode=%s after training: %s", mode, error)
    except Exception as error:  # A full disk, or a mistake of the program.
      if jax.process_count() > 1:
        raise  # Other processes may not have failed, and would wait for ever.
      unexpected = unexpected or error
      logging.error("--mode=%s after training: %r", mode, error)
  if unexpected is not None:
    raise unexpected
  if failures:
    raise errors.UserError(
      "training has finished, but not what was to follow it. "
      + " ".join(failures)
    )


def _share(workdir: str) -> None:
  """Lets all processes see what the first one has written to a bucket."""
  import jax
  from jax.experimental import multihost_utils

  if storage.is_bucket(workdir) and jax.process_count() > 1:
    multihost_utils.sync_global_devices("the run is in the bucket")
    if jax.process_index() != 0:
      storage.forget(workdir)


def _start_devices(attention: str) -> None:
  """Joins other processes and logs the devices; JAX is loaded here."""
  plans = _MODE.value == "plan"
  if _planned_slice(_MODE.value) is not None:
    from transformer_xl.planning import topology

    topology.compile_only(runs_elsewhere=not plans)
  import jax

  from transformer_xl.config import precision

  precision.require_32_bits()
  # Programs compiled for other devices than ours could be written but not read.
  if not plans:
    compile_cache.use()
  _join()
  if others.is_one_of_several():
    log_lines.format_log(jax.process_index())
    signals.end_at_signals(keeps_running=True, before=others.leave)
  device = jax.devices()[0]
  logging.info(
    "%d x %s, process %d of %d.",
    jax.device_count(),
    device.device_kind,
    jax.process_index(),
    jax.process_count(),
  )
  if attention == "pallas" and device.platform != "tpu" and not plans:
    logging.warning(
      "The kernel of model.attention=pallas is for TPUs and is interpreted, "
      "slowly, on %s; --config.model.attention=auto takes what suits it.",
      device.device_kind,
    )


def _prepare_data(data: training_fields.DataConfig) -> None:
  """Prepares a dataset that is missing, in the first process for all."""
  import jax

  # Other text is prepared by a command of its own, which the next error names.
  if not token_file.is_named(data.name):
    return
  folder = storage.local(data.dataset_dir)
  missing = not os.path.exists(os.path.join(folder, "meta.json"))
  if missing and jax.process_index() == 0:
    # Late, since only this needs its libraries.
    from transformer_xl.data_prep import preparation

    logging.info("Preparing %s in %s.", data.name, data.dir)
    with errors.writing_to(data.dir):
      preparation.prepare_beside_others(data.name, data_dir=data.dir)
  # Devices would wait for each other for minutes at most.
  others.gather("data is prepared")
  if missing:
    storage.forget(data.dataset_dir)


def _module(mode: str) -> types.ModuleType:
  """The module of a mode, loaded only now."""
  return importlib.import_module(f"transformer_xl.{MODES[mode].module}")


def _planned_slice(mode: str) -> str | None:
  """The TPU slice or the GPUs that a mode compiles for, if it does."""
  if mode == "plan" or (mode == "study" and _TOPOLOGY.present):
    return _TOPOLOGY.value
  return None


def _run(mode: str, config: schema.ExperimentConfig, workdir: str) -> object:
  """Runs the function of a mode, and returns what it returns."""
  options = {}
  topology = _planned_slice(mode)
  if topology is not None:
    options = {"topology": topology}
  if mode == "export":
    target = storage.expanded(_TARGET.value)
    options = {"target": target, "format": _FORMAT.value}
  run_mode = getattr(_module(mode), MODES[mode].function)
  try:
    return run_mode(config, workdir, **options)
  except (RuntimeError, MemoryError) as error:
    from transformer_xl.planning import shortage

    text = shortage.explain(config, mode, error)
    if text is None:
      raise
    raise errors.UserError(text) from error


def _require_folder(name: str, path: str) -> None:
  """Refuses a file, and the addresses of other storage than Google's."""
  if "://" in path and not storage.is_bucket(path):
    raise errors.UserError(
      f"--{name}={path} must be a folder, or gs://BUCKET/FOLDER in a bucket of "
      "Google Cloud Storage."
    )
  if os.path.isfile(path):
    raise errors.UserError(
      f"--{name}={path} must be a folder, but it is a file: name another."
    )


def _parse(argv: list[str]) -> list[str]:
  """Parses a command line, which needs no --config to check the devices."""
  mode, _ = command_line.split(argv, "mode")
  default = "base" if mode == "check" else None
  try:
    return config_flag.parse(argv, default=default)
  except (errors.UserError, flags.Error) as error:
    address, count, number = (
      command_line.split(argv, flag.name)[0]
      for flag in (_COORDINATOR, _PROCESSES, _PROCESS)
    )
    if address and count and number:  # The other processes would wait.
      with contextlib.suppress(errors.UserError, ValueError):
        joining.join(address, int(count), int(number), mistake=error)
    raise


def _describe(argv: list[str], topic: str) -> str:
  """The text of `--help`, or of `--help=TOPIC`."""
  if topic:
    name, config = config_flag.source(argv)
    return help_text.describe(topic, MODES, config, name)
  config_flag.require_readable(argv)
  options = flags.FLAGS.get_key_flags_for_module(__name__)
  options = [flags.FLAGS["config"], flags.FLAGS["extensions"], *options]
  program = command_line.words()
  documentation = __doc__ or ""  # `python -OO` has none.
  text = documentation.replace("python -m transformer_xl.main", program)
  return help_text.overview(text, MODES, options)


def run() -> None:
  """The entry point."""
  command_line.run(main, parse=_parse, describe=_describe, quiet=False)


if __name__ == "__main__":
  run()
