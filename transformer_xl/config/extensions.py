"""Files and packages of other people, which register what they define."""

import hashlib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Iterable

from transformer_xl import errors


def split(text: str) -> list[str]:
  """The paths and modules in the value of `--extensions`."""
  return [part.strip() for part in text.split(",") if part.strip()]


def load(names: Iterable[str]) -> None:
  """Imports extensions: paths of `.py` files, or modules that Python finds."""
  for name in names:
    if not name.endswith(".py"):
      importlib.import_module(name)
      continue
    file = pathlib.Path(name).expanduser().absolute()
    if not file.is_file():
      raise errors.UserError(
        f"--extensions={name}: there is no such file; name the path of a .py "
        "file, or a module that Python can import."
      )
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(
      f"extension_{file.stem}_{digest}", file
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
