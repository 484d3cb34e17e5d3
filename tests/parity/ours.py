"""Runs this package's model on a drawn configuration."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from tests.importers import opened
from tests.parity import configurations
from tests.parity import weights
from transformer_xl.importers import huggingface
from transformer_xl.importers import mapping
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer

# Compiling takes nearly all of the time; optimised code gives no other numbers
# that a tolerance of 1e-4 could tell apart.
COMPILER_OPTIONS = {"xla_backend_optimization_level": 0}


class Run(NamedTuple):
  """What a model makes of the segments, in float32."""

  log_probs: list[np.ndarray]  # [B, T, V] of each segment.
  memories: list[np.ndarray]  # [N, B, M, D] after each segment.
  loss: float  # Mean over all tokens of all segments.
  gradients: dict[str, np.ndarray]  # Gradients of `loss`, by path.


def draw_params(drawn: configurations.Drawn) -> dict:
  """The weights, drawn by HuggingFace's names and imported."""
  layout = list(huggingface.layout(drawn.model))
  empty = jax.tree.map(
    lambda leaf: np.zeros(leaf.shape, np.float32),
    network.abstract_params(drawn.model),
  )
  tensors = {
    name: weights.draw(drawn.index, name, values.shape)
    for name, values in mapping.export_tensors(empty, layout).items()
  }
  params, _ = opened.read(tensors, layout, drawn.model, ignored="$^")
  return params


@functools.cache
def run_drawn(index: int) -> Run:
  """A drawn model with its drawn weights; both tests of parity look at it."""
  drawn = configurations.draw(index)
  return run(drawn, draw_params(drawn))


def run(drawn: configurations.Drawn, params: dict) -> Run:
  """All segments, one after another, each with its gradient.

  No gradient flows through memory, so that of the sum of losses is the sum of
  the segments' gradients.
  """
  settings = mixer.Settings(
    clamp_len=drawn.clamp_len, same_length=drawn.same_length
  )
  model = network.Network(drawn.model, settings)

  def sum_loss(params, inputs, targets, memory):
    nll, log_probs, new = model.apply(
      {"params": params}, inputs, targets, memory, method=_score
    )
    return jnp.sum(nll), (log_probs, new)

  compute = jax.jit(
    jax.value_and_grad(sum_loss, has_aux=True),
    compiler_options=COMPILER_OPTIONS,
  )
  memory = network.empty_state(
    drawn.model,
    batch_size=drawn.batch_size,
    mem_len=drawn.mem_len,
    step_len=max(drawn.segment_lens),
  )
  losses, gradients, log_probs, memories = [], [], [], []
  for tokens in drawn.tokens:
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    (loss, (scores, memory)), gradient = compute(
      params, inputs, targets, memory
    )
    losses.append(float(loss))
    gradients.append(traverse_util.flatten_dict(gradient, sep="/"))
    log_probs.append(np.asarray(scores))
    memories.append(np.asarray(memory.layers[0].hiddens))
  count = drawn.batch_size * sum(drawn.segment_lens)
  return Run(
    log_probs=log_probs,
    memories=memories,
    loss=sum(losses) / count,
    gradients={
      name: sum(np.asarray(gradient[name]) for gradient in gradients) / count
      for name in gradients[0]
    },
  )


def _score(module, inputs, targets, memory):
  """What `nll` and `log_probs` give, at the cost of one of them."""
  hidden, memory = module(inputs, memory)
  head = module.softmax(module.embedding.tables, module.embedding.projections)
  nll = adaptive_softmax.nll(hidden, targets, head)
  return nll, adaptive_softmax.log_probs(hidden, head), memory
