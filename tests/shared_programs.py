"""Runs of the same model in one file of tests share their compiled programs.

Most of a tiny run's time goes into tracing its update and its evaluation. Runs
of one file often differ in other things: when they save, log and stop.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator

import pytest

from transformer_xl.config import schema
from transformer_xl.evaluation import evaluator
from transformer_xl.evaluation.dynamic import evaluator as dynamic
from transformer_xl.training import programs

# They say what happens between updates, so no program depends on them.
_BETWEEN_UPDATES = {
  "log_every_steps": 1,
  "eval_every_steps": 1,
  "num_steps": 1,
  "segments_per_call": 1,
}


@contextlib.contextmanager
def sharing() -> Iterator[None]:
  """Makes the programs of training and evaluation once for each model."""
  update = functools.cache(programs.update)
  creators = functools.cache(programs.creators)
  abstract_state = programs.abstract_state
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      programs, "update", lambda recipe, mesh: update(_program(recipe), mesh)
    )
    patch.setattr(
      programs, "creators", lambda recipe, mesh: creators(_usual(recipe), mesh)
    )
    patch.setattr(
      programs, "abstract_state", lambda recipe: abstract_state(_usual(recipe))
    )
    for kind in (evaluator.Evaluator, dynamic.DynamicEvaluator):
      patch.setattr(kind, "__init__", _shared(kind.__init__))
    yield


def _usual(recipe: schema.Recipe) -> schema.Recipe:
  """A recipe with the usual intervals between updates, and no source."""
  train = dataclasses.replace(recipe.train, **_BETWEEN_UPDATES)
  if train.init_rest == "refuse":  # Else the source says what is drawn.
    train = dataclasses.replace(
      train, init_from="", init_checkpoint="latest", init_parameters="raw"
    )
  return dataclasses.replace(recipe, train=train)


def _program(recipe: schema.Recipe) -> schema.Recipe:
  """A recipe with the usual numbers, which updates take beside the rest."""
  usual = _usual(recipe)
  train = dataclasses.replace(usual.train, learning_rate=1.0)
  return dataclasses.replace(usual, train=train, seed=0)


def _shared(make):
  """The constructor of an evaluator, whose programs are those of its like."""

  @functools.cache
  def first_of(kind, scoring, mesh, mem_len):
    first = object.__new__(kind)
    make(first, scoring, mesh, mem_len=mem_len)
    return first

  def make_like_the_first(self, scoring, mesh, *, mem_len):
    vars(self).update(vars(first_of(type(self), scoring, mesh, mem_len)))

  return make_like_the_first
