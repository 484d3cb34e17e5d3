"""Reported attention equals the attention in the model."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import corpus
from tests import oracle
from tests import tiny
from transformer_xl import errors
from transformer_xl import mesh
from transformer_xl.config import load
from transformer_xl.data import segment as segment_lib
from transformer_xl.evaluation import attention_use
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import evaluator
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer
from transformer_xl.training import loop

ROUNDINGS = 30  # See `comparison`.
CASES = {
  "relative": {},
  "untied_prenorm": {"untie_biases": True, "pre_norm": True},
  "shaw": {"encoding": "shaw", "num_positions": 4},
  "relative_tied": {"encoding": "relative_tied"},
  "absolute": {"encoding": "absolute"},
  "absolute_per_layer": {"encoding": "absolute_per_layer"},
  "rope": {"encoding": "rope"},
  "alibi": {"encoding": "alibi", "num_heads": 3},
  "limits": {
    "num_layers": 4,
    "layers": ("attention:1", "attention:2", "attention", "attention:1"),
  },
  "hybrid": {"num_layers": 4, "layers": ("lstm", "attention:3")},
  "compressive": {"layers": ("compressive",), "compressive.slots": 2},
}


def read(config, resets=None, **options):
  settings = mixer.Settings(inspects=True, **{"clamp_len": 5} | options)
  model = network.Network(config, settings)
  inputs, targets, memory = tiny.inputs(config)
  params = tiny.params(config)
  if resets is None:
    resets = jnp.zeros(inputs.shape, bool)
  found = jax.jit(
    lambda *arrays: attention_use.read_segment(*arrays, model=model)
  )(params, memory, segment_lib.Segment(inputs, targets, resets))
  return params, memory, inputs, found


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_oracle(case, monkeypatch):
  """With unit vectors as values, the result of attention is its weights."""
  config = tiny.model_config(**CASES[case])
  params, memory, inputs, found = read(config)
  seen = []
  original = oracle.attention

  def spy(query, key, value, *rest, window):
    seen.append(_weights(original, query, key, *rest, window=window))
    return original(query, key, value, *rest, window=window)

  monkeypatch.setattr(oracle, "attention", spy)
  layers = [np.asarray(n) for group in memory.groups for n in group.hiddens]
  lanes = [[layer[row] for layer in layers] for row in range(2)]
  oracle.segment(
    params, config, inputs, lanes, mem_len=tiny.MEMORY, clamp_len=5
  )
  keys = tiny.MEMORY + tiny.SEGMENT  # No weight where a layer has forgotten.
  seen = [np.pad(w, ((0, 0), (0, 0), (keys - w.shape[2], 0))) for w in seen]
  expected = np.stack(seen).reshape(2, config.num_layers, *seen[0].shape)
  actual = found.weights.swapaxes(0, 1)
  comparison.assert_close(actual, expected, roundings=ROUNDINGS)


def _weights(attend, query, key, *rest, window):
  """[H, T, K], a key at a time."""
  columns = []
  for index in range(len(key)):
    value = np.zeros_like(key)
    value[index] = 1
    columns.append(attend(query, key, value, *rest, window=window)[..., 0])
  return np.stack(columns, axis=-1).swapaxes(0, 1)


def test_terms_depend_on_what_the_paper_says():
  """(c) depends on the key alone, (d) on the distance; others lack them."""
  config = tiny.model_config()
  *_, found = read(config, clamp_len=0)
  terms = found.terms
  assert all(jnp.any(term != 0) for term in terms)
  rows = np.asarray(terms.content_bias)
  np.testing.assert_array_equal(rows, rows[..., :1, :].repeat(3, axis=-2))
  distance = np.asarray(terms.distance_bias)
  # Keys of one distance are on a diagonal.
  comparison.assert_close(
    distance[..., 1, 1:6], distance[..., 0, :5], roundings=ROUNDINGS
  )
  *_, shaw = read(tiny.model_config(**CASES["shaw"]), clamp_len=0)
  assert jnp.any(shaw.terms.distance != 0)
  for term in (shaw.terms.content_bias, shaw.terms.distance_bias):
    assert not jnp.any(term)
  *_, absolute = read(tiny.model_config(**CASES["absolute"]), clamp_len=0)
  assert not jnp.any(absolute.terms.distance)


def test_outputs_equal_those_of_the_model():
  config = tiny.model_config()
  params, memory, inputs, found = read(config, clamp_len=0)
  _, targets, _ = tiny.inputs(config)
  losses, after = tiny.apply(
    config, params, inputs, targets, memory, method="nll"
  )
  comparison.assert_close(found.nll, losses, roundings=ROUNDINGS)
  comparison.assert_close(
    found.memory.hiddens, after.hiddens, roundings=ROUNDINGS
  )


def test_no_attention_crosses_the_start_of_a_document():
  """Lane 0 starts one at its second token, lane 1 with its first."""
  resets = jnp.zeros((tiny.LANES, tiny.SEGMENT), bool)
  resets = resets.at[0, 1].set(True).at[1, 0].set(True)
  *_, found = read(tiny.model_config(), resets)
  weights = np.asarray(found.weights).swapaxes(0, 1)  # [B, N, H, T, K]
  for lane, first in ((weights[0, ..., 1:, :], 1), (weights[1], 0)):
    first += tiny.MEMORY
    assert not lane[..., :first].any()
    np.testing.assert_allclose(lane[..., first:].sum(-1), 1, rtol=1e-5)
  assert np.all(weights[0, ..., 0, : tiny.MEMORY] > 0)


def test_the_share_of_memory_excludes_the_segment():
  weights = np.zeros((2, 1, 1, 2, 5))  # Three keys in memory.
  weights[0, ..., 0], weights[1, ..., 3] = 1, 1
  weights[1, ..., 1, :] = [0.25, 0.25, 0, 0.5, 0]
  np.testing.assert_allclose(
    attention_use.memory_mass(jnp.asarray(weights)), [1, 0.25]
  )


@pytest.mark.parametrize("same_length", [False, True])
def test_training_logs_the_use_of_memory(data_dir, tmp_path, same_length):
  config = corpus.config(
    data_dir,
    **{
      "train.num_steps": 2,
      "train.eval_every_steps": 2,
      "train.log_memory_use": True,
      "eval.same_length": same_length,
      "eval.split": "valid",
    },
  )
  assert loop.train(config, str(tmp_path))
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  record = json.loads(lines[-1])
  assert record["split"] == "valid"
  assert record["nll_without_memory"] != record["nll"]
  # Without memory a token still sees its segment.
  whole = load.replaced(config, {"eval.same_length": False})
  subject = evaluate.load(whole, str(tmp_path))
  with jax.set_mesh(subject.mesh):
    score = evaluator.Evaluator(whole, subject.mesh, mem_len=0)(subject.params)
  expected = score.nll / score.num_tokens
  assert record["nll_without_memory"] == pytest.approx(expected, rel=1e-6)
  assert 0 < record["memory_share_layer_1"] < 1
  assert 0 < record["memory_share_layer_2"] < 1


def test_a_model_without_memory_is_refused(data_dir):
  updates = {"train.mem_len": 0, "train.eval_every_steps": 2}
  config = corpus.config(data_dir, **updates)
  with pytest.raises(errors.UserError, match="needs a memory"):
    attention_use.Report(config, mesh.make_mesh(config.mesh))
