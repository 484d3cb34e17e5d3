"""Rules of the pattern of layers: what they remember, and what attends.

docs/specification.md, section 7.
"""

from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.config import schema


def check(model: schema.ModelConfig) -> None:
  """Raises a UserError for the first rule that the values break."""
  known = registry.mixers
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


def check_memory_tokens(
  model: schema.ModelConfig, train: schema.TrainConfig
) -> None:
  """Raises a UserError where memory tokens cannot be read or trained.

  docs/specification.md, section 32.
  """
  if not model.num_memory_tokens:
    return
  what = f"model.num_memory_tokens={model.num_memory_tokens}"
  if model.memory_start == "zeros":
    raise errors.UserError(
      f"{what} needs a start of the text before which nothing is seen; set "
      "--config.model.memory_start=masked."
    )
  if registry.encodings[model.encoding].counts_from_segment:
    raise errors.UserError(
      f"{what} needs an encoding of distances, and model.encoding="
      f"{model.encoding} counts tokens from the start of a segment; set "
      "--config.model.encoding=relative."
    )
  if train.gradient_segments == 1:
    raise errors.UserError(
      f"{what} learns what to write from the segment that reads it, and "
      "train.gradient_segments=1 passes no gradient from there; set "
      "--config.train.gradient_segments=2."
    )


def require_attention(model: schema.ModelConfig, what: str) -> None:
  """Raises a UserError for a model without attention to tokens alone."""
  if not model.has_attention:
    raise errors.UserError(
      f"{what} needs attention, which a model with model.layers={model.layers} "
      "does not have; name a run whose model.layers have some."
    )
  if model.num_memory_tokens:
    raise errors.UserError(
      f"{what} needs attention to tokens, and this model attends to memory "
      f"tokens, too: model.num_memory_tokens is {model.num_memory_tokens}; "
      "name a run without."
    )


def require_memory_of_tokens(model: schema.ModelConfig, field: str) -> None:
  """Raises a UserError if what is seen of the memory cannot be limited.

  Zeros that are attended to have no length. Slots hold several tokens each, and
  so do vectors that segments are written into.
  """
  if model.memory_start == "zeros":
    raise errors.UserError(
      f"{field} limits what is seen of the memory, and with model.memory_start="
      "zeros all of it is seen; set --config.model.memory_start=masked, or "
      f"--config.{field}=-1."
    )
  if model.num_memory_tokens:
    raise errors.UserError(
      f"{field} limits what is seen of earlier segments, and memory tokens are "
      "always seen; set --config.model.num_memory_tokens=0, or "
      f"--config.{field}=-1."
    )
  for name in sorted(model.mixers):
    kind = registry.mixers[name]
    if kind.writes_segments or not kind.keys_are_tokens:
      raise errors.UserError(
        f"{field} limits what is seen of a memory of tokens, and {name} "
        "remembers several tokens in one vector; set --config.model.layers to "
        f"others, or --config.{field}=-1."
      )


def require_full_memory(model: schema.ModelConfig, what: str) -> None:
  """Raises a UserError unless some layers attend, and all of them to `mem_len`.

  `what` states a length of attention, which would not be that of a layer with
  a limit, nor of one that attends to compressed slots.
  """
  require_attention(model, what)
  for name, limit in model.pattern:
    attends = registry.mixers[name].attends
    if attends and (limit or name != "attention"):
      raise errors.UserError(
        f"{what} states how far a model attends, which is not one length with "
        f"model.layers={model.layers}; set --config.model.layers=attention."
      )
