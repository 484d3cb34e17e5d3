"""The loss that trains the convolution of slots trains nothing else."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer

LANES, SEGMENTS = 2, 3
OWN = ("kernel", "bias")


@functools.partial(jax.grad, argnums=1)
def gradient(model, params, state, tokens):
  """Of the mixers' own losses, over consecutive segments [S, B, T + 1]."""
  total = 0.0
  for segment in tokens:
    _, losses, state = model.apply(
      {"params": params},
      segment[:, :-1],
      segment[:, 1:],
      state,
      jnp.zeros(segment[:, 1:].shape, bool),
      dropout_lanes=None,
      method="training_losses",
    )
    total += jnp.sum(losses.mixers)
  return total


@pytest.mark.parametrize(
  ("segment_len", "mem_len", "trains_memory"),
  [(4, 6, False), (8, 2, False), (4, 6, True)],
  ids=["long memory", "memory that a segment leaves", "gradient segments"],
)
def test_only_the_convolution_learns(segment_len, mem_len, trains_memory):
  config = tiny.model_config(
    **{
      "layers": ("compressive", "attention"),
      "compressive.rate": 2,
      "compressive.slots": 3,
      "pre_norm": True,
    }
  )
  settings = mixer.Settings(trains=True, trains_memory=trains_memory)
  state = network.empty_state(
    config, batch_size=LANES, mem_len=mem_len, step_len=segment_len
  )
  tokens = np.random.default_rng(0).integers(
    config.vocab_size, size=(SEGMENTS, LANES, segment_len + 1), dtype=np.int32
  )
  found = gradient(
    network.Network(config, settings),
    tiny.params(config),
    state,
    jnp.asarray(tokens),
  )
  own = found["layers"]["compressive"].pop("compression")
  assert all(jnp.any(own[name] != 0) for name in OWN)
  assert not any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(found))
