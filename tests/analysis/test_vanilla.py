"""The vanilla twin is one switch, and has as many parameters."""

import jax
import pytest

from experiments import ablation_ptb
from experiments import vanilla as experiment
from transformer_xl import config as config_lib
from transformer_xl import errors
from transformer_xl import model as model_lib
from transformer_xl.analysis import vanilla


def count(model):
  params = jax.eval_shape(
    lambda key: model_lib.init_params(model, key), jax.random.key(0)
  )
  return model_lib.num_parameters(params)


def test_the_twin_has_as_many_parameters_and_no_recurrence():
  original = config_lib.from_config_dict(ablation_ptb.get_config())
  twin = config_lib.from_config_dict(experiment.get_config("ablation_ptb"))
  assert twin.model == vanilla.twin(original.model) != original.model
  assert (twin.train.mem_len, twin.eval.mem_len) == (0, (0,))
  assert twin.train.eval_mem_len == 0
  unit = 2 * original.model.model_dim + 1
  layers = original.model.num_layers
  biases = 2 * original.model.num_heads * original.model.head_dim
  difference = count(original.model) - biases - count(twin.model)
  assert abs(difference) <= layers * unit / 2


def test_an_unknown_experiment_is_one_line():
  with pytest.raises(errors.UserError, match="no experiments/missing"):
    experiment.get_config("missing")
