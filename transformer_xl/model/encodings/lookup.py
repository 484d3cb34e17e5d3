"""Looks up the encoding of a model."""

from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model.encodings import encoding


def of(config: schema.ModelConfig) -> encoding.Encoding:
  """The encoding that a model has."""
  kind = registry.encodings[config.encoding]
  assert issubclass(kind, encoding.Encoding)
  return kind()
