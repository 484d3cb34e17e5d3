"""Training with a fault that no configuration shows: what check_run is for."""

import dataclasses

from transformer_xl.data import streams
from transformer_xl.training import programs


def nothing(monkeypatch):
  """A healthy run."""


def tenfold_rate(monkeypatch):
  """The learning rate is ten times what the configuration says."""
  update = programs.update

  def compile_other(recipe, mesh):
    compiled = update(recipe, mesh)

    def call(numbers, *arguments):
      rate = 10 * numbers.learning_rate
      return compiled(numbers._replace(learning_rate=rate), *arguments)

    return call

  monkeypatch.setattr(programs, "update", compile_other)


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
