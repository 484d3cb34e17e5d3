"""Implementations with one mistake each, to show that the checks see it.

Mistakes inside the model are made by replacing a function while it is traced;
the others spoil what goes into a step or comes out of it. Those that NumPy can
show are in `test_kit`: resets that are ignored, a lane or a token that is seen.
"""

import jax
import jax.numpy as jnp

from tests.conformance import adapters
from transformer_xl.model import visibility
from transformer_xl.model.encodings import distances as distances_lib
from transformer_xl.model.kernels import xla_attention


class RemembersAfterReset(adapters.Package):
  """Resets in this segment; in the next one the old document is back."""

  def read(self, params, tokens, memory, resets):
    result, after = super().read(params, tokens, memory, resets)
    length = jnp.minimum(memory.length + tokens.shape[1], self.mem_len)
    return result, after._replace(length=length)


class LosesTheNewestState(adapters.Package):
  def read(self, params, tokens, memory, resets):
    result, after = super().read(params, tokens, memory, resets)
    layers = jax.tree.map(lambda x: jnp.roll(x, 1, axis=2), after.layers)
    return result, after._replace(layers=layers)


class KeepsOneSegment(adapters.Package):
  def read(self, params, tokens, memory, resets):
    result, after = super().read(params, tokens, memory, resets)
    length = jnp.minimum(after.length, tokens.shape[1])
    return result, after._replace(length=length)


class AttendsEmptyMemory(adapters.Package):
  def fresh(self, batch_size):
    memory = super().fresh(batch_size)
    return memory._replace(length=memory.length + self.mem_len)


class StopsGradients(adapters.Package):
  """As a model does whose updates have one segment."""


class KeepsGradients(adapters.Package):
  """As a model does whose updates have several segments."""

  def read(self, params, tokens, memory, resets):
    self.trains_memory = True
    return super().read(params, tokens, memory, resets)


class ForgetsToNormalise(adapters.Package):
  def read(self, params, tokens, memory, resets):
    result, after = super().read(params, tokens, memory, resets)
    return result + 0.001, after


def window_too_long(monkeypatch):
  """Beyond what memory holds, so that it depends on the cuts."""
  original = visibility.visible_distance

  def visible_distance(visible, since_reset, *, mem_len, same_length, window):
    far = original(
      visible, since_reset, mem_len=mem_len, same_length=False, window=window
    )
    return jnp.minimum(far, mem_len + 1) if same_length else far

  monkeypatch.setattr(visibility, "visible_distance", visible_distance)


def distances_start_at_one(monkeypatch):
  original = distances_lib.position_encodings
  monkeypatch.setattr(
    distances_lib,
    "position_encodings",
    lambda num_keys, model_dim, *, clamp_len: original(
      num_keys + 1, model_dim, clamp_len=clamp_len
    )[:-1],
  )


def clamp_one_late(monkeypatch):
  original = distances_lib.position_encodings
  monkeypatch.setattr(
    distances_lib,
    "position_encodings",
    lambda num_keys, model_dim, *, clamp_len: original(
      num_keys, model_dim, clamp_len=clamp_len + 1
    ),
  )


def interleave_sines_and_cosines(monkeypatch):
  original = distances_lib.sinusoids

  def sinusoids(distances, model_dim):
    encodings = original(distances, model_dim)
    halves = encodings.reshape(-1, 2, model_dim // 2)
    return halves.swapaxes(1, 2).reshape(encodings.shape)

  monkeypatch.setattr(distances_lib, "sinusoids", sinusoids)


def rotate_neighbours(monkeypatch):
  """Pairs of neighbouring channels, of parameters with pairs across halves."""
  original = distances_lib.rotated

  def rotated(rows, angles, *, axis):
    pairs = rows.reshape(*rows.shape[:-1], -1, 2)
    rows = pairs.swapaxes(-1, -2).reshape(rows.shape)
    return original(rows, angles, axis=axis)

  monkeypatch.setattr(distances_lib, "rotated", rotated)


def scale_penalties(monkeypatch):
  """By 1 / sqrt(4), the width of a head, as the other terms of scores."""
  original = xla_attention.linear_penalties
  monkeypatch.setattr(
    xla_attention,
    "linear_penalties",
    lambda slopes, distance: original(slopes, distance) / 2,
  )


def shift_one_column_less(monkeypatch):
  original = xla_attention.rel_shift
  monkeypatch.setattr(
    xla_attention,
    "rel_shift",
    lambda scores: jnp.roll(original(scores), 1, axis=-1),
  )
