"""The default configuration, made from the declarations of the fields."""

import dataclasses
from typing import Any

import ml_collections

from transformer_xl.config import fields
from transformer_xl.config import schema


def get_config() -> ml_collections.ConfigDict:
  """A small model; the files in `experiments/` list what they change.

  A default that follows another field does so until it is set itself.
  """
  return _group(schema.ExperimentConfig)


def _group(kind: Any) -> ml_collections.ConfigDict:
  group = ml_collections.ConfigDict()
  for declared in dataclasses.fields(kind):
    if fields.is_group(declared.type):
      group[declared.name] = _group(declared.type)
      continue
    default = declared.metadata["default"]
    if isinstance(default, fields.SameAs):
      default = group.get_oneway_ref(default.leader)
    group[declared.name] = default
  return group
