"""Tiny language models with random parameters."""

import pytest

from tests import corpus
from tests import kinds
from tests import tiny
from transformer_xl.config import load
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.model import reader as reader_lib
from transformer_xl.text import language_model

# Narrow recurrent layers repeat themselves, since their outputs are below 1.
HYBRID = {
  "num_layers": 3,
  "layers": (*kinds.mixers(attends=False, Fields=None), "attention"),
  "model_dim": 48,
}
MATRICES = {
  "layers": (kinds.mixer(attends=False), "attention"),
  "model_dim": 24,
}
MODELS = ({}, HYBRID, pytest.param(MATRICES, marks=pytest.mark.rest))


def make(*, mem_len, segment_len=3, same_length=False, **fields):
  config = tiny.model_config(**fields)
  reader = reader_lib.Reader(
    config,
    mem_len=mem_len,
    segment_len=segment_len,
    clamp_len=0,
    same_length=same_length,
  )
  vocabulary = vocabulary_lib.ByteVocabulary(corpus.SYMBOLS)
  frozen = reader.freeze(tiny.params(config))
  return language_model.LanguageModel(
    vocabulary, reader, frozen, 1, "raw", "tiny"
  )


def options(**updates):
  """How tokens are drawn; updates as `{"top_k": 1}`."""
  values = {"tokens_per_call": 5, "temperature": 1.0, "top_k": 0} | updates
  values = {"generate." + name: value for name, value in values.items()}
  return load.from_config_dict(tiny.config_dict(**values)).generate
