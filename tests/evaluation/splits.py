"""Scores of a split by the package, for tests to compare with."""

import time

import jax

from tests import tiny
from transformer_xl import mesh as mesh_lib
from transformer_xl.evaluation import evaluator


def score(config, *, mem_len=8, params=None, seed=0):
  """Scores the split in `config`, with random parameters by default."""
  mesh = mesh_lib.make_mesh(config.mesh)
  if params is None:
    params = tiny.params(config.model, seed=seed)
  with jax.set_mesh(mesh):
    made = evaluator.Evaluator(config.scoring, mesh, mem_len=mem_len)
    start = time.perf_counter()
    result = made(params)
    assert 0 < result.seconds < time.perf_counter() - start
    return result
