"""Adaptive input and softmax against the oracle and a full softmax."""

import functools
import itertools

import flax.linen as nn
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from tests import comparison
from tests import oracle
from tests import tiny
from transformer_xl.model import adaptive_embedding
from transformer_xl.model import adaptive_softmax

VOCABULARY, MODEL_DIM = 23, 16
SHAPE = (2, VOCABULARY)  # Each lane's targets are all ids, in some order.
ROUNDINGS = 30  # See `comparison`.


class Ends(nn.Module):
  """What is before and after the layers, with the model's parameter names."""

  config: object

  def setup(self):
    self.embedding = adaptive_embedding.AdaptiveEmbedding(self.config)
    self.softmax = adaptive_softmax.AdaptiveSoftmax(self.config)

  def __call__(self, tokens, hidden):
    weights = self.softmax(self.embedding.tables, self.embedding.projections)
    return (
      self.embedding(tokens),
      adaptive_softmax.nll(hidden, tokens, weights),
      adaptive_softmax.log_probs(hidden, weights),
    )


def _config(**options):
  options = {"model_dim": MODEL_DIM, "embed_dim": MODEL_DIM} | options
  return tiny.model_config(**options)


def _inputs():
  generator = np.random.default_rng(0)
  tokens = [generator.permutation(VOCABULARY) for _ in range(SHAPE[0])]
  hidden = generator.standard_normal((*SHAPE, MODEL_DIM)).astype(np.float32)
  return jnp.asarray(np.stack(tokens), jnp.int32), jnp.asarray(hidden)


def _params(config):
  boxed = jax.eval_shape(Ends(config).init, jax.random.key(0), *_inputs())
  shapes = nn.unbox(boxed)
  return tiny.draw(shapes["params"])


def _apply(config, params):
  # Many small programs: running them is cheaper than compiling them.
  with jax.disable_jit():
    return Ends(config).apply({"params": params}, *_inputs())


CUTOFFS = ((), (5,), (5, 11))
# Without clusters div_val changes nothing, and two have what one has, but for
# the number of them.
OPTIONS = [((), 1), ((5,), 1), ((5, 11), 1), ((5, 11), 4)]
FURTHER_OPTIONS = [
  pytest.param(cutoffs, div_val, marks=pytest.mark.rest)
  for cutoffs, div_val in itertools.product(CUTOFFS, (1, 2, 4))
  if (cutoffs, div_val) not in OPTIONS
]
TIED_PROJECTIONS = ("none", "all", "all_but_first")


@pytest.mark.some(4)
@pytest.mark.parametrize(
  ("embed_dim", "tie_weights"),  # D, and D in a tail cluster.
  [
    (16, True),
    (32, False),
  ],
)
@pytest.mark.parametrize(("cutoffs", "div_val"), [*OPTIONS, *FURTHER_OPTIONS])
def test_all_options_equal_the_oracle(
  cutoffs, div_val, tie_weights, embed_dim, strict_dtypes
):
  # Equal widths have no projection anyway if all clusters have the same.
  project_equal = (True, False) if div_val > 1 else (True,)
  for tied, equal in itertools.product(TIED_PROJECTIONS, project_equal):
    config = _config(
      cutoffs=cutoffs,
      div_val=div_val,
      tie_weights=tie_weights,
      embed_dim=embed_dim,
      tie_projections=tied,
      project_equal_width=equal,
    )
    params = _params(config)
    vectors, nll, log_probs = _apply(config, params)
    tokens, hidden = _inputs()
    wide = jax.tree.map(np.float64, params)
    for lane in range(SHAPE[0]):
      expected = oracle.embed(wide, config, tokens[lane])
      comparison.assert_close(vectors[lane], expected, roundings=ROUNDINGS)
      expected = oracle.log_probs(wide, config, np.float64(hidden[lane]))
      comparison.assert_close(log_probs[lane], expected, roundings=ROUNDINGS)
    chosen = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
    comparison.assert_close(nll, -chosen, roundings=ROUNDINGS)
    sums = np.exp(np.float64(log_probs)).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, atol=1e-5)


