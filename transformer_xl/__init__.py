"""Transformer-XL in JAX/Flax.

    import transformer_xl

    model = transformer_xl.load("runs/quickstart")
    print(model.generate("def ").text)

docs/python.md has an example of each method.
"""

import importlib.metadata
import os
from typing import TYPE_CHECKING

from transformer_xl import arguments
from transformer_xl import errors

if TYPE_CHECKING:
  from transformer_xl import pretrained

__all__ = ["UserError", "load"]

UserError = errors.UserError


@arguments.checked
def load(
  source: str | os.PathLike[str],
  *,
  mem_len: int | None = None,
  segment_len: int | None = None,
  checkpoint: str | int | None = None,
  parameters: str | None = None,
) -> "pretrained.PretrainedModel":
  """Loads a trained model; see `transformer_xl.pretrained.load`.

  Args:
    source: the workdir of a run or an import, a folder with a HuggingFace
      model of the type `transfo-xl`, or `hf://OWNER/NAME[@REVISION]`.
    mem_len: length of the memory in tokens; by default that of
      `config.score`.
    segment_len: tokens that are read at once; by default those of
      `config.score`.
    checkpoint: of a run: latest, best, or the number of its step.
    parameters: of a run: raw, ema or asgd.

  Raises:
    UserError: there is no such model, or it cannot be loaded; in one line.
  """
  # Late: importing the package costs nothing and touches no device.
  from transformer_xl import pretrained

  return pretrained.load(
    source,
    mem_len=mem_len,
    segment_len=segment_len,
    checkpoint=checkpoint,
    parameters=parameters,
  )


def __getattr__(name: str) -> str:
  """The attribute `__version__`, which is looked up when somebody asks."""
  if name == "__version__":
    return importlib.metadata.version("transformer-xl")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
