"""Transformer-XL in JAX/Flax.

    import transformer_xl

    model = transformer_xl.load("runs/quickstart")
    print(model.generate("def ").text)

docs/python.md has an example of each method.
"""

import os
from typing import TYPE_CHECKING, Any

from transformer_xl import errors

if TYPE_CHECKING:
  from transformer_xl import pretrained

__all__ = ["UserError", "load"]

UserError = errors.UserError


def load(
  source: str | os.PathLike[str], **options: Any
) -> "pretrained.PretrainedModel":
  """Loads a trained model; see `transformer_xl.pretrained.load`.

  Args:
    source: the workdir of a run or an import, a folder with a HuggingFace
      model of the type `transfo-xl`, or `hf://OWNER/NAME[@REVISION]`.
    **options: `mem_len` and `segment_len` in tokens; `checkpoint` and
      `parameters` of a run, as in `config.eval`.

  Raises:
    UserError: there is no such model, or it cannot be loaded; in one line.
  """
  # Late: importing the package costs nothing and touches no device.
  from transformer_xl import pretrained

  return pretrained.load(source, **options)
