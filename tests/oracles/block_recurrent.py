"""A block_recurrent layer's vectors, in float64 NumPy.

What it remembers is the states of the document, the vectors as they were before
its newest segment, None without any, and how long that segment was.
"""

import contextlib
import math
from typing import NamedTuple
from unittest import mock

import jax.numpy as jnp
import numpy as np

from tests import kinds
from tests.oracles import cases
from transformer_xl.model.mixers import block_recurrent


class Past(NamedTuple):
  states: np.ndarray  # [m, D], oldest first.
  vectors: np.ndarray | None
  newest: int


class Beside:
  """The vectors, which tokens read besides what they attend to.

  Attributes:
    past: the states that the layer still has [m, D].
  """

  def __init__(self, config, own, past, normalise, norm):
    self._config, self._own, self._norm = config, own, norm
    self.past = past.states
    self._vectors = written(
      config, own, past, normalise(past.states), self._normalised
    )

  def _normalised(self, rows):
    return self._norm(rows, self._own["vector_norm"])

  def read(self, rows):
    """What is added to the output of attention for normalised rows."""
    if self._vectors is None:
      return np.zeros(rows.shape)
    names = self._normalised(self._vectors) + self._own["vectors"]
    return attend(self._config, self._own, "read", rows, names)

  def after(self, states, num_read):
    """What the layer remembers after so many tokens."""
    return Past(states, self._vectors, num_read)


def start(config):
  return Past(np.zeros((0, config.model_dim)), None, 0)


def written(config, own, past, states, norm):
  """The vectors after the newest segment; None if nothing was read yet.

  `states` are those that the layer still has, normalised.
  """
  if not past.newest:
    return None
  shape = (config.block_recurrent.num_vectors, config.model_dim)
  old = np.zeros(shape) if past.vectors is None else past.vectors
  names = norm(old) + own["vectors"]
  tokens = states[-past.newest :]
  added = attend(config, own, "mix", names, names)
  added = added + attend(config, own, "write", names, tokens)
  gate = 1 / (1 + np.exp(-own["gate_bias"]))
  return gate * old + (1 - gate) * (added + own["write_bias"])


def attend(config, own, name, queries, rows):
  """Attention of every query to every row, head by head."""
  width = config.head_dim
  result = []
  for query in queries:
    heads = []
    for head in range(config.num_heads):
      part = slice(head * width, (head + 1) * width)
      q = query @ own[f"{name}_query"][:, part]
      scores = [q @ (row @ own[f"{name}_key"][:, part]) for row in rows]
      weights = np.exp((np.array(scores) - max(scores)) / math.sqrt(width))
      values = rows @ own[f"{name}_value"][:, part]
      heads.append(weights @ values / weights.sum())
    result.append(np.concatenate(heads) @ own[f"{name}_output"])
  return np.stack(result)


# What attends in a layer, in this order. Vectors are written where a segment
# starts, and read by every token.
NAMES = ("mix", "write", "read")
ONCE_A_SEGMENT = ("mix", "write")


@contextlib.contextmanager
def watched(masks):
  """Notes how many rows each query of the vectors' attention sees."""

  def attend(config, kernels, queries, rows, is_visible):
    del config, kernels
    if is_visible is None:
      is_visible = jnp.ones((1, rows.shape[1]), bool)
    name = NAMES[sum(key in masks for key in NAMES)]
    shape = (1, queries.shape[1], rows.shape[1])
    masks[name] = jnp.broadcast_to(is_visible[:, None], shape).sum(axis=2)
    return queries

  with mock.patch.object(block_recurrent, "_attend", attend):
    yield


def work(config, reading, pairs):
  """Scores and values of vectors and tokens; none if no vector is carried."""
  count = config.block_recurrent.num_vectors
  carried = 1 if reading.mem_len else 0
  vectors = carried * count / reading.segment_len
  seen = carried * pairs["write"] / count  # Tokens that vectors see.
  times = {
    "vectors": 0,  # Added, not multiplied.
    **dict.fromkeys(("read_query", "read_output"), carried),
    **dict.fromkeys(("write_key", "write_value"), seen),
    **dict.fromkeys(("read_key", "read_value"), vectors),
    **dict.fromkeys(("write_query", "write_output"), vectors),
    **{f"mix_{part}": vectors for part in block_recurrent.Kernels._fields},
  }
  width = config.num_heads * config.head_dim
  return 2 * width * carried * sum(pairs[name] for name in NAMES), times


CASES = (
  cases.Case(3, 7, 0, None, {"layers": ("block_recurrent",), "pre_norm": True}),
  cases.Case(
    4, 0, 0, None, {"layers": ("block_recurrent", kinds.mixer(attends=False))}
  ),
)
REST = (
  cases.Case(
    4, 2, 0, "mem_len", {"layers": ("block_recurrent", "attention:1")}
  ),
  cases.Case(2, 1, 0, None, {"layers": ("block_recurrent",)}),
)
VALUES = {"num_vectors": (4, 2)}
TRANSFER = {"num_vectors": "equal"}
NO_MATRICES = ("vectors",)
SPLITS = {
  "read_key": ("fsdp", "tensor"),
  "write_output": ("tensor", "fsdp"),
  "vectors": (),
}
