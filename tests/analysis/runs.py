"""Folders of finished runs with random parameters, and small studies."""

import os
import pathlib
from typing import Any

import numpy as np

from tests import corpus
from tests import oracle
from tests import tiny
from transformer_xl import mesh as mesh_lib
from transformer_xl import storage
from transformer_xl.analysis import study
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model

# What comparisons train.
COMPARED = {
  "model.num_layers": 1,
  "train.num_steps": 4,
  "checkpoint.every_steps": 4,
  "analysis.attention_lens": (4, 150),
}
NO_MEMORY = {"train.mem_len": 0, "eval.mem_len": (0,)}


def write(
  data_dir: str, workdir: Any, *, has_model: bool = True, **updates: Any
) -> schema.ExperimentConfig:
  """Writes a run; returns its configuration with the vocabulary's size."""
  values = {"model.vocab_size": len(corpus.SYMBOLS)}
  config = corpus.config(data_dir, **values | updates)
  if has_model:
    params_writer.save(str(workdir), tiny.params(config.model), step=3)
  run_record.record(config, str(workdir))
  run_record.keep_vocabulary(os.path.join(data_dir, corpus.NAME), str(workdir))
  storage.publish(str(workdir))
  return config


def model(
  data_dir: str, **updates: Any
) -> tuple[trained_model.TrainedModel, token_file.TokenFile]:
  """A model with random parameters, of no folder, and its text."""
  values = {"model.vocab_size": len(corpus.SYMBOLS)}
  config = corpus.config(data_dir, **values | updates)
  mesh = mesh_lib.make_mesh(config.mesh)
  params = tiny.params(config.model)
  subject = trained_model.TrainedModel(config, mesh, params, step=0)
  return subject, token_file.open_split(config.data.dataset_dir, "test")


def slow_loss(
  config: schema.ExperimentConfig, tokens: Any, position: int, context_len: int
) -> float:
  """Loss of the token at a position, given some tokens before it."""
  known = np.asarray(tokens)[None, position - context_len : position]
  memory = oracle.start(config.model, batch_size=1, mem_len=0)
  params = tiny.params(config.model)
  log_probs, _ = oracle.segment(params, config.model, known, memory, mem_len=0)
  return -log_probs[0, -1, tokens[position]]


def save_no_picture(figure: Any, path: str, **options: Any) -> None:
  """Stands for `Figure.savefig`, which takes longest; the file is empty."""
  del figure, options
  pathlib.Path(path).touch()


def study_of(
  data_dir: str, workdir: Any, *variants: str, **updates: Any
) -> metrics_log.Json:
  """A study of some variants; returns what it writes."""
  updates |= {"analysis.variants": variants}
  config = corpus.config(data_dir, **COMPARED | updates)
  return study.run(config, str(workdir))
