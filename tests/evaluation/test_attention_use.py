"""Reported attention equals the attention in the model."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import corpus
from tests import kinds
from tests import oracle
from tests import tiny
from transformer_xl import mesh
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.conformance.equations import attention as equations
from transformer_xl.data import segment as segment_lib
from transformer_xl.evaluation import attention_use
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import evaluator
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer
from transformer_xl.training import loop

ROUNDINGS = 30  # See `comparison`.
CASES = {
  **{
    name: {"encoding": name, "num_positions": tiny.MEMORY, "num_heads": 3}
    for name in kinds.encodings(counts_from_segment=False)
  },
  **{
    name: {"encoding": name}
    for name in kinds.encodings(counts_from_segment=True)
  },
  "untied_prenorm": {"untie_biases": True, "pre_norm": True},
  "limits": {
    "num_layers": 4,
    "layers": ("attention:1", "attention:2", "attention", "attention:1"),
  },
  # Mixers that do not attend are below some that do.
  **{
    name: {
      "num_layers": 4 - 2 * registry.mixers[name].attends,
      "layers": (name,)
      if registry.mixers[name].attends
      else (name, "attention:3"),
      **kinds.own_fields(name),
    }
    for name in registry.mixers
    if name != kinds.USUAL
  },
}


def read(config, resets=None, **settings):
  """A segment after a full memory, with everything that reading it needs."""
  inputs, targets, memory = tiny.inputs(config)
  params = tiny.params(config)
  if resets is None:
    resets = jnp.zeros(inputs.shape, bool)
  segment = segment_lib.Segment(inputs, targets, resets)
  found = reading(config, **settings)(params, memory, segment)
  return params, memory, inputs, found


@functools.cache
def reading(config, **settings):
  """The compiled function that reads a segment."""
  model = network.Network(config, mixer.Settings(inspects=True, **settings))
  return jax.jit(functools.partial(attention_use.read_segment, model=model))


@pytest.mark.some(6)
@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_oracle(case, monkeypatch):
  """With unit vectors as values, the result of attention is its weights."""
  config = tiny.model_config(**CASES[case])
  params = tiny.params(config)
  read_segment = reading(config, clamp_len=5)
  seen = []
  original = equations.attention

  def spy(inputs):
    seen.append(_weights(original, inputs))
    return original(inputs)

  monkeypatch.setattr(equations, "attention", spy)
  lanes = oracle.start(config, batch_size=tiny.LANES, mem_len=tiny.MEMORY)
  memory = network.empty_state(
    config,
    batch_size=tiny.LANES,
    mem_len=tiny.MEMORY,
    step_len=tiny.SEGMENT,
  )
  generator = np.random.default_rng(5)
  for _ in range(4):
    shape = (tiny.LANES, tiny.SEGMENT)
    tokens = generator.integers(config.vocab_size, size=shape, dtype=np.int32)
    segment = segment_lib.Segment(tokens, tokens, np.zeros(shape, bool))
    found = read_segment(params, memory, segment)
    memory = found.memory

    seen.clear()
    _, lanes = oracle.segment(
      params, config, tokens, lanes, mem_len=tiny.MEMORY, clamp_len=5
    )
    expected = [of_newest(w, found.weights.shape[-1]) for w in seen]
    actual = found.weights.swapaxes(0, 1)
    expected = np.stack(expected).reshape(actual.shape)
    comparison.assert_close(actual, expected, roundings=ROUNDINGS)


def of_newest(weights, num_keys):
  """Weights [H, T, K] of so many keys.

  None is on keys that a layer does not have yet, or has forgotten, or does not
  look at.
  """
  more = num_keys - weights.shape[2]
  if more < 0:
    assert not weights[..., :-more].any()
    return weights[..., -more:]
  return np.pad(weights, ((0, 0), (0, 0), (more, 0)))


def _weights(attend, inputs):
  """[H, T, K], a key at a time."""
  columns = []
  for index in range(inputs["key"].shape[1]):
    value = np.zeros_like(inputs["value"])
    value[:, index] = 1
    columns.append(attend(inputs | {"value": value})["values"][0, ..., 0])
  return np.stack(columns, axis=-1).swapaxes(0, 1)


def test_terms_depend_on_what_the_paper_says():
  """(c) depends on the key alone, (d) on the distance; others lack them."""
  config = tiny.model_config()
  *_, found = read(config)
  terms = found.terms
  assert all(jnp.any(term != 0) for term in terms)
  rows = np.asarray(terms.content_bias)
  np.testing.assert_array_equal(rows, rows[..., :1, :].repeat(3, axis=-2))
  distance = np.asarray(terms.distance_bias)
  # Keys of one distance are on a diagonal.
  comparison.assert_close(
    distance[..., 1, 1:6], distance[..., 0, :5], roundings=ROUNDINGS
  )
  *_, learned = read(tiny.model_config(**CASES[kinds.learned()]))
  assert jnp.any(learned.terms.distance != 0)
  for term in (learned.terms.content_bias, learned.terms.distance_bias):
    assert not jnp.any(term)
  *_, absolute = read(tiny.model_config(**CASES["absolute"]))
  assert not jnp.any(absolute.terms.distance)


def test_outputs_equal_those_of_the_model():
  config = tiny.model_config(layers=(kinds.recurrent(), "attention"))
  params, memory, inputs, found = read(config)
  _, targets, _ = tiny.inputs(config)
  losses, after = tiny.apply(
    config, params, inputs, targets, memory, method="nll"
  )
  comparison.assert_close(found.nll, losses, roundings=ROUNDINGS)
  comparison.assert_close(found.memory, after, roundings=ROUNDINGS)


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


@pytest.mark.rest
@pytest.mark.parametrize(
  ("same_length", "layers", "attending"),
  [
    (False, ("attention",), {1, 2}),
    (True, (kinds.recurrent(), "attention:4"), {2}),
  ],
)
def test_training_logs_the_use_of_memory(
  data_dir, tmp_path, same_length, layers, attending
):
  config = corpus.config(
    data_dir,
    **{
      "model.layers": layers,
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
    score = evaluator.Evaluator(whole.scoring, subject.mesh, mem_len=0)(
      subject.params
    )
  expected = score.nll / score.num_tokens
  assert record["nll_without_memory"] == pytest.approx(expected, rel=1e-6)
  shares = {f"memory_share_layer_{number}" for number in attending}
  assert {name for name in record if name.startswith("memory_share")} == shares
  assert all(0 < record[name] < 1 for name in shares)


def test_a_signal_ends_the_report(data_dir):
  config = corpus.config(data_dir)
  report = attention_use.Report(
    config.scoring, mesh.make_mesh(config.mesh), mem_len=config.train.mem_len
  )
  params = tiny.params(config.model)
  assert report(params, should_stop=lambda: True) is None
  assert report(params, should_stop=lambda: False)
