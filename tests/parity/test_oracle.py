"""This package against equations, for what HuggingFace cannot express."""

import dataclasses

import numpy as np
import pytest

import tests.oracle
import tests.tiny
from tests.parity import configurations
from tests.parity import ours

# Float32 against float64.
TOLERANCE = 1e-4
OWN_RULES = {
  "masked_start": {"memory_start": "masked"},
  "wider_window": {"same_length_window": "mem_len_plus_one"},
  "published_tensorflow": {
    "same_length_window": "mem_len_plus_one",
    "layer_norm_epsilon": 1e-12,
    "pre_norm": False,
  },
  "no_first_projection": {
    "project_equal_width": False,
    "embed_dim": 8,
    "model_dim": 8,
    "cutoffs": (6, 14),
    "div_val": 2,
    "tie_projections": "none",
  },
  "pre_norm_masked": {"memory_start": "masked", "pre_norm": True},
  "pre_norm_wider_window": {
    "pre_norm": True,
    "same_length_window": "mem_len_plus_one",
  },
}
# The others are left to the rest of the tests.
SOME = ("published_tensorflow", "pre_norm_masked")
HUGGINGFACE = {
  "memory_start": "zeros",
  "same_length_window": "mem_len",
  "project_equal_width": True,
}


def draw(name: str) -> configurations.Drawn:
  index = 100 + list(OWN_RULES).index(name)
  drawn = configurations.draw(index, **OWN_RULES[name])
  wider = drawn.model.same_length_window == "mem_len_plus_one"
  # Without `same_length` there is no window.
  return drawn._replace(same_length=drawn.same_length or wider)


def read(drawn: configurations.Drawn, params: dict, model=None):
  """What the equations make of all segments, and the last memory."""
  model = model or drawn.model
  memory = tests.oracle.start(
    model, batch_size=drawn.batch_size, mem_len=drawn.mem_len
  )
  log_probs = []
  for tokens in drawn.tokens:
    scores, memory = tests.oracle.segment(
      params,
      model,
      tokens[:, :-1],
      memory,
      mem_len=drawn.mem_len,
      clamp_len=drawn.clamp_len,
      same_length=drawn.same_length,
    )
    log_probs.append(scores)
  return log_probs, memory


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=() if name in SOME else pytest.mark.rest)
    for name in OWN_RULES
  ],
)
def test_own_rules_follow_the_equations(name):
  drawn = draw(name)
  params = tests.tiny.params(drawn.model, seed=drawn.index)
  run = ours.run(drawn, params)
  log_probs, memory = read(drawn, params)
  for found, expected in zip(run.log_probs, log_probs, strict=True):
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
  for lane, layers in enumerate(memory):
    for layer, expected in enumerate(layers):
      found = run.memories[-1][layer, lane, drawn.mem_len - len(expected) :]
      np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
  "name", ["masked_start", "wider_window", "pre_norm_masked"]
)
def test_own_rules_are_not_those_of_huggingface(name):
  drawn = draw(name)
  params = tests.tiny.params(drawn.model, seed=drawn.index)
  other = dataclasses.replace(drawn.model, **HUGGINGFACE)
  assert other != drawn.model
  found, _ = read(drawn, params)
  expected, _ = read(drawn, params, model=other)
  worst = max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True))
  assert worst > 100 * TOLERANCE
