"""What test_adaptive_span.py judges; an extension takes its own process.

python -m tests.examples.adaptive_spans FOLDER writes FOLDER/result.json.
"""

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

from examples import adaptive_span
from tests import comparison
from tests import tiny
from transformer_xl.config import load
from transformer_xl.conformance import registered
from transformer_xl.training import step as step_lib

LENGTH = 12


def of_equations():
  """The largest difference to the equations, in segments with resets."""
  alone = registered.Alone("adaptive_span")
  generator = np.random.default_rng(0)
  rows = generator.standard_normal((2, LENGTH, alone.width)).astype(np.float32)
  resets = np.zeros((2, LENGTH), bool)
  resets[0, 6] = resets[1, 4] = True
  params = alone.init(0)
  memory = alone.fresh(2)
  parts = []
  for start in range(0, LENGTH, 3):
    cut = slice(start, start + 3)
    output, memory = alone.step(params, rows[:, cut], memory, resets[:, cut])
    parts.append(output)
  expected = alone.reference(params, rows, resets)
  return comparison.difference(np.concatenate(parts, axis=1), expected)


def of_penalty():
  """The loss of training beside the prediction, and what it should be."""
  fields = {
    "model.layers": ("adaptive_span",),
    "model.adaptive_span.max_span": 20,
    "model.adaptive_span.penalty": 0.25,
  }
  config = load.from_config_dict(tiny.config_dict(**fields))
  params = tiny.params(config.model)
  tokens, targets, memory = tiny.inputs(config.model)
  model = step_lib.make_model(config.model, config.train)
  read = jax.jit(model.apply, static_argnames="method")
  _, auxiliary, _ = read(
    {"params": params},
    tokens,
    targets,
    memory,
    jnp.zeros(tokens.shape, bool),
    dropout_lanes=None,
    method="training_losses",
  )
  bias = params["layers"]["0"]["adaptive_span"]["span_bias"]
  spans = 20 / (1 + np.exp(-np.asarray(bias, np.float64)))
  return np.unique(auxiliary.mixers).tolist(), 0.25 * spans.mean()


def main(folder):
  assert adaptive_span.AdaptiveSpan.registered_name == "adaptive_span"
  found, expected = of_penalty()
  result = {"equations": of_equations(), "penalty": found, "mean": expected}
  with open(os.path.join(folder, "result.json"), "w") as file:
    json.dump(result, file)


if __name__ == "__main__":
  main(*sys.argv[1:])
