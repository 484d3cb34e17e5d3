"""Rules of what needs attention, which recurrent networks do not have."""

from transformer_xl import errors
from transformer_xl.config import mixer_fields
from transformer_xl.config import schema


def require(model: schema.ModelConfig, what: str) -> None:
  """Raises a UserError for a model without attention."""
  if not model.has_attention:
    raise errors.UserError(
      f"{what} needs attention, which a model with model.layers={model.layers} "
      "does not have; name a run whose model.layers have some."
    )


def require_full_memory(model: schema.ModelConfig, what: str) -> None:
  """Raises a UserError unless some layers attend, and all of them to `mem_len`.

  `what` states a length of attention, which would not be that of a layer with
  a limit, nor of one that attends to compressed slots.
  """
  require(model, what)
  for name, limit in model.pattern:
    attends = mixer_fields.MIXERS[name].attends
    if attends and (limit or name != "attention"):
      raise errors.UserError(
        f"{what} states how far a model attends, which is not one length with "
        f"model.layers={model.layers}; set --config.model.layers=attention."
      )
