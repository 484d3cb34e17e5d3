"""Writes what a reader is to read."""

import os


def write(folder: str, name: str, content: bytes) -> str:
  """Returns the path."""
  path = os.path.join(folder, name)
  with open(path, "wb") as file:
    file.write(content)
  return path
