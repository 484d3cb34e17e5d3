"""Training with a fault that no configuration shows: what check_run is for."""

import dataclasses

from transformer_xl.data import streams
from transformer_xl.training import programs


def nothing(monkeypatch):
  """A healthy run."""


def tenfold_rate(monkeypatch):
  """The learning rate is ten times what the configuration says."""
  numbers = programs.numbers

  def ten_times(recipe):
    own = numbers(recipe)
    return own._replace(learning_rate=10 * own.learning_rate)

  monkeypatch.setattr(programs, "numbers", ten_times)


def much_dropout(monkeypatch):
  _update_with(monkeypatch, "model", lambda c: {"dropout_rate": 0.9})


def shifted_labels(monkeypatch):
  """Targets are one token too late."""
  pairs = streams._pairs

  def late(file, starts, segment_len, bring_inside):
    inputs, _ = pairs(file, starts, segment_len, bring_inside)
    after = (starts + 1) % (len(file.tokens) - 1)
    _, targets = pairs(file, after, segment_len, bring_inside)
    return inputs, targets

  monkeypatch.setattr(streams, "_pairs", late)


def seen_labels(monkeypatch):
  """Targets are the inputs: nothing is left to predict."""
  pairs = streams._pairs

  def same(file, starts, segment_len, bring_inside):
    inputs, _ = pairs(file, starts, segment_len, bring_inside)
    return inputs, inputs

  monkeypatch.setattr(streams, "_pairs", same)


def _update_with(monkeypatch, section, changes):
  """The update is compiled for another configuration than the run's."""
  update = programs.update

  def compile_other(config, mesh):
    part = getattr(config, section)
    part = dataclasses.replace(part, **changes(part))
    return update(dataclasses.replace(config, **{section: part}), mesh)

  monkeypatch.setattr(programs, "update", compile_other)
