"""docs/training_log.md has every field that a run can log, and no other."""

import pathlib
import re

import pytest

from tests import corpus
from tests.training import runs
from transformer_xl import errors
from transformer_xl.training import divergence
from transformer_xl.training import loop

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "training_log.md"
# It validates, reports on its memory, and diverges until it gives up.
EVERYTHING = {
  "model.num_layers": 1,
  "train.learning_rate": 0.3,
  "train.eval_every_steps": 2,
  "train.log_memory_use": True,
  "divergence.action": "skip",
  "divergence.spike_nats": 0.05,
}


def documented():
  """The fields in the tables of each kind of line."""
  kinds = {}
  for section in re.split(r"\n(?:\*\*|## )", PAGE.read_text("utf-8")):
    kind, *_ = section.partition("**")
    kinds[kind] = set(re.findall(r"^\| `(\w+)`", section, re.M))
  return {
    name: kinds[name] for name in ("Training", "Validation", "Divergence")
  }


def kind_of(line):
  if "divergence" in line:
    return "Divergence"
  return "Validation" if "split" in line else "Training"


@pytest.mark.slow
@pytest.mark.rest
def test_the_page_has_the_fields_of_a_run(tmp_path, monkeypatch):
  monkeypatch.setattr(divergence, "WINDOW", 2)
  config = corpus.config(corpus.write(tmp_path / "data"), **EVERYTHING)
  with pytest.raises(errors.DivergenceError):
    loop.train(config, str(tmp_path / "run"))
  written = {}
  for line in runs.lines(tmp_path / "run"):
    written.setdefault(kind_of(line), set()).update(line)
  assert written == documented()
