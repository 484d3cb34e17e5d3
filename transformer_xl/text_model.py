"""A trained model that reads text: what generating and scoring start from."""

from typing import NamedTuple

import jax

from transformer_xl import config as config_lib
from transformer_xl import data
from transformer_xl import evaluate
from transformer_xl import inference
from transformer_xl import provenance
from transformer_xl import sharding
from transformer_xl import token_file
from transformer_xl import vocabulary as vocabulary_lib


class TextModel(NamedTuple):
  """A reader with parameters, and the vocabulary of its tokens."""

  vocabulary: vocabulary_lib.Vocabulary
  reader: inference.Reader
  frozen: inference.Frozen
  checkpoint_step: int


def load(
  config: config_lib.ExperimentConfig,
  workdir: str,
  *,
  mem_len: int,
  segment_len: int,
) -> TextModel:
  """Restores a run; all of it comes from its folder.

  The clamp, the window and the choice of parameters are those of
  `config.eval`.
  """
  folder = f"{workdir}/{provenance.VOCABULARY}"
  vocabulary = vocabulary_lib.load(folder)
  config = data.with_vocab_size(config, token_file.read_meta(folder))
  reader = inference.Reader(
    config.model,
    mem_len=mem_len,
    segment_len=segment_len,
    clamp_len=config.eval.clamp_len,
    same_length=config.eval.same_length,
  )
  mesh = sharding.make_mesh(config.mesh, lanes=())
  with jax.set_mesh(mesh):
    params, step = evaluate.load_params(config, workdir, mesh)
    frozen = jax.jit(reader.freeze)(params)
  return TextModel(vocabulary, reader, frozen, step)
