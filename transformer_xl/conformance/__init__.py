"""Whether a memory is right: checks of any implementation, ours or another.

    from transformer_xl import conformance

    rows = conformance.run("delta")
    rows = conformance.run(my_implementation)
    assert not any(row.failed for row in rows), rows

`implementation.py` says what an implementation is.
"""

import importlib

# The modules below import one another through this one, so it imports none.
_MODULES = {
  "Facts": "implementation",
  "Row": "kit",
  "run": "kit",
  "show": "kit",
}


def __dir__() -> list[str]:
  """The names, those that are looked up among them."""
  return sorted({*globals(), *_MODULES})


def __getattr__(name: str) -> object:
  """What is public, which is looked up when somebody asks."""
  if name in _MODULES:
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return getattr(module, name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
