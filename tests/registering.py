"""Registers classes for a while, so that no other test knows them."""

import contextlib
from collections.abc import Iterator, Mapping

from transformer_xl.config import registry


@contextlib.contextmanager
def temporarily(
  kind: registry.Registry, classes: Mapping[str, type]
) -> Iterator[None]:
  """Registers new classes of a kind by their names, and forgets them again."""
  try:
    for name, added in classes.items():
      kind.register(name)(added)
    yield
  finally:
    for name in classes:
      kind._found.pop(name, None)
      registry._versions.append(name)
