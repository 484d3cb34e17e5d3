"""A run that learns only the frequencies of the tokens says so, once."""

import dataclasses
import math

import numpy as np
import pytest

from tests import corpus
from transformer_xl.data import token_file
from transformer_xl.training import log_window
from transformer_xl.training import loop
from transformer_xl.training import unigram_loss
from transformer_xl.workdir import run_history

UPDATES = {
  "train.warmup_steps": 10,
  "train.log_every_steps": 5,
  "train.segments_per_call": 5,
  "checkpoint.every_steps": 100,
}


def tokens_file(tokens):
  return token_file.TokenFile(np.asarray(tokens), np.zeros(1, int), "", {})


def test_the_entropy_is_that_of_the_frequencies(monkeypatch):
  assert token_file.unigram_entropy(tokens_file([3] * 7)) == 0
  tokens = [0, 1, 1, 5, 5, 5, 5, 5]
  shares = (1 / 8, 2 / 8, 5 / 8)
  expected = -sum(share * math.log(share) for share in shares)
  for counted in (1, 3, 8, 100):
    monkeypatch.setattr(token_file, "_COUNTED", counted)
    found = token_file.unigram_entropy(tokens_file(tokens))
    assert found == pytest.approx(expected, rel=1e-12)


def test_where_answers_alone_count_the_entropy_is_theirs():
  answers = token_file.Answers(np.array([1, 3, 4]), np.ones(3, int))
  file = tokens_file([7, 0, 7, 1, 0, 7])
  file = dataclasses.replace(file, answers=answers)
  expected = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
  found = token_file.unigram_entropy(file, targets="answers")
  assert found == pytest.approx(expected, rel=1e-12)


def train(tmp_path, monkeypatch, tokens, caplog, *, ends=(40,), **updates):
  """Trains on these ids; returns the run's history and warnings.

  The run is resumed after each number of updates in `ends` but the last.
  """
  monkeypatch.setattr(unigram_loss, "UPDATES", 20)
  monkeypatch.setattr(corpus, "text", lambda count, **_: tokens[:count])
  data_dir = corpus.write(tmp_path / "data")
  for num_steps in ends:
    updates["train.num_steps"] = num_steps
    config = corpus.config(data_dir, **UPDATES | updates)
    loop.train(config, str(tmp_path / "run"))
  said = [
    record.message
    for record in caplog.records
    if "frequencies of the tokens" in record.message
  ]
  return run_history.read(str(tmp_path / "run")), said


@pytest.mark.rest
def test_a_run_on_random_tokens_is_warned_once(tmp_path, monkeypatch, caplog):
  """A new model is as good as the frequencies, which are equal.

  Neither the warning nor the count of updates begins again with a resume.
  """
  draw = np.random.default_rng(0)
  tokens = draw.integers(len(corpus.SYMBOLS), size=1003).astype(np.uint8)
  history, said = train(
    tmp_path,
    monkeypatch,
    tokens,
    caplog,
    ends=(25, 40, 80),
    **{"train.learning_rate": 1e-6},
  )
  assert len(said) == 1
  assert said[0].startswith("Since step 10 the loss stays within 2 % of 3.1")
  assert "--config.model.pre_norm=True" in said[0]
  assert "--config.train.batch_size=8" in said[0]
  line = history.unigram_loss()
  assert line["unigram_since"] == 10
  assert line["step"] == 30
  assert line["advice"] in said[0]
  # The curve of the loss is that of the other lines.
  assert len(history.training("loss").x) == 16


@pytest.mark.rest
def test_a_run_that_learns_is_not_warned(tmp_path, monkeypatch, caplog):
  """Each letter follows from the one before, and all are equally frequent."""
  tokens = np.tile(np.arange(23, dtype=np.uint8), 50)
  history, said = train(
    tmp_path, monkeypatch, tokens, caplog, **{"train.learning_rate": 1e-2}
  )
  assert said == []
  assert history.unigram_loss() is None
  entropy = math.log(23)
  assert history.training("loss").y[-1] < 0.9 * entropy


class Lines:
  """A writer that keeps what is written."""

  def __init__(self):
    self.written = []

  def write(self, record):
    self.written.append(record)


def hook(tmp_path, losses):
  """The step at which the hook warns of these losses of log lines.

  None is for a line of which no token counted.
  """
  data_dir = corpus.write(tmp_path / "data")
  updates = {
    "train.num_steps": 10_000,
    "train.warmup_steps": 100,
    "train.log_every_steps": 100,
  }
  config = corpus.config(data_dir, **updates)
  entropy = token_file.unigram_entropy(
    token_file.open_split(config.data.dataset_dir, "train")
  )
  made = unigram_loss.UnigramLoss(
    config.train, config.data, str(tmp_path / "run"), pre_norm=False
  )
  writer = Lines()
  for index, loss in enumerate(losses):
    step = 100 * (index + 1)
    window = log_window.Window()
    if loss is not None:
      window.sums = {"nll": 7 * loss * entropy, "num_tokens": 7.0}
    if made.is_due(step):
      made(step, window, writer)
  return [record["step"] for record in writer.written]


@pytest.mark.parametrize(
  ("losses", "warned"),
  [
    ([1.01] * 20, [600]),  # 500 updates after the warm-up of 100.
    ([1.5] * 7 + [0.985] * 20, [1200]),
    ([1.01] * 5 + [0.95] + [1.01] * 4, []),  # It was better in between.
    ([1.03] * 20, []),
    ([0.97] * 20, []),
    ([1.01] * 5, []),
    ([1.01, None] * 5, [700]),
  ],
)
def test_the_loss_has_to_stay_there_for_500_updates(tmp_path, losses, warned):
  assert hook(tmp_path, losses) == warned
