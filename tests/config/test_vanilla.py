"""The vanilla twin is one switch, and has as many parameters."""

import dataclasses

import jax
import pytest

from experiments import ablation_ptb
from experiments import vanilla as experiments_vanilla
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import vanilla as config_vanilla
from transformer_xl.model import kinds


def count(model):
  params = jax.eval_shape(
    lambda key: kinds.init_params(model, key), jax.random.key(0)
  )
  return kinds.num_parameters(params)


def test_the_twin_has_as_many_parameters_and_no_recurrence():
  original = load.from_config_dict(ablation_ptb.get_config())
  twin = load.from_config_dict(experiments_vanilla.get_config("ablation_ptb"))
  changes = config_vanilla.changes(original.model)
  assert twin.model == dataclasses.replace(original.model, **changes)
  assert twin.model != original.model
  assert (twin.train.mem_len, twin.eval.mem_len) == (0, (0,))
  assert twin.train.eval_mem_len == 0
  unit = 2 * original.model.model_dim + 1
  layers = original.model.num_layers
  biases = 2 * original.model.num_heads * original.model.head_dim
  difference = count(original.model) - biases - count(twin.model)
  assert abs(difference) <= layers * unit / 2


def test_an_unknown_experiment_is_one_line():
  with pytest.raises(errors.UserError, match="no experiments/missing"):
    experiments_vanilla.get_config("missing")
