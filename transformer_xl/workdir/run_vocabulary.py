"""The vocabulary that a run keeps, so that its workdir alone serves text."""

import os

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary
from transformer_xl.workdir import run_record


def load(workdir: str) -> vocabulary.Vocabulary:
  """Reads the vocabulary of a run or an import.

  Raises:
    UserError: there is no run, or its vocabulary is missing or damaged.
  """
  folder = storage.local(workdir)
  known = (os.path.join(run_record.VOCABULARY, "meta.json"), "config.json")
  if not any(os.path.exists(os.path.join(folder, name)) for name in known):
    raise errors.UserError(
      f"there is no run in {workdir}; name the folder of one with "
      "--config=saved:WORKDIR, and without --workdir if that is another."
    )
  return vocabulary.load(
    os.path.join(workdir, run_record.VOCABULARY),
    fix="restore it, or train or import again in another folder",
  )


def load_for(
  config: schema.ExperimentConfig, workdir: str
) -> tuple[schema.ExperimentConfig, vocabulary.Vocabulary]:
  """Reads the vocabulary of a run; the configuration gets its size.

  Raises:
    UserError: as in `load`.
  """
  found = load(workdir)
  folder = os.path.join(storage.local(workdir), run_record.VOCABULARY)
  meta = token_file.read_meta(folder)
  return load_lib.with_vocab_size(config, meta), found
