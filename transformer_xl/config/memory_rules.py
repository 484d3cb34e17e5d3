"""Rules of memory, unequal or compressed: docs/specification.md, section 7."""

import operator

from transformer_xl import errors
from transformer_xl.config import schema

# What a compressed memory cannot be combined with anything but.
_COMPRESSED = {
  "model.memory_start": "masked",
  "model.memory_lens": (),
  "train.gradient_segments": 1,
  "train.log_memory_use": False,
}
# With these, each layer attends to as many keys as `mem_len`, a token's own
# included, and to nothing else.
EXACT_LENGTH = {
  "model.same_length_window": "mem_len",
  "model.memory_lens": (),
  "eval.same_length": True,
  "eval.context_len": 0,
  "eval.compressed_len": 0,
}


def check(config: schema.ExperimentConfig) -> None:
  """Raises a UserError for the first rule that the values break."""
  pairs, num_layers = config.model.memory_lens, config.model.num_layers
  layers = sum(count for count, _ in pairs)
  if layers and num_layers % layers:
    raise errors.UserError(
      f"model.memory_lens={pairs} is for {layers} layers, which must divide "
      f"model.num_layers={num_layers}, since it repeats; set "
      "--config.model.memory_lens."
    )
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
