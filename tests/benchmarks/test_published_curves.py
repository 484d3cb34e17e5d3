"""Published logs and tables, read as losses by step."""

import math

import numpy as np
import pytest

from benchmarks import published_curves
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.experiments import ptb_published

# As the two programs write them, with other numbers.
EPOCHS = """    - seed : 1111
| epoch   1 step  100 |  100 batches | lr 1e-05 | loss  9.11 | ppl  9045.29
| end of epoch   1 | time: 99.00s | valid loss  5.91 | valid ppl   370.00 | v
| end of epoch   2 | time: 99.00s | valid loss  5.48 | valid ppl   240.50 | v
"""
STEPS = """    - seed : 2
| Eval   1 at step     1372 | time: 9.00s | valid loss 5.9 | valid ppl   360.0
| Eval   2 at step     5488 | time: 9.00s | valid loss 5.0 | valid ppl   150.0
"""


@pytest.fixture
def config():
  return load.from_config_dict(ptb_published.get_config())


def test_logs_have_the_validations_that_all_of_them_have(config):
  curve = published_curves.from_logs(config, [EPOCHS, STEPS], "5ad1")
  assert curve.seeds == [1111, 2]
  assert curve.validation_steps == [1372]
  expected = [[math.log(370.0)], [math.log(360.0)]]
  np.testing.assert_allclose(curve.validation_losses, expected, rtol=1e-12)
  assert curve.losses.shape == (2, 0)


def test_a_table_has_means_and_deviations(config):
  text = "step mean deviation\n5000 42.5 0.5\n10000 32.0 0.25\n"
  curve = published_curves.from_table(config, text, seeds=16)
  assert curve.validation_steps == [5000, 10_000]
  assert len(curve.seeds) == 16
  np.testing.assert_allclose(curve.validation_losses, np.log([[42.5, 32.0]]))
  # exp(mean + deviation) is the perplexity one deviation above the mean.
  above = np.exp(curve.validation_losses[0] + curve.validation_deviations)
  np.testing.assert_allclose(above, [43.0, 32.25], rtol=1e-4)


@pytest.mark.parametrize("texts", [[EPOCHS, ""], [EPOCHS, "- seed : 3"]])
def test_a_file_that_is_no_log_is_one_line(config, texts):
  with pytest.raises(errors.UserError, match="1 of 2 logs have a line"):
    published_curves.from_logs(config, texts, "5ad1")
  with pytest.raises(errors.UserError, match="has no row"):
    published_curves.from_table(config, texts[0], seeds=16)
