"""Makes a run's folder from a foreign checkpoint, completely or not at all."""

import contextlib
import importlib
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import jax
import numpy as np
from flax import traverse_util

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.formats import hub_files
from transformer_xl.formats import input_files
from transformer_xl.importers import huggingface
from transformer_xl.importers import mapping
from transformer_xl.importers import pytorch
from transformer_xl.importers import tensorflow
from transformer_xl.importers import vocabulary as vocabulary_lib
from transformer_xl.model import network
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_record

# Published checkpoints; the experiment NAME_large has the configuration.
PUBLISHED = ("enwik8", "text8", "wt103", "lm1b")
# Fields that a published model must have. The vocabulary's size is taken from
# the file, since two sizes are quoted for lm1b.
ARCHITECTURE = (
  "num_layers",
  "model_dim",
  "num_heads",
  "head_dim",
  "ff_dim",
  "embed_dim",
  "cutoffs",
  "div_val",
  "tie_projections",
  "project_equal_width",
  "untie_biases",
)
# Each has a function `layout` and a pattern IGNORED.
FORMATS: dict[str, ModuleType] = {
  "huggingface": huggingface,
  "pytorch": pytorch,
  "tensorflow": tensorflow,
}
_LAYER = re.compile(r"(?<=layers\.)\d+|(?<=transformer/layer_)\d+")


class Imported(NamedTuple):
  """A foreign checkpoint as this package has it."""

  files: tuple[str, ...]  # Paths of the files with the tensors.
  config: schema.ExperimentConfig
  params: shapes.PyTree  # Arrays in float32, or a `mapping.Parameter` each.
  rows: list[mapping.Mapped]  # What became of each tensor.
  vocabulary: str  # Path of its file or folder.


class Request(NamedTuple):
  """What to import; the fields are flags of `importers.main`.

  The source is a file or folder, on disk or in a bucket, or `hf://OWNER/NAME`.
  """

  format_name: str
  source: str
  published: str | None = None
  vocabulary: str | None = None
  cutoffs: tuple[int, ...] = ()
  pre_norm: bool = False


def make(request: Request, workdir: str) -> metrics_log.Json:
  """Imports a checkpoint into a new workdir.

  Returns:
    The report, which the workdir keeps as `results/import.json`.

  Raises:
    UserError: the files are damaged or do not fit together, or the folder is
      already in use. In that case nothing is written.
  """
  if not workdir:
    raise errors.UserError("--workdir is empty; name the folder to make.")
  if storage.names(workdir):
    raise errors.UserError(
      f"{workdir} is not empty; an import makes a new run: choose "
      "another --workdir."
    )
  storage.require_checkpoint_path(workdir)
  storage.require_writable(workdir)
  if request.source.startswith(hub_files.PREFIX):
    request, source = _downloaded(request)
  else:
    source = storage.absolute(request.source)
  with opened(request) as found, new_folder(workdir) as folder:
    model = found.config.model
    rows = found.rows
    params_writer.save_one_by_one(folder, found.params, step=0)
    report = {
      "format": request.format_name,
      "source": source,
      "files": {os.path.basename(p): token_file.sha256(p) for p in found.files},
      "num_tensors": len(rows),
      "num_parameters": network.num_parameters(found.params),
      "tensors": [row._asdict() for row in rows],
      "vocabulary": vocabulary_lib.copy(
        found.vocabulary, folder, size=model.vocab_size
      ),
      "memory_start": model.memory_start,
      "same_length_window": model.same_length_window,
      "layer_norm_epsilon": model.layer_norm_epsilon,
    }
    run_record.record(found.config, folder)
    metrics_log.write_json(folder, "results/import.json", report)
  return report


def _downloaded(request: Request) -> tuple[Request, str]:
  """The request for the files of a model of the Hub, and its whole address."""
  if request.format_name != "huggingface":
    raise errors.UserError(
      f"--source={request.source} is a model of the HuggingFace Hub: set "
      "--format=huggingface."
    )
  from transformer_xl.importers import hub  # Only this needs its library.

  folder, address = hub.download(request.source)
  return request._replace(source=folder), address


def read(request: Request) -> Imported:
  """Reads a checkpoint, with its parameters as NumPy arrays.

  Raises:
    UserError: the files are damaged or do not fit together.
  """
  with opened(request) as found:
    return found._replace(params=jax.tree.map(np.asarray, found.params))


