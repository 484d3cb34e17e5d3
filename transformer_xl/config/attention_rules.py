"""Rules of what needs attention, which recurrent networks do not have."""

from transformer_xl import errors
from transformer_xl.config import schema

# Modes that show or compare attention.
MODES = ("attention", "eval_speed", "ablation")


def require(model: schema.ModelConfig, what: str) -> None:
  """Raises a UserError for a model that has none."""
  if not model.has_attention:
    raise errors.UserError(
      f"{what} needs attention, which a model with model.layers={model.layers} "
      "does not have; name a run whose model.layers have some."
    )


def check(config: schema.ExperimentConfig) -> None:
  """Raises a UserError for what a network without attention does not have."""
  for mode in config.train.finish_with:
    if mode in MODES:
      require(config.model, f"{mode} in train.finish_with")
