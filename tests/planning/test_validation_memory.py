"""What a validation needs beside the training state."""

import jax
import pytest

from tests import tiny
from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.planning import plan
from transformer_xl.training import programs

ONE = {"data": 1, "fsdp": 1, "tensor": 1}


def config(**updates):
  return load.from_config_dict(tiny.config_dict(**updates))


def bytes_while_evaluating(config, evaluation):
  mesh = mesh_lib.of_one_device(jax.devices()[0])
  return plan._bytes_while_evaluating(
    config.recipe, config.scoring, mesh, evaluation
  )


def num_bytes(tree):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.fixture
def asked(monkeypatch):
  """The lengths of the evaluations that are planned, of 1000 bytes each."""
  asked = []

  def eval_plan(scoring, mesh):
    asked.append(scoring.eval.mem_len)
    return {"hbm_bytes_per_chip": 1000}

  monkeypatch.setattr(plan, "eval_plan", eval_plan)
  return asked


@pytest.mark.parametrize("memory", ["hidden", "key_value"])
def test_validation_adds_to_the_training_state(monkeypatch, memory, asked):
  monkeypatch.setitem(hardware.CHIPS, "cpu", hardware.CHIPS["TPU v5 lite"])
  updates = {"train.eval_every_steps": 10, "train.mem_len": 3}
  validating = config(**updates, **{"eval.memory": memory})
  found = [
    bytes_while_evaluating(
      validating,
      {"mem_len": mem_len, "mesh": ONE, "hbm_bytes_per_chip": 1000},
    )
    for mem_len in (3, 5)
  ]
  # Evaluation alone has been planned with another length.
  assert asked == [(3,)]
  kept = num_bytes(programs.abstract_state(validating.recipe))
  if memory == "hidden":  # It reads the parameters of the state.
    kept -= num_bytes(programs.abstract_state(validating.recipe)[0].params)
  assert found == [1000 + kept] * 2


def test_there_is_no_figure_without_validation_or_without_room():
  fits = {"mem_len": 3, "mesh": ONE, "hbm_bytes_per_chip": 1000}
  never = config(**{"train.eval_every_steps": 0})
  assert bytes_while_evaluating(never, fits) is None
  updates = {"train.eval_every_steps": 10, "train.mem_len": 3}
  reason = {"mem_len": 3, "mesh": ONE, "fits": False, "reason": "too large"}
  sometimes = config(**updates)
  assert bytes_while_evaluating(sometimes, reason) is None
