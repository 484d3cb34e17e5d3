"""What is said of a run's text before its first update."""

import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl.training import data_checks


@pytest.mark.parametrize(("num_steps", "warns"), [(312, False), (314, True)])
def test_a_run_that_reads_its_text_often_is_warned(
  data_dir, num_steps, warns, caplog
):
  """Ten times 1003 tokens, at 32 an update, are 313.4 updates."""
  config = corpus.config(data_dir, **{"train.num_steps": num_steps})
  data_checks.warn_of_overfitting(config.data, config.train, config.model)
  assert ("10.0 times and may overfit" in caplog.text) == warns


def test_the_advice_for_drawn_lengths_is_a_number_of_updates(data_dir, caplog):
  drawn = {
    "train.segment_len_std": 2.0,
    "train.num_steps": 1000,
    "train.mem_len": 0,
    "eval.mem_len": (0,),
  }
  config = corpus.config(data_dir, **drawn)
  data_checks.warn_of_overfitting(config.data, config.train, config.model)
  # Ten times 1003 tokens, at 31.2 an update on average.
  assert "--config.train.num_steps=321 reads them 10 times" in caplog.text


def test_validation_needs_its_split(tmp_path):
  data_dir = corpus.write(tmp_path / "data")
  with corpus.changed_meta(tmp_path / "data" / corpus.NAME) as meta:
    del meta["splits"]["valid"]
  run = str(tmp_path / "run")
  text = (
    "train.eval_every_steps=2 validates on a split 'valid', and .* has only"
  )
  config = corpus.config(data_dir, **{"train.eval_every_steps": 2})
  with pytest.raises(errors.UserError, match=text):
    data_checks.require(config.data, config.train, run)
  config = corpus.config(data_dir, **{"train.eval_every_steps": 0})
  data_checks.require(config.data, config.train, run)
