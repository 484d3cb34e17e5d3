"""Folders of finished runs with random parameters, and small studies."""

import os
import pathlib
from typing import Any

from tests import corpus
from tests import tiny
from transformer_xl import storage
from transformer_xl.analysis import study
from transformer_xl.config import schema
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_record

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
