"""Workdirs as a run leaves them, with parameters that were never trained."""

import os
from typing import Any

from tests import corpus
from tests import tiny
from transformer_xl import checkpoint
from transformer_xl import config as config_lib
from transformer_xl import provenance


def write(
  data_dir: str, workdir: Any, **updates: Any
) -> config_lib.ExperimentConfig:
  """Makes one; returns its configuration with the vocabulary's size."""
  values = {"model.vocab_size": len(corpus.SYMBOLS)}
  config = corpus.config(data_dir, **values | updates)
  checkpoint.save_params(str(workdir), tiny.params(config.model), step=3)
  provenance.record(config, str(workdir))
  provenance.keep_vocabulary(os.path.join(data_dir, corpus.NAME), str(workdir))
  return config
