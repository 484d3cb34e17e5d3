"""Rules of what needs attention, which recurrent networks do not have."""

import operator

from transformer_xl import errors
from transformer_xl.config import schema

# Settings of attention, at the value that is nothing to a recurrent network.
_OF_ATTENTION = {
  "model.encoding": "relative",
  "model.attention_dropout_rate": 0.0,
  "model.projection_dropout_rate": 0.0,
  "model.compression": "",
  "model.memory_lens": (),
  "model.remat": "none",
  "train.clamp_len": 0,
  "train.same_length": False,
  "train.log_memory_use": False,
  "eval.clamp_len": 0,
  "eval.same_length": False,
}
# Modes that show or compare attention.
MODES = ("attention", "eval_speed", "ablation")


def require(model: schema.ModelConfig, what: str) -> None:
  """Raises a UserError for a model that has none."""
  if not model.has_attention:
    raise errors.UserError(
      f"{what} needs attention, which a model with model.kind={model.kind} "
      "does not have; name a run with model.kind=transformer_xl."
    )


def check(config: schema.ExperimentConfig) -> None:
  """Raises a UserError for what a kernel or a network does not have.

  A recurrent network would silently ignore it.
  """
  if config.model.has_attention:
    return
  kind = config.model.kind
  for name, value in _OF_ATTENTION.items():
    actual = operator.attrgetter(name)(config)
    if actual != value:
      raise errors.UserError(
        f"{name}={actual} has no effect with model.kind={kind}, "
        f"which has no attention; set --config.{name}={value}."
      )
  for name in ("train.mem_len", "train.eval_mem_len", "eval.mem_len"):
    lengths = operator.attrgetter(name)(config)
    if max(lengths if isinstance(lengths, tuple) else (lengths,)) > 1:
      raise errors.UserError(
        f"{name}={lengths} has no meaning with model.kind={kind}, which "
        "remembers one state of any age: set 1, or 0 to forget it after each "
        f"segment: --config.{name}=1."
      )
  for mode in config.train.finish_with:
    if mode in MODES:
      require(config.model, f"{mode} in train.finish_with")
  if config.mesh.tensor > 1:
    raise errors.UserError(
      f"mesh.tensor={config.mesh.tensor} would leave the matrices of model.kind"
      f"={kind} whole; set --config.mesh.tensor=1."
    )
