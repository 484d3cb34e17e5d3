"""The tiny dataset, and the training without time, that these tests share."""

import signal

import pytest
from matplotlib import figure

from tests import corpus
from tests import shared_programs
from tests.analysis import runs as runs_lib
from transformer_xl import errors
from transformer_xl.analysis import ablation
from transformer_xl.analysis import costs
from transformer_xl.analysis import study
from transformer_xl.analysis import trials


@pytest.fixture(scope="module", autouse=True)
def programs_are_shared():
  """Members of a study are trained and evaluated by the same programs."""
  with shared_programs.sharing():
    yield


@pytest.fixture(scope="package")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))


@pytest.fixture
def trained(monkeypatch):
  """Training that takes no time; folders of what is trained, and its losses.

  `trained.loss(trial's config)` is the loss at all lengths and on all splits.
  Pictures are empty files, unless `trained.save_pictures()` is called.
  """

  class Trained(list):
    stops = frozenset()
    diverges = frozenset()

    def loss(self, config):
      return 3.0 + config.train.learning_rate

    def save_pictures(self):
      monkeypatch.setattr(figure.Figure, "savefig", savefig)

  savefig = figure.Figure.savefig
  runs = Trained()
  read = runs.read = []

  def train(config, folder):
    runs.append(folder)
    if config.train.learning_rate in runs.diverges:
      raise errors.DivergenceError("lost")
    if len(runs) in runs.stops:
      raise errors.StoppedError(signal.SIGTERM)

  class Model:
    def __init__(self, config, folder):
      self.config = config
      self.params = {}
      self.step = 4
      read.append((config.eval.split, folder))

  def measure(model, lengths):
    losses = dict.fromkeys(lengths, runs.loss(model.config))
    return trials.Measurement(losses, bins={})

  monkeypatch.setattr(figure.Figure, "savefig", runs_lib.save_no_picture)
  monkeypatch.setattr(trials.loop, "train", train)
  monkeypatch.setattr(trials.evaluate, "load", Model)
  monkeypatch.setattr(study, "measure", measure)
  monkeypatch.setattr(ablation, "measure", measure)
  monkeypatch.setattr(costs, "planned_bytes", lambda *_: 7)
  monkeypatch.setattr(
    costs,
    "seconds_per_token",
    lambda each: dict.fromkeys(each, costs.Seconds(2.0, 1.0, 3.0)),
  )
  return runs
