"""Every experiment trains and evaluates on slices of 8 to 256 chips.

Nothing is compiled: shapes and shardings on chips that do not exist.
"""

import functools
import importlib
import math
import types

import jax
import numpy as np
import pytest

from tests import chips
from tests import corpus
from tests.config import test_experiments
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.data import segment
from transformer_xl.data import segment_lengths
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluator
from transformer_xl.experiments import own_text
from transformer_xl.training import programs
from transformer_xl.workdir import trained_model

NAMES = (*test_experiments.NAMES, "vanilla:ablation_ptb", "own_text:1e9")
COUNTS = (8, 256)  # Every slice has its share of lanes and state, see below.
# The most chips of which more than half have lanes of the published batch, if
# fewer than 256: beyond, the heads cannot be divided further.
USEFUL = {
  **{"base": 64, "quickstart": 32, "ablation_ptb": 64, "ptb_small": 64},
  **{"vanilla:ablation_ptb": 64, "ptb": 128, "ptb_published": 32},
  **{"wikitext2_published": 64, "wt103_base": 128, "recall": 64},
  **{"wikitext2_small": 32, "ptb_medium": 128},
  **{"enwik8_medium": 64, "enwik8_alrfou": 32},
  **{"own_text:1e9": 64, "modern": 32, "memory_text": 32},
  **{"llama_small": 16, "fine_tuning": 8},
}

# The others are left to the rest of the tests.
SOME = [("wt103_large", 256), ("enwik8_base", 256), ("quickstart", 256)]


@pytest.fixture(scope="module")
def make_config(tmp_path_factory):
  """The configuration of an experiment, with a vocabulary."""
  data_dir = corpus.write(tmp_path_factory.mktemp("data"))

  @functools.cache
  def make(name):
    name, _, argument = name.partition(":")
    module = importlib.import_module(f"transformer_xl.experiments.{name}")
    if module is own_text:
      tokens = np.broadcast_to(np.uint8(1), int(float(argument)))
      file = types.SimpleNamespace(tokens=tokens)
      with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_file, "open_split", lambda *_: file)
        config = module.get_config(f"{data_dir}/{corpus.NAME}")
    else:
      config = module.get_config(*filter(None, [argument]))
    config.model.vocab_size = config.model.vocab_size or 256
    if config.model.dtype == "auto":
      config.model.dtype = "bfloat16"  # As --mode=plan takes it.
    return load.from_config_dict(config)

  return make


@pytest.mark.some(8)
@pytest.mark.parametrize("name", NAMES)
def test_a_chip_has_its_share_of_lanes_and_state(make_config, name):
  config = make_config(name)
  lanes = config.train.batch_size // config.train.accumulation_steps
  carry = programs.abstract_state(config.recipe)
  for kind, shape, count in chips.every_slice():
    mesh = programs.make_mesh(
      config.recipe, config.mesh, devices=chips.make(kind, shape)
    )
    assert mesh.size == count
    is_useful = count <= USEFUL.get(name, 256)
    assert (2 * lanes > mesh_lib.num_shards(mesh)) == is_useful, count
    # No more than an eighth of the smallest chip.
    shardings = programs.shardings(config.recipe, mesh)
    assert _bytes_per_chip(carry, shardings) < 2**31


def _bytes_per_chip(tree, shardings):
  """Raises where a sharding does not divide an array."""
  sizes = jax.tree.map(
    lambda leaf, sharding: (
      math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    ),
    *(tree, shardings),
  )
  return sum(jax.tree.leaves(sizes))


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "count"),
  [
    pytest.param(
      name, count, marks=() if (name, count) in SOME else pytest.mark.rest
    )
    for name in NAMES
    for count in COUNTS
  ],
)
def test_programs_can_be_traced(make_config, name, count):
  config = make_config(name)
  (shape,) = (s for s in chips.SLICES["v5e"] if math.prod(s) == count)
  devices = chips.make("v5e", shape)
  mesh = programs.make_mesh(config.recipe, config.mesh, devices=devices)
  train = config.train
  with jax.set_mesh(mesh):
    before = programs.sharded_abstract_state(config.recipe, mesh)
    lengths = segment_lengths.of(config.train)
    segments = segment.abstract_segments(
      mesh,
      config.updates_per_call * train.gradient_segments,
      *(train, lengths.longest),
      parts=train.accumulation_steps,
      has_weights=lengths.is_padded,
    )
    *after, metrics = jax.eval_shape(
      programs.update(config.recipe, mesh),
      programs.numbers(config.recipe),
      *before,
      segments,
    )
  assert _shapes(tuple(after)) == _shapes(before)
  assert metrics.sums.nll.shape == (config.updates_per_call,)
  mesh, evaluation = (
    trained_model.make_mesh(config.model, config.mesh, devices=devices),
    config.eval,
  )
  with jax.set_mesh(mesh):
    made = evaluator.Evaluator(
      config.scoring, mesh, mem_len=max(evaluation.mem_len)
    )
    segments = segment.abstract_segments(
      mesh,
      *(evaluator.SEGMENTS_PER_CALL, evaluation, evaluation.segment_len),
      has_weights=True,
    )
    reader = made.mesh_reader
    _, sums = jax.eval_shape(
      made.score_segments, reader.frozen, reader.state, segments
    )
  assert sums.nll.shape == ()


def _shapes(tree):
  return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
