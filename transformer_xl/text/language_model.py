"""A trained model with its vocabulary, to generate and score text with."""

from typing import NamedTuple

import jax

from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.model import kv_cache
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model


class TextModel(NamedTuple):
  """A reader, its parameters and its vocabulary."""

  vocabulary: vocabulary_lib.Vocabulary
  reader: kv_cache.Reader
  frozen: kv_cache.Frozen
  checkpoint_step: int


def load(
  config: schema.ExperimentConfig,
  workdir: str,
  *,
  mem_len: int,
  segment_len: int,
) -> TextModel:
  """Loads a run's model and vocabulary from its workdir alone.

  `config.eval` determines clamp length, attention window and the choice of
  parameters.

  Raises:
    UserError: the workdir has no such checkpoint or no vocabulary.
  """
  folder = f"{workdir}/{run_record.VOCABULARY}"
  vocabulary = vocabulary_lib.load(folder)
  config = load_lib.with_vocab_size(config, token_file.read_meta(folder))
  reader = kv_cache.Reader(
    config.model,
    mem_len=mem_len,
    segment_len=segment_len,
    clamp_len=config.eval.clamp_len,
    same_length=config.eval.same_length,
  )
  model = trained_model.load(config, workdir)
  with jax.set_mesh(model.mesh):
    frozen = jax.jit(reader.freeze)(model.params)
  return TextModel(vocabulary, reader, frozen, model.step)
