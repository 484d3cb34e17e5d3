"""Equations of single mixers and encodings in float64, a file for each name.

A mixer that hands on a state has two functions, which see one lane:

    start(config) -> the state before the first token
    read(config, own, rows, state) -> outputs and the next state

`own` are the parameters of the layer, and `rows` [T, D] are normalised. What
another file has, `tests/oracle.py` calls in its attention.
"""

import importlib
import importlib.util
from types import ModuleType


def recurrence(name: str) -> ModuleType | None:
  """The equations of a mixer that hands on a state; None for another one."""
  path = f"{__name__}.{name}"
  if importlib.util.find_spec(path) is None:
    return None
  module = importlib.import_module(path)
  return module if hasattr(module, "start") else None
