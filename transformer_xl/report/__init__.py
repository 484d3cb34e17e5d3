"""A page about a run: `--mode=report`."""

import importlib
import os
import pathlib


def _import_bokeh() -> None:
  """Imports Bokeh where the home folder is not known.

  It asks for it when it is imported. So is a container whose user has no entry
  and no HOME.
  """
  try:
    pathlib.Path.home()
  except RuntimeError:
    os.environ["HOME"] = os.sep
    try:
      importlib.import_module("bokeh.settings")
    finally:
      del os.environ["HOME"]


_import_bokeh()
