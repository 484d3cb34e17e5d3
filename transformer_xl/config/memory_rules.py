"""Rules of the pattern of layers and of what layers remember.

docs/specification.md, section 7.
"""

from transformer_xl import errors
from transformer_xl.config import mixer_fields
from transformer_xl.config import schema

# With these, each layer attends to as many keys as `mem_len`, a token's own
# included, and to nothing else.
EXACT_LENGTH = {
  "model.same_length_window": "mem_len",
  "eval.same_length": True,
  "eval.context_len": 0,
}


def check(config: schema.ExperimentConfig) -> None:
  """Raises a UserError for the first rule that the values break."""
  model = config.model
  known = mixer_fields.MIXERS
  for name, limit in model.pattern:
    if name not in known:
      raise errors.UserError(
        f"model.layers={model.layers} names {name!r}; the mixers are "
        f"{', '.join(known)}: set --config.model.layers."
      )
    if limit and not known[name].takes_limit:
      raise errors.UserError(
        f"model.layers={model.layers} limits the memory of {name!r}, which "
        f"takes no limit; set --config.model.layers with {name!r} alone."
      )
  if model.num_layers % len(model.layers):
    raise errors.UserError(
      f"model.layers={model.layers} has {len(model.layers)} entries, which "
      f"must divide model.num_layers={model.num_layers}, since they repeat; "
      "set --config.model.layers."
    )
  for name in model.mixers:
    if model.memory_start == "zeros" and not known[name].attends_zeros:
      raise errors.UserError(
        f"a layer with {name} has no zeros to attend to, but "
        "model.memory_start=zeros; set --config.model.memory_start=masked."
      )
