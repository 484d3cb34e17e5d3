"""Rules of what needs attention, which recurrent networks do not have."""

from transformer_xl import errors
from transformer_xl.config import model_fields
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
  """Raises a UserError for what a kernel or a network does not have."""
  _check_cudnn(config.model)
  for mode in config.train.finish_with:
    if mode in MODES:
      require(config.model, f"{mode} in train.finish_with")


def _check_cudnn(model: schema.ModelConfig) -> None:
  """Raises for attention that `model.kernels.cudnn` cannot compute."""
  if model.attention != "cudnn":
    return
  if model_fields.ENCODINGS[model.encoding].scores_distances:
    raise errors.UserError(
      "model.attention=cudnn has no scores by distance, which model.encoding="
      f"{model.encoding} needs; set --config.model.encoding=rope, or "
      "--config.model.attention=auto."
    )
  if model.attention_dropout_rate:
    raise errors.UserError(
      "model.attention=cudnn drops no attention weights, but model."
      f"attention_dropout_rate={model.attention_dropout_rate}; set "
      "--config.model.attention_dropout_rate=0.0, or "
      "--config.model.attention=auto."
    )
