"""Parameters of an import as arrays, where imports open one after another."""

import jax
import numpy as np

from transformer_xl.importers import mapping


def read(tensors, layout, config, *, ignored):
  """What `mapping.open_tensors` finds, with its rows; all is read at once."""
  opened, rows = mapping.open_tensors(tensors, layout, config, ignored=ignored)
  return jax.tree.map(np.asarray, opened), rows