@contextlib.contextmanager
def opened(request: Request) -> Iterator[Imported]:
  """Opens a checkpoint; its parameters are read while the context is entered.

  Raises:
    UserError: the files are damaged or do not fit together.
  """
  format_name, source, published, vocabulary, cutoffs, pre_norm = request
  if format_name != "pytorch" and (cutoffs or pre_norm):
    raise errors.UserError(
      f"--cutoffs and --pre_norm are for --format=pytorch; {format_name} "
      "files state both."
    )
  kind = FORMATS[format_name]
  given = {"cutoffs": cutoffs, "pre_norm": pre_norm} if kind is pytorch else {}
  with input_files.on_disk(source) as place:
    found = kind.read(place, **given)
    config = make_config(found, published)
    path = vocabulary or _address(found.vocabulary, place, source)
    if path is None:
      raise errors.UserError(
        f"there is no vocabulary beside {source}; put its file there, or name "
        "it, or a prepared dataset's folder, when you import the model with "
        "python -m transformer_xl.importers.main --vocabulary=PATH."
      )
    if not found.own:  # An export of ours says what comes before a text.
      start = vocabulary_lib.start_of_text(path)
      if start:
        config = load.replaced(config, {"score.prefix": start})
    layout = found.layout or kind.layout
    params, rows = mapping.open_tensors(
      found.tensors,
      layout(config.model),
      config.model,
      ignored=kind.IGNORED,
    )
    yield Imported(found.files, config, params, rows, path)


def _address(path: str | None, place: str, source: str) -> str | None:
  """A path in the copy of a source as one in the source itself."""
  if path is None or place == source:
    return path
  return os.path.normpath(path).replace(place, storage.absolute(source))


def render(report: metrics_log.Json) -> str:
  """Formats a report; tensors that differ only by layer share a line."""
  groups: dict[tuple[str, str, str], list[int]] = {}
  for row in report["tensors"]:
    shape = list(row["shape"])
    parameters = ", ".join(row["parameters"])
    key = (_LAYER.sub("*", row["name"]), str(shape), parameters)
    groups.setdefault(key, []).append(math.prod(shape))
  vocabulary = report["vocabulary"]
  lines = [
    f"{report['format']} checkpoint",
    *(f"  {name}  sha256 {sha}" for name, sha in report["files"].items()),
    *(
      f"  {len(sizes):3} x {name} {shape} -> {parameters}: {sum(sizes):,}"
      for (name, shape, parameters), sizes in groups.items()
    ),
    f"{report['num_tensors']} tensors, {report['num_parameters']:,} "
    "parameters: the sum of the tensors; none missing, none unused.",
    f"Vocabulary: {vocabulary['size']:,} {vocabulary['unit']}s.",
    f"memory_start={report['memory_start']}, same_length_window="
    f"{report['same_length_window']}, layer_norm_epsilon="
    f"{report['layer_norm_epsilon']}",
  ]
  return "\n".join(lines)


def make_config(
  found: mapping.Source, published: str | None
) -> schema.ExperimentConfig:
  """Returns the configuration of the imported run.

  Raises:
    UserError: the source is not the named published model.
  """
  config = load.default()
  config.data.name = "imported"  # The source does not say what it has read.
  if published is not None:
    experiment = importlib.import_module(
      f"transformer_xl.experiments.{published}_large"
    )
    config = experiment.get_config()
    for name in ARCHITECTURE:
      value = found.model[name]
      wanted = config.model[name]
      if value != wanted:
        raise errors.UserError(
          f"the source is not the published {published}: model.{name} is "
          f"{value}, not {wanted}; leave out --published."
        )
  elif found.lengths is not None:
    mem_lens = (found.lengths.mem_len,)
    config.eval.update(found.lengths._asdict() | {"mem_len": mem_lens})
  try:
    config.model.update(found.model)
  except (TypeError, ValueError) as error:
    raise errors.UserError(
      f"the source describes no model that can be imported ({error}); restore "
      "its configuration."
    ) from None
  # bfloat16 in training is a choice of our experiments, not of the source.
  config.model.dtype = "float32"
  config.generate.mem_len = config.eval.mem_len[0]
  config.score.mem_len = config.eval.mem_len[0]
  try:
    allowed = {*huggingface.REQUIRED, *huggingface.optional_fields()}
    for name in traverse_util.flatten_dict(dict(found.own), sep="."):
      if name not in allowed:
        raise ValueError(f"{name} is no field that an export writes")
    load.updated(config, dict(found.own), "config.json")
  except (ValueError, LookupError, TypeError, AttributeError) as error:
    raise errors.UserError(
      f"{huggingface.OWN!r} in config.json is damaged ({error}); restore the "
      "file that the export wrote."
    ) from None
  return load.from_config_dict(config)


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
  """A temporary folder that becomes `path` if the block succeeds.

  In a bucket it is `path` itself, and of what goes through the copy of it
  (`storage.local`) nothing is uploaded unless the block succeeds.
  """
  if storage.is_bucket(path):
    try:
      yield path
      storage.publish(path)
    finally:
      storage.forget(path)
    return
  parent, name = os.path.split(os.path.abspath(path))
  os.makedirs(parent, exist_ok=True)
  prefix = f".{name[:40]}."  # A name may be as long as the disk allows.
  with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as temporary:
    folder = os.path.join(temporary, name)
    os.mkdir(folder)
    yield folder
    if os.path.isdir(path):
      storage.remove_empty_folder(path)
    shutil.move(folder, path)
