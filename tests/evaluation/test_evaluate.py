"""Scores of a split against one pass over the whole text."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import corpus
from tests import kinds
from tests import tiny
from tests.evaluation import splits
from transformer_xl.config import load
from transformer_xl.data import token_file
from transformer_xl.evaluation import protocol
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import network

CLUSTERS = {"model.cutoffs": (5, 11), "model.div_val": 2}


@functools.cache
def one_pass(config, *, mem_len, segment_len, seed=0):
  """Sum over the split, one lane, each target looked up in log_probs."""
  file = token_file.open_split(f"{config.data.dir}/{corpus.NAME}", "test")
  tokens = np.asarray(file.tokens, np.int32)
  model = protocol.make_network(config.model, config.eval)
  memory = network.empty_state(
    config.model, batch_size=1, mem_len=mem_len, step_len=1
  )
  params, total = {"params": tiny.params(config.model, seed=seed)}, 0.0
  apply = jax.jit(functools.partial(model.apply, method="log_probs"))
  for start in range(0, len(tokens) - 1, segment_len):
    inputs = tokens[None, start : min(start + segment_len, len(tokens) - 1)]
    log_probs, memory = apply(params, jnp.asarray(inputs), memory)
    targets = tokens[start + 1 : start + 1 + inputs.shape[1]]
    picked = np.asarray(log_probs[0], np.float64)
    total -= picked[np.arange(len(targets)), targets].sum()
  return total


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("layers", "batch_size", "segment_len"),
  [
    (("attention",), 5, 7),
    ((kinds.recurrent(), "attention"), 5, 7),
    *(
      pytest.param(("attention",), *lengths, marks=pytest.mark.rest)
      for lengths in ((1, 149), (3, 16))
    ),
  ],
)
def test_with_memory_for_all_a_split_scores_as_in_one_pass(
  data_dir, layers, batch_size, segment_len
):
  config = corpus.config(data_dir, **{"model.layers": layers})
  lengths = {"eval.batch_size": batch_size, "eval.segment_len": segment_len}
  result = splits.score(load.replaced(config, lengths), mem_len=150)
  expected = one_pass(config, mem_len=0, segment_len=149)
  assert result.num_tokens == 149
  # Float32 within the model: 149 terms of about 3 nats each.
  assert result.nll == pytest.approx(expected, rel=2e-6)
  shorter = one_pass(config, mem_len=0, segment_len=8)
  assert abs(shorter - expected) > 1e-3 * expected


@pytest.mark.some(1)
@pytest.mark.parametrize("start", ["masked", "zeros"])
def test_the_batch_does_not_matter_when_lanes_warm_up_in_full(data_dir, start):
  """What a layer remembers was made with the memory below it.

  So N x M tokens are all that a token depends on; others warm up by all.
  """
  config = corpus.config(data_dir, **{"model.memory_start": start})
  expected = one_pass(config, mem_len=5, segment_len=8)
  needed = config.model.num_layers * 5
  for batch_size, warmup_len in ((1, needed), (4, needed), (4, 150), (4, 0)):
    lanes = {"eval.batch_size": batch_size, "eval.warmup_len": warmup_len}
    result = splits.score(load.replaced(config, lanes), mem_len=5)
    assert result.num_tokens == 149
    if warmup_len:
      assert result.nll == pytest.approx(expected, rel=2e-6)
    else:
      assert abs(result.nll - expected) > 1e-3 * expected


def test_longer_memory_is_another_number_and_needs_no_other_parameters(
  data_dir,
):
  config = corpus.config(data_dir)
  losses = {
    length: splits.score(config, mem_len=length).nll for length in (0, 8, 32)
  }
  assert len(set(losses.values())) == 3
  expected = one_pass(config, mem_len=0, segment_len=8)
  assert losses[0] == pytest.approx(expected, rel=2e-6)


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("memory", "batch_size"),
  [
    *(("hidden", 4), ("key_value", 1)),
    *(
      pytest.param(*one, marks=pytest.mark.rest)
      for one in (("hidden", 1), ("key_value", 4))
    ),
  ],
)
def test_context_is_read_again_and_not_scored(data_dir, memory, batch_size):
  """Against windows of 13 + 8 tokens, each read alone."""
  config = corpus.config(
    data_dir,
    **{"eval.context_len": 13, "eval.mem_len": (0,)},
    **{"eval.memory": memory, "eval.batch_size": batch_size},
  )
  result = splits.score(config, mem_len=0)
  file = token_file.open_split(f"{data_dir}/{corpus.NAME}", "test")
  tokens = np.asarray(file.tokens, np.int32)
  model = protocol.make_network(config.model, config.eval)
  params = {"params": tiny.params(config.model)}
  empty = network.empty_state(config.model, batch_size=1, mem_len=0, step_len=1)
  apply = jax.jit(functools.partial(model.apply, method="log_probs"))
  total = 0.0
  for first in range(0, 149, 8):
    begin, end = max(first - 13, 0), min(first + 8, 149)
    padded = np.zeros((1, 21), np.int32)
    padded[0, : end - begin] = tokens[begin:end]
    log_probs, _ = apply(params, jnp.asarray(padded), empty)
    rows = np.arange(first - begin, end - begin)
    total -= np.asarray(log_probs)[0, rows, tokens[first + 1 : end + 1]].sum()
  assert result.num_tokens == 149
  assert result.nll == pytest.approx(float(total), rel=2e-6)
  without = splits.score(corpus.config(data_dir), mem_len=0)
  assert abs(result.nll - without.nll) > 1e-3 * without.nll


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("memory", "clusters"),
  [
    *(("hidden", CLUSTERS), ("key_value", {})),
    *(
      pytest.param(*one, marks=pytest.mark.rest)
      for one in (("hidden", {}), ("key_value", CLUSTERS))
    ),
  ],
  ids=str,
)
def test_the_temperature_divides_every_logit(
  data_dir, memory, clusters, monkeypatch
):
  config = corpus.config(data_dir, **clusters, **{"eval.memory": memory})
  hot = load.replaced(config, {"eval.temperature": (2.0,)})
  heated = splits.score(hot, mem_len=8)
  assert abs(heated.nll - splits.score(config, mem_len=8).nll) > 1
  softmax = adaptive_softmax.dense.logits
  # The bias is part of the logits: tables and biases of half the size.
  monkeypatch.setattr(
    adaptive_softmax.dense, "logits", lambda *args: softmax(*args) / 2
  )
  params = tiny.params(config.model)
  halved = {
    name: leaf / 2 if name.endswith("bias") else leaf
    for name, leaf in params["softmax"].items()
  }
  monkeypatch.setattr(
    tiny, "params", lambda *_, **__: params | {"softmax": halved}
  )
  assert splits.score(config, mem_len=8).nll == pytest.approx(
    heated.nll, rel=1e-6
  )


def test_documents_are_scored_as_if_each_were_alone(data_dir):
  config = corpus.config(data_dir, **{"data.reset_at_documents": True})
  result = splits.score(config, mem_len=150)
  file = token_file.open_split(f"{data_dir}/{corpus.NAME}", "test")
  model = protocol.make_network(config.model, config.eval)
  params = {"params": tiny.params(config.model)}
  empty = network.empty_state(config.model, batch_size=1, mem_len=0, step_len=1)
  apply = jax.jit(functools.partial(model.apply, method="log_probs"))
  total, ends = 0.0, [*file.documents[1:], len(file.tokens)]
  for start, end in zip(file.documents, ends, strict=True):
    pairs = min(end, len(file.tokens) - 1) - start
    padded = np.zeros((1, 149), np.int32)
    padded[0, :pairs] = file.tokens[start : start + pairs]
    log_probs, _ = apply(params, jnp.asarray(padded), empty)
    targets = file.tokens[start + 1 : start + pairs + 1]
    total -= np.asarray(log_probs)[0, np.arange(pairs), targets].sum()
  assert len(ends) > 2
  assert result.nll == pytest.approx(float(total), rel=2e-6)
