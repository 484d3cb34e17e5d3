"""Added symbols leave old ones what they were, but for a known normaliser."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import tiny
from transformer_xl.training import initial_parameters

OLD, NEW = tiny.MODEL["vocab_size"], 50
ODDS = initial_parameters.ODDS
MODELS = {
  "plain": {},
  "untied": {"tie_weights": False, "embed_dim": 6},
  "clusters": {"cutoffs": (7, 15)},
  "narrow": {"cutoffs": (7, 15), "div_val": 2},
  "untied_clusters": {"cutoffs": (7,), "tie_weights": False},
  "untied_narrow": {"cutoffs": (7,), "tie_weights": False, "div_val": 2},
}
REST = ("untied", "narrow", "untied_clusters")


def both(updates):
  """A model and the same with more symbols, each with its parameters."""
  old = tiny.model_config(**updates)
  new = dataclasses.replace(old, vocab_size=OLD + NEW)
  params = tiny.params(old)
  return old, new, params, initial_parameters.add_symbols(params, old, NEW)


def log_probs(config, params):
  """[tokens, V] after some text of old symbols, with memory."""
  tokens, _, memory = tiny.inputs(tiny.model_config())
  result, _ = tiny.apply(config, params, tokens, memory, method="log_probs")
  return np.asarray(result, np.float64).reshape(-1, config.vocab_size)


@pytest.mark.some(1)
@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=pytest.mark.rest if name in REST else ())
    for name in MODELS
  ],
)
def test_old_symbols_keep_rows_biases_and_probabilities(name):
  old, new, params, grown = both(MODELS[name])
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a, b[: len(a)]), params, grown
  )
  before, after = log_probs(old, params), log_probs(new, grown)
  first = (0, *old.cutoffs)[-1]
  # Clusters before the last are as they were; in the last one, or the only one,
  # all fall by the same.
  odds = np.exp(after[:, OLD:]).sum(1) / np.exp(after[:, first:OLD]).sum(1)
  expected = before.copy()
  expected[:, first:] -= np.log1p(odds)[:, None]
  comparison.assert_close(after[:, :OLD], expected, roundings=30)
  # So given that the symbol is an old one of the cluster, nothing has changed.
  given = [
    x - np.log(np.exp(x).sum(1, keepdims=True))
    for x in (before[:, first:], after[:, first:OLD])
  ]
  comparison.assert_close(*given, roundings=30)
  np.testing.assert_allclose(np.exp(after).sum(1), 1, atol=1e-5)
  # The new ones are unlikely after every text, and can still be learned.
  assert (odds < ODDS).all()
  assert (odds > ODDS / 100).all()


def test_the_bound_is_met_where_old_symbols_are_alike():
  # With equal rows and biases Jensen's inequality is an equality.
  old, _, params, _ = both(MODELS["plain"])
  params = jax.tree.map(jnp.copy, params)
  table = params["embedding"]["table_0"]
  params["embedding"]["table_0"] = jnp.broadcast_to(table[:1], table.shape)
  params["softmax"]["bias"] = jnp.full((OLD,), 0.3)
  for count in (1, NEW):
    new = dataclasses.replace(old, vocab_size=OLD + count)
    after = log_probs(new, initial_parameters.add_symbols(params, old, count))
    odds = np.exp(after[:, OLD:]).sum(1) / np.exp(after[:, :OLD]).sum(1)
    np.testing.assert_allclose(odds, ODDS, rtol=1e-4)


def test_new_rows_are_the_means_of_their_cluster():
  for name, (table, first) in {
    "plain": ("table_0", 0),
    "clusters": ("table_0", 15),
    "narrow": ("table_2", 0),
  }.items():
    old, _, params, grown = both(MODELS[name])
    rows, mean = grown["embedding"][table], params["embedding"][table][first:]
    size = len(params["embedding"][table])
    np.testing.assert_allclose(
      rows[size:],
      np.broadcast_to(mean.mean(0), (NEW, rows.shape[1])),
      rtol=1e-5,
    )
    start = (0, *old.cutoffs)[-1]
    bias = params["softmax"]["bias"][start:]
    shift = math.log(ODDS * len(bias) / NEW)
    np.testing.assert_allclose(
      grown["softmax"]["bias"][OLD:], bias.mean() + shift, rtol=1e-5
    )
