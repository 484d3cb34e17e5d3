"""Loads a trained model with its vocabulary, to generate and score text."""

from typing import Any
from typing import NamedTuple

import jax

from transformer_xl.config import load as load_lib
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.model import kv_cache
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model


class LanguageModel(NamedTuple):
  """A model with key/value cache, its parameters and its vocabulary."""

  vocabulary: vocabulary_lib.Vocabulary
  reader: kv_cache.Reader
  frozen: kv_cache.Frozen
  checkpoint_step: int

  def settings(self) -> dict[str, Any]:
    """How texts are read, as results state it."""
    names = ("segment_len", "mem_len", "clamp_len", "same_length")
    return {name: getattr(self.reader, name) for name in names}


def load(
  config: schema.ExperimentConfig,
  workdir: str,
  *,
  mem_len: int,
  segment_len: int,
) -> LanguageModel:
  """Loads a run's model and vocabulary from its workdir alone.

  It remembers `mem_len` tokens and reads at most `segment_len` in a call. Clamp
  length, attention window and choice of parameters are those of `config.eval`.

  Raises:
    UserError: the workdir has no such checkpoint or no vocabulary, or the
      model's keys cannot be cached.
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
  return LanguageModel(vocabulary, reader, frozen, model.step)
