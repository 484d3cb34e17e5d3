"""Rules of a compressed memory: docs/specification.md, section 7."""

import operator

from transformer_xl import errors
from transformer_xl.config import schema

# What a compressed memory cannot be combined with anything but.
_COMPRESSED = {
  "model.memory_start": "masked",
  "train.gradient_segments": 1,
  "train.log_memory_use": False,
}


def check(config: schema.ExperimentConfig) -> None:
  """Raises a UserError for the first rule that the values break."""
  kind = config.model.compression
  for group in ("train", "eval", "generate", "score"):
    length = getattr(config, group).compressed_len
    if length and not kind:
      raise errors.UserError(
        f"{group}.compressed_len={length} needs model.compression; set that, "
        f"or --config.{group}.compressed_len=0."
      )
  for name, needed in _COMPRESSED.items():
    value = operator.attrgetter(name)(config)
    if kind and value != needed:
      raise errors.UserError(
        f"{name}={value} cannot be combined with model.compression={kind}; "
        f"set --config.{name}={needed}."
      )
