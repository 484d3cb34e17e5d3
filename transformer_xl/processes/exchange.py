"""Arrays and texts that the processes of a run share."""

import json
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_xl import errors
from transformer_xl import shapes


def fetch(results: shapes.PyTree) -> shapes.PyTree:
  """Copies a tree of results to the host, as whole arrays of NumPy.

  The compiler may shard results over the devices of several processes, each of
  which can read those of its own only; so all of them must call this.
  """

  def whole(leaf: jax.Array) -> jax.Array | np.ndarray:
    if leaf.is_fully_addressable:
      return leaf
    return multihost_utils.process_allgather(leaf, tiled=True)

  return jax.device_get(jax.tree.map(whole, results))


def read_by_first(read: Callable[[], str]) -> str:
  """What the first process reads, in all of them, which must all call this.

  Standard input and files may differ from host to host.

  Raises:
    UserError: the first process raises it.
  """
  if jax.process_count() == 1:
    return read()
  found = {}
  if jax.process_index() == 0:
    try:
      found = {"text": read()}
    except errors.UserError as error:
      found = {"error": str(error)}
  content = np.frombuffer(json.dumps(found).encode(), np.uint8)
  size = multihost_utils.broadcast_one_to_all(np.int32(len(content)))
  # All processes give an array of the same size; only that of the first counts.
  shared = multihost_utils.broadcast_one_to_all(np.resize(content, int(size)))
  found = json.loads(np.asarray(shared, np.uint8).tobytes())
  if "error" in found:
    raise errors.UserError(found["error"])
  return found["text"]
