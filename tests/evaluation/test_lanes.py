"""One lane and many score a split alike once they have warmed up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import corpus
from tests.evaluation import splits
from transformer_xl import mesh as mesh_lib
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.model import network
from transformer_xl.training import programs

MEMORY, LAYERS, TOKENS = 8, 2, 1003


def make_config(data_dir, **updates):
  return corpus.config(
    data_dir, **{"model.num_layers": LAYERS, "eval.split": "train"}, **updates
  )


@pytest.fixture(scope="module")
def params(data_dir):
  """Parameters that have learned to look five letters back."""
  config = make_config(data_dir, **{"train.batch_size": 8})
  file = token_file.open_split(f"{data_dir}/{corpus.NAME}", "train")
  stream = streams.TrainStream(file, num_lanes=8, segment_len=8, resets="wrap")
  state = programs.init_state(config.recipe)
  memory = network.empty_state(
    config.model, batch_size=8, mem_len=8, step_len=1
  )
  segments = jax.tree.map(jnp.asarray, stream.read(0, 300, slice(None)))
  mesh = mesh_lib.make_mesh(config.mesh)
  with jax.set_mesh(mesh):
    update = programs.update(config.recipe, mesh)
    numbers = programs.numbers(config.recipe)
    state, _, metrics = update(numbers, state, memory, segments)
  losses = metrics.sums.nll / metrics.sums.num_tokens
  assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:5])
  return state.params


def mean_nll(data_dir, params, *, lanes, warmup_len):
  config = make_config(
    data_dir, **{"eval.batch_size": lanes, "eval.warmup_len": warmup_len}
  )
  score = splits.score(config, mem_len=MEMORY, params=params)
  assert score.num_tokens == TOKENS - 1
  return score.nll / score.num_tokens


# With a warm-up by the whole text, test_evaluate.py has it.
@pytest.mark.rest
def test_many_lanes_score_as_one_after_a_full_warm_up(data_dir, params):
  one = mean_nll(data_dir, params, lanes=1, warmup_len=0)
  cold = mean_nll(data_dir, params, lanes=64, warmup_len=0)
  warm = mean_nll(data_dir, params, lanes=64, warmup_len=LAYERS * MEMORY)
  assert abs(cold - one) > 1e-2  # A lane reads 16 tokens, its first ones cold.
  # What a layer remembers was made with the memory below it, so N x M tokens
  # are all that a token depends on; what is left is rounding.
  assert warm == pytest.approx(one, abs=1e-5)
