"""Makes a run's folder from a foreign checkpoint, completely or not at all."""

import contextlib
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import ml_collections

from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.importers import huggingface
from transformer_xl.importers import mapping
from transformer_xl.importers import pytorch
from transformer_xl.importers import report
from transformer_xl.importers import source as source_lib
from transformer_xl.importers import tensorflow
from transformer_xl.importers import torch_layout
from transformer_xl.importers import vocabulary as vocabulary_lib
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model

# Experiment with the configuration of each published checkpoint.
PUBLISHED = {
  "enwik8": "enwik8_large",
  "text8": "text8_large",
  "wt103": "wt103_large",
  "lm1b": "lm1b_large",
}
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


class Format(NamedTuple):
  """A foreign checkpoint format."""

  layout: Callable[[schema.ModelConfig], Iterator[mapping.Tensor]]
  ignored: str  # Pattern of tensor names that hold no parameters.


FORMATS = {
  "huggingface": Format(huggingface.layout, torch_layout.IGNORED),
  "pytorch": Format(pytorch.layout, torch_layout.IGNORED),
  "tensorflow": Format(tensorflow.layout, tensorflow.IGNORED),
}


def make(
  *,
  format_name: str,
  source: str,
  workdir: str,
  published: str | None = None,
  vocabulary: str | None = None,
  cutoffs: tuple[int, ...] = (),
  pre_norm: bool = False,
) -> dict[str, Any]:
  """Imports a checkpoint; the arguments are the flags of `importers.main`.

  Returns:
    The report; see `report.make`.

  Raises:
    UserError: the files are damaged or do not fit together, or the folder is
      already in use. In that case nothing is written.
  """
  if os.path.isdir(workdir) and os.listdir(workdir):
    raise errors.UserError(
      f"{workdir} is not empty; an import makes a new run: choose "
      "another --workdir."
    )
  found = _read(format_name, source, cutoffs=cutoffs, pre_norm=pre_norm)
  config = make_config(found, published)
  kind = FORMATS[format_name]
  path = vocabulary or found.vocabulary
  if path is None:
    raise errors.UserError(
      f"there is no vocabulary beside {source}; name its file, or a prepared "
      "dataset's folder, with --vocabulary=PATH."
    )
  params, rows = mapping.import_tensors(
    found.tensors, kind.layout(config.model), config.model, ignored=kind.ignored
  )
  with _new_folder(workdir) as folder:
    size = config.model.vocab_size
    made = report.make(
      rows,
      params,
      config.model,
      format_name=format_name,
      files=found.files,
      vocabulary=vocabulary_lib.copy(path, folder, size=size),
    )
    trained_model.save_params(folder, params, step=0)
    run_record.record(config, folder)
    os.makedirs(os.path.join(folder, "results"))
    metrics_log.write_json(os.path.join(folder, "results", "import.json"), made)
  return made


def make_config(
  found: source_lib.Source, published: str | None
) -> schema.ExperimentConfig:
  """Returns the configuration of the imported run.

  Raises:
    UserError: the source is not the named published model.
  """
  config = load.default()
  if published is not None:
    name = f"experiments.{PUBLISHED[published]}"
    config = importlib.import_module(name).get_config()
    _check_published(found.model, config.model, published)
  elif found.lengths is not None:
    _use_lengths(config, found.lengths)
  config.model.update(found.model)
  # bfloat16 in training is a choice of our experiments, not of the source.
  config.model.dtype = "float32"
  config.generate.mem_len = config.eval.mem_len[0]
  config.score.mem_len = config.eval.mem_len[0]
  return load.from_config_dict(config)


def _read(
  format_name: str, path: str, *, cutoffs: tuple[int, ...], pre_norm: bool
) -> source_lib.Source:
  if format_name == "pytorch":
    return pytorch.read(path, cutoffs=cutoffs, pre_norm=pre_norm)
  if cutoffs or pre_norm:
    raise errors.UserError(
      f"--cutoffs and --pre_norm are for --format=pytorch; {format_name} "
      "files state both."
    )
  if format_name == "huggingface":
    return huggingface.read(path)
  return tensorflow.read(path)


def _check_published(
  have: dict[str, Any], want: ml_collections.ConfigDict, published: str
) -> None:
  for name in ARCHITECTURE:
    if have[name] != want[name]:
      raise errors.UserError(
        f"the source is not the published {published}: model.{name} is "
        f"{have[name]}, not {want[name]}; leave out --published."
      )


def _use_lengths(
  config: ml_collections.ConfigDict, lengths: source_lib.Lengths
) -> None:
  config.eval.segment_len = lengths.segment_len
  config.eval.mem_len = (lengths.mem_len,)
  config.eval.clamp_len = lengths.clamp_len
  config.eval.same_length = lengths.same_length


@contextlib.contextmanager
def _new_folder(path: str) -> Iterator[str]:
  """A temporary folder that becomes `path` if the block succeeds."""
  parent, name = os.path.split(os.path.abspath(path))
  os.makedirs(parent, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=parent) as temporary:
    folder = os.path.join(temporary, name)
    os.mkdir(folder)
    yield folder
    if os.path.isdir(path):
      os.rmdir(path)  # It is empty.
    shutil.move(folder, path)