@pytest.mark.rest
def test_clusters_of_full_width_can_be_a_full_softmax():
  """They are, where a cluster's logit is the log-sum of its words' logits."""
  config = _config(cutoffs=(5, 11))
  params = _params(config)
  _, hidden = _inputs()
  table = np.asarray(params["embedding"]["table_0"])
  logits = table @ np.asarray(hidden[0, 0]) + params["softmax"]["bias"]
  words = np.exp(logits)
  sums = np.log([words[5:11].sum(), words[11:].sum()])
  softmax = params["softmax"] | {
    "cluster_kernel": jnp.zeros((2, MODEL_DIM)),
    "cluster_bias": jnp.asarray(sums, jnp.float32),
  }
  _, _, unlike = _apply(config, params)
  _, _, actual = _apply(config, params | {"softmax": softmax})
  expected = logits - np.log(words.sum())
  assert np.abs(unlike[0, 0] - expected).max() > 0.1
  comparison.assert_close(actual[0, 0], expected, roundings=ROUNDINGS)


@pytest.mark.parametrize("cluster", [1, 2])
def test_cluster_columns_are_in_the_order_of_the_clusters(cluster):
  """As in TensorFlow; PyTorch has the reverse (specification, section 12)."""
  config = _config(cutoffs=(5, 11), div_val=2)
  params = _params(config)
  raised = params["softmax"]["cluster_bias"].at[cluster - 1].add(3.0)
  raised = params | {"softmax": params["softmax"] | {"cluster_bias": raised}}
  _, _, before = _apply(config, params)
  _, _, after = _apply(config, raised)
  gain = np.exp(after) - np.exp(before)
  inside = slice(5, 11) if cluster == 1 else slice(11, None)
  assert (gain[..., inside] > 0).all()
  gain[..., inside] = -1
  assert (gain < 1e-7).all()


def test_logits_and_losses_are_float32_in_a_bfloat16_model():
  config = _config(cutoffs=(5, 11), div_val=2, dtype="bfloat16")
  vectors, nll, log_probs = _apply(config, _params(config))
  assert vectors.dtype == jnp.bfloat16
  assert nll.dtype == log_probs.dtype == jnp.float32


ROOMY = (0.4, 0.4)  # 64 of 160 tokens, rounded up to whole tiles.


def _rare_tokens(shares, *, lanes=4, length=40):
  """Tokens of which so many, in shares, are in each tail cluster."""
  generator = np.random.default_rng(1)
  bounds = (0, 5, 11, VOCABULARY)
  cluster = generator.choice(3, size=(lanes, length), p=shares)
  low, high = np.asarray(bounds)[cluster], np.asarray(bounds)[cluster + 1]
  tokens = jnp.asarray(generator.integers(low, high), jnp.int32)
  hidden = generator.standard_normal((lanes, length, MODEL_DIM))
  return tokens, jnp.asarray(hidden, jnp.float32)


SHARES = (
  ((0.8, 0.1, 0.1), (False, False)),
  ((0.3, 0.6, 0.1), (True, False)),
  ((0.1, 0.1, 0.8), (False, True)),
  ((1.0, 0.0, 0.0), (False, False)),
)


@pytest.mark.some(2)
@pytest.mark.parametrize(
  ("shares", "overflows", "tie_weights"),
  [(*case, index < 2) for index, case in enumerate(SHARES)],
)
def test_clusters_with_little_room_drop_no_token(
  shares, overflows, tie_weights
):
  tokens, hidden = _rare_tokens(shares)
  in_tail = [np.mean((tokens >= 5) & (tokens < 11)), np.mean(tokens >= 11)]
  assert tuple(share > 0.4 for share in in_tail) == overflows

  weights = jnp.linspace(0.5, 1.5, tokens.size).reshape(tokens.shape)

  def losses(capacities):
    gradient, params, has_branches = _gradient(capacities, tie_weights)
    assert has_branches == bool(capacities)
    return gradient(params, hidden, tokens, weights)

  # Sums over tokens in another order.
  expected, actual = losses(()), losses(ROOMY)
  comparison.assert_close(actual, expected, roundings=ROUNDINGS)


@functools.cache
def _gradient(capacities, tie_weights):
  """Loss and gradient, compiled; parameters; whether it has branches."""
  config = _config(
    cutoffs=(5, 11),
    div_val=2,
    tie_weights=tie_weights,
    cluster_capacities=capacities,
  )

  def mean(params, hidden, tokens, weights):
    nll = Ends(config).apply({"params": params}, tokens, hidden)[1]
    return jnp.mean(nll * weights), nll

  params = _params(config)
  tokens, hidden = _rare_tokens((1.0, 0.0, 0.0))
  gradient = jax.jit(jax.value_and_grad(mean, argnums=(0, 1), has_aux=True))
  traced = gradient.trace(params, hidden, tokens, hidden[..., 0])
  return gradient, params, "cond[" in str(traced.jaxpr)


