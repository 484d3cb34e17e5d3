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
  """The update is compiled for another dropout than the run's."""
  update = programs.update

  def compile_other(recipe, mesh):
    model = dataclasses.replace(recipe.model, dropout_rate=0.9)
    return update(dataclasses.replace(recipe, model=model), mesh)

  monkeypatch.setattr(programs, "update", compile_other)


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
