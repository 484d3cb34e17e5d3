"""Figures in one style; each file states the command that made it."""

import os
import sys
from typing import Any

import jax
import matplotlib
import numpy as np
from absl import logging
from matplotlib import pyplot

matplotlib.use("Agg")  # Training machines have no screen.
matplotlib.rcParams.update(
  {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
  }
)


def new(
  *, width: float, height: float, columns: int = 1, share: bool = False
) -> tuple[Any, Any]:
  """Creates a figure, sized in inches, and its axes, which may share y."""
  return pyplot.subplots(1, columns, figsize=(width, height), sharey=share)


def save(figure: Any, path: str, command: str) -> None:
  """Writes a PNG with its command as metadata, and closes the figure.

  As other results, it is written by the first process only.
  """
  if jax.process_index() == 0:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Description": command})
    logging.info("Wrote %s.", path)
  pyplot.close(figure)


def save_arrays(path: str, **arrays: Any) -> None:
  """Writes an archive of the arrays that a figure or a table sums up."""
  if jax.process_index() == 0:
    np.savez_compressed(path, **arrays)
    logging.info("Wrote %s.", path)


def made_by() -> str:
  """The command line of this process."""
  return " ".join(["python", *sys.orig_argv[1:]])
