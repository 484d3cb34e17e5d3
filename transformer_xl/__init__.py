"""Transformer-XL in JAX/Flax.

    import transformer_xl

    model = transformer_xl.load("runs/quickstart")
    print(model.generate("def ").text)

docs/python.md has an example of each method.
"""

import importlib.metadata
from typing import TYPE_CHECKING

from transformer_xl import errors

if TYPE_CHECKING:
  from transformer_xl.pretrained import load

__all__ = ["UserError", "load"]

UserError = errors.UserError


def __dir__() -> list[str]:
  """The names, those that are looked up among them."""
  return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
  """`load` and `__version__`, which are looked up when somebody asks.

  So importing the package costs nothing and touches no device.
  """
  if name == "load":
    from transformer_xl import pretrained

    return pretrained.load
  if name == "__version__":
    return importlib.metadata.version("transformer-xl")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