def test_the_gradient_is_that_of_a_log_softmax_and_reaches_every_parameter():
  """The loss has a rule of its own."""
  config = _config(cutoffs=(5, 11), div_val=2, tie_projections="all_but_first")
  params, (tokens, hidden) = _params(config), _inputs()

  def mean(output, params):
    results = Ends(config).apply({"params": params}, tokens, hidden)
    embedded = results[0].mean()
    if output == 1:
      return embedded + results[1].mean()
    chosen = jnp.take_along_axis(results[2], tokens[..., None], axis=-1)
    return embedded - chosen.mean()

  actual, expected = (
    jax.jit(jax.grad(functools.partial(mean, output)))(params)
    for output in (1, 2)
  )
  comparison.assert_close(actual, expected, roundings=ROUNDINGS)
  for leaf in jax.tree.leaves(actual):
    assert np.all(np.isfinite(leaf))
    assert np.abs(leaf).max() > 0


@hypothesis.settings(max_examples=5)
@hypothesis.given(
  seed=st.integers(0, 10_000),
  cutoffs=st.sampled_from(CUTOFFS),
  k=st.sampled_from([1, 6, VOCABULARY]),
  scale=st.sampled_from([0.0, 0.1, 3.0]),
)
def test_the_likeliest_tokens_are_those_of_all_log_probs(
  seed, cutoffs, k, scale
):
  """With few values of weights, or none but 0, there are many ties."""
  generator = np.random.default_rng(seed)
  draw = lambda *shape: jnp.asarray(  # noqa: E731
    scale * generator.integers(-1, 2, shape), jnp.float32
  )
  ends = (*cutoffs, VOCABULARY)
  sizes = np.diff((0, *ends)).tolist()
  weights = adaptive_softmax.SoftmaxWeights(
    kernels=tuple(draw(size, 4) for size in sizes),
    projections=(None,) * len(sizes),
    bias=draw(VOCABULARY),
    cluster_kernel=draw(len(cutoffs), 4),
    cluster_bias=draw(len(cutoffs)),
  )
  hidden = draw(2, 3, 4)
  with jax.disable_jit():
    log_probs = adaptive_softmax.log_probs(hidden, weights)
    expected = jax.lax.top_k(log_probs, k)
    found = adaptive_softmax.top_k(hidden, weights, k)
  # Both compute the same sums in the same order.
  np.testing.assert_array_equal(found[0], expected[0])
  np.testing.assert_array_equal(found[1], expected[1])


def equal_words(cluster_kernel, cluster_bias):
  """The weights of a softmax in which the words of a cluster are as likely."""
  width = cluster_kernel.shape[1]
  return adaptive_softmax.SoftmaxWeights(
    kernels=tuple(jnp.zeros((size, width)) for size in (5, 6, 12)),
    projections=(None,) * 3,
    bias=jnp.zeros(VOCABULARY),
    cluster_kernel=cluster_kernel,
    cluster_bias=cluster_bias,
  )


def test_unlikely_clusters_are_not_computed():
  computed = []

  def count(hidden, weights, *args):
    computed.append(args[-2])
    return tail_log_probs(hidden, weights, *args)

  tail_log_probs = adaptive_softmax._tail_log_probs
  weights = equal_words(jnp.zeros((2, 4)), jnp.array([1.0, -1.0]))
  with pytest.MonkeyPatch.context() as patch, jax.disable_jit():
    patch.setattr(adaptive_softmax, "_tail_log_probs", count)
    for k, expected in ((4, [1]), (11, [1]), (12, [1, 2])):
      computed.clear()
      adaptive_softmax.top_k(jnp.zeros((1, 2, 4)), weights, k)
      assert computed == expected
  for k in (0, 24):
    with pytest.raises(ValueError, match=rf"k={k} is not in \[1, 23\]"):
      adaptive_softmax.top_k(jnp.zeros((1, 2, 4)), weights, k)


def test_a_cluster_that_one_position_needs_is_computed():
  weights = equal_words(jnp.array([[1.0], [0.0]]), jnp.zeros(2))
  # Likely at the first position, and unlikely at the second.
  hidden = jnp.array([[[5.0], [-5.0]]])
  expected = jax.lax.top_k(adaptive_softmax.log_probs(hidden, weights), 3)
  found = adaptive_softmax.top_k(hidden, weights, 3)
  np.testing.assert_array_equal(found[1], expected[1])
  assert found[1].tolist() == [[[5, 6, 7], [0, 1, 2]]]
