"""How many parameters there are and what they start from."""

import functools
import itertools

import jax
import numpy as np
import pytest

from tests import tiny
from transformer_xl.model import network

ADAPTIVE = {"cutoffs": (5, 11), "div_val": 2}


def expected_count(config) -> int:
  """The formula of the facts sheet, 2.14."""
  c, wide = config, config.num_heads * config.head_dim
  layer = 5 * wide * c.model_dim + 2 * c.model_dim * c.ff_dim
  layer += c.ff_dim + c.model_dim + 4 * c.model_dim
  biases = 2 * wide * (c.num_layers if c.untie_biases else 1)
  ends = (0, *c.cutoffs, c.vocab_size)
  sizes = [stop - start for start, stop in itertools.pairwise(ends)]
  widths = [c.embed_dim // c.div_val**index for index in range(len(sizes))]
  tables = sum(a * b for a, b in zip(sizes, widths, strict=True))

  def projection(width):
    equal = width == c.model_dim
    absent = equal and (c.div_val == 1 or not c.project_equal_width)
    return 0 if absent else width * c.model_dim

  tied = {"none": 0, "all": len(sizes), "all_but_first": None}
  own = [projection(width) for width in widths]
  if c.tie_projections == "all_but_first":
    untied = own[:1]
  else:
    untied = own[tied[c.tie_projections] :]
  inputs = own[:1] if c.div_val == 1 else own
  softmax = c.vocab_size + len(c.cutoffs) * (c.embed_dim + 1)
  softmax += 0 if c.tie_weights else tables
  everything = (layer * c.num_layers, biases, tables, softmax)
  return sum(everything) + sum(inputs) + sum(untied)


@pytest.mark.parametrize(
  "options",
  [
    {},
    {"untie_biases": True, "embed_dim": 12},
    {"tie_weights": False, "pre_norm": True},
    {"tie_weights": False, "tie_projections": "all", **ADAPTIVE},
    {"tie_projections": "none", **ADAPTIVE},
    {"tie_projections": "all", "embed_dim": 12, "cutoffs": (5, 11)},
    {"tie_projections": "none", "embed_dim": 12, "cutoffs": (5, 11)},
    {"project_equal_width": False, **ADAPTIVE},
    {"project_equal_width": False, "tie_projections": "none", **ADAPTIVE},
  ],
  ids=str,
)
def test_parameter_count_is_that_of_the_formula(options):
  config = tiny.model_config(**options)
  params = jax.eval_shape(
    lambda key: network.init_params(config, key), jax.random.key(0)
  )
  assert network.num_parameters(params) == expected_count(config)


@functools.cache
def _initial():
  config = tiny.model_config(
    model_dim=64,
    ff_dim=96,
    head_dim=32,
    vocab_size=300,
    cutoffs=(100, 200),
    div_val=2,
    init_std=0.05,
  )
  init = jax.jit(lambda key: network.init_params(config, key))
  return init(jax.random.key(1))


def test_initialisation_is_the_published_one():
  for path, leaf in jax.tree_util.tree_leaves_with_path(_initial()):
    name, values = path[-1].key, np.asarray(leaf)
    centre, std = 0.0, 0.05
    if name in (
      "bias",
      "cluster_bias",
      "cluster_kernel",
      "in_bias",
      "out_bias",
    ):
      std = 0.0
    elif name == "scale":
      centre, std = 1.0, 0.0
    elif name.startswith("projection_"):
      std = 0.01
    # Four standard errors of a mean and of a standard deviation.
    margin = 4 * std / np.sqrt(values.size)
    assert abs(values.mean() - centre) <= margin, name
    assert abs(values.std() - std) <= margin, name
    assert values.dtype == np.float32


def test_layers_start_differently():
  first, second = _initial()["layers"]["0"]["attention"]["query"]
  assert np.abs(first - second).max() > 0.05  # The initial deviation.


def test_layers_in_different_places_start_differently():
  config = tiny.model_config(layers=("attention", "attention"))
  draw = jax.jit(functools.partial(network.init_params, config))
  places = draw(jax.random.key(0))["layers"]
  first, second = (places[place]["attention"]["query"] for place in "01")
  assert np.abs(first - second).max() > 0.05
