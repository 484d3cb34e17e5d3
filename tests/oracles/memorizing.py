"""What a memorizing layer retrieves, in float64 NumPy, query after query."""

import contextlib
import math
from unittest import mock

import jax.numpy as jnp
import numpy as np

from tests import kinds
from tests.oracles import cases
from transformer_xl.model.kernels import xla_attention
from transformer_xl.model.mixers import memorizing


def near(config):
  return config.memorizing.window


def mix(config, own, near, query, key, value, *, window):
  """Near values [T, H, d], mixed with what each query and head retrieves.

  `query`, `key` and `value` are [m + T, H, d], m states before the segment.
  """
  length = len(near)
  result = near.copy()
  for head in range(config.num_heads):
    gate = 1 / (1 + math.exp(-own["gate_bias"][head]))
    for i in range(length):
      place = len(key) - length + i
      far = [
        (query[place, head] @ key[j, head] / math.sqrt(config.head_dim), j)
        for j in range(place)
        if config.memorizing.window < place - j <= window
      ]
      if not far:
        continue
      best = sorted(far, reverse=True)[: config.memorizing.top_k]
      weights = np.exp([score - best[0][0] for score, _ in best])
      values = value[[j for _, j in best], head]
      retrieved = weights @ values / weights.sum()
      result[i, head] = gate * retrieved + (1 - gate) * near[i, head]
  return result


@contextlib.contextmanager
def watched(masks):
  """Notes how many keys lie far back, and how many of them are retrieved."""

  def retrieve(query, keys, values, *, near_reach, reach, top_k):
    far = xla_attention.visible_mask(reach, keys.shape[1])
    far &= ~xla_attention.visible_mask(near_reach, keys.shape[1])
    num_far = far.sum(axis=2)
    masks["far"] = num_far
    masks["retrieved"] = jnp.minimum(num_far, top_k)
    return values[:, : query.shape[1]], far.any(axis=2)[:, : query.shape[1]]

  with mock.patch.object(memorizing, "retrieve", retrieve):
    yield


def work(config, reading, pairs):
  """Scores of all that lies far back, and values of what is retrieved."""
  del reading
  width = config.num_heads * config.head_dim
  return width * (pairs["far"] + pairs["retrieved"]), {}


CASES = (
  cases.Case(3, 9, 0, None, {"layers": ("memorizing",), "pre_norm": True}),
  cases.Case(
    4, 0, 0, None, {"layers": (kinds.mixer(attends=False), "memorizing")}
  ),
)
REST = (
  cases.Case(
    3, 7, 4, "mem_len", {"layers": ("memorizing",), "untie_biases": True}
  ),
  cases.Case(
    *(3, 7, 0, "mem_len_plus_one"),
    {"layers": ("attention:2", "memorizing"), **cases.MODERN},
  ),
  # A window of more tokens than there are lanes or heads.
  cases.Case(
    3, 7, 0, None, {"layers": ("memorizing",), "memorizing.window": 3}
  ),
  cases.Case(
    *(6, 9, 0, None),
    {
      "layers": ("memorizing",),
      "memorizing.top_k": 1,
      "encoding": kinds.encoding(rotates=True),
    },
  ),
)
VALUES = {"window": (1, 100), "top_k": (1, 3)}
DRAWN = {"window": (1, 3, 9), "top_k": (1, 4, 30)}
TRANSFER = {"window": "same_shapes", "top_k": "same_shapes"}
SPLITS = {"query": ("fsdp", "tensor"), "gate_bias": ()}
