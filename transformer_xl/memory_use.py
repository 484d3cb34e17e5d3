"""What attention is made of, and how much of it memory gets.

The model returns no scores. They are computed again from its parameters and
from the inputs of its layers, which are what a memory remembers.

Shapes: as in `shapes`; a model's layers are in front, N.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import attention
from transformer_xl import config as config_lib
from transformer_xl import data
from transformer_xl import errors
from transformer_xl import evaluate
from transformer_xl import memory as memory_lib
from transformer_xl import model as model_lib
from transformer_xl import shapes
from transformer_xl import sharding
from transformer_xl import token_file


class Terms(NamedTuple):
  """The four terms of a score (paper, section 3.3), with its factor.

  Where the encoding has no such term, it is 0.
  """

  content: jt.Float[shapes.Array, "N B H T K"]  # (a) query and key.
  distance: jt.Float[shapes.Array, "N B H T K"]  # (b) query and distance.
  content_bias: jt.Float[shapes.Array, "N B H T K"]  # (c) u and key.
  distance_bias: jt.Float[shapes.Array, "N B H T K"]  # (d) v and distance.


class Reading(NamedTuple):
  """What is known of one segment after it was read."""

  memory: memory_lib.Memory  # For the next.
  nll: shapes.Losses
  terms: Terms
  weights: jt.Float[shapes.Array, "N B H T K"]  # Of each key for each query.


def read_segment(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  inputs: shapes.Tokens,
  targets: shapes.Tokens,
  *,
  model: model_lib.TransformerXL,
) -> Reading:
  """Reads a segment no longer than the memory, and shows its attention."""
  segment_len = inputs.shape[1]
  resets = jnp.zeros(inputs.shape, bool)
  read: Any = model.apply(
    {"params": params}, inputs, targets, memory, resets, method="nll"
  )
  nll, after = read
  context = jnp.concatenate(
    [memory.hiddens, after.hiddens[:, :, -segment_len:]], axis=2
  )
  reach = memory_lib.reach(
    memory,
    resets,
    same_length=model.same_length,
    window=model.config.same_length_window,
  )
  score = functools.partial(
    _layer_terms, params, segment_len=segment_len, model=model
  )
  terms = jax.lax.map(lambda layer: score(*layer), (params["layers"], context))
  total = terms.content + terms.distance
  total += terms.content_bias + terms.distance_bias
  weights = jax.vmap(attention.visible_softmax, in_axes=(0, None))(total, reach)
  return Reading(after, nll, terms, weights)


def _layer_terms(params, layer, context, *, segment_len, model) -> Terms:
  """Of one layer, [B, H, T, K]."""
  config = model.config
  own = layer["attention"]
  if config.pre_norm:
    norm = {"params": layer["attention_norm"]}
    context = model_lib.LayerNorm(config).apply(norm, context)

  def heads(rows, kernel):
    projected = rows @ kernel.astype(config.dtype)
    shape = (*rows.shape[:-1], config.num_heads, config.head_dim)
    return projected.reshape(shape).astype(jnp.float32)

  query = heads(context[:, -segment_len:], own["query"])
  key = heads(context, own["key"])
  content = jnp.einsum("bthd,bkhd->bhtk", query, key)
  zeros = jnp.zeros_like(content)
  terms = Terms(content, zeros, zeros, zeros)
  context_len = context.shape[1]
  if config.encoding == "relative":
    encodings = attention.position_encodings(
      context_len, config.model_dim, clamp_len=model.clamp_len
    )
    distance = heads(encodings.astype(config.dtype), own["position"])
    owner = own if config.untie_biases else params
    u, v = owner["content_bias"], owner["position_bias"]
    from_key = jnp.einsum("hd,bkhd->bhk", u, key)[:, :, None]
    from_distance = jnp.einsum("hd,khd->hk", v, distance)[None, :, None]
    terms = terms._replace(
      content_bias=jnp.broadcast_to(from_key, content.shape),
      distance_bias=attention.rel_shift(
        jnp.broadcast_to(from_distance, content.shape)
      ),
    )
  elif config.encoding == "shaw":
    rows = attention.clipped_rows(own["distances"], context_len)
    distance = rows.reshape(context_len, config.num_heads, config.head_dim)
  if config.encoding not in model_lib.ABSOLUTE:
    scores = jnp.einsum("bthd,khd->bhtk", query, distance)
    terms = terms._replace(distance=attention.rel_shift(scores))
  return jax.tree.map(lambda term: term * config.head_dim**-0.5, terms)


def memory_mass(
  weights: jt.Float[shapes.Array, "N B H T K"],
) -> jt.Float[shapes.Array, "N"]:
  """The share of its attention that each layer pays to memory."""
  mem_len = weights.shape[-1] - weights.shape[-2]
  return jnp.mean(jnp.sum(weights[..., :mem_len], axis=-1), axis=(1, 2, 3))


class MemoryUse:
  """Measures the share of attention to memory in a part of a split.

  The memory is full before it is measured: over one segment more than fill it,
  of all lanes of evaluation, and the last is counted.
  """

  def __init__(
    self,
    config: config_lib.ExperimentConfig,
    mesh: jax.sharding.Mesh,
    *,
    split: str,
    mem_len: int,
  ):
    self._config, self._mesh, self._mem_len = config, mesh, mem_len
    self._stream = data.EvalStream(
      token_file.open_split(config.data.dataset_dir, split),
      num_lanes=config.eval.batch_size,
      segment_len=min(config.eval.segment_len, mem_len),
      warmup_len=0,
      resets="never",
    )
    model = model_lib.TransformerXL(
      config.model,
      clamp_len=config.eval.clamp_len,
      same_length=config.eval.same_length,
    )

    def read(params, memory, inputs, targets):
      found = read_segment(params, memory, inputs, targets, model=model)
      return found.memory, memory_mass(found.weights)

    self._read = jax.jit(read, compiler_options=sharding.compiler_options(mesh))

  def __call__(self, params: shapes.PyTree) -> list[float]:
    """The share of each layer, from the first to the last."""
    memory = model_lib.empty_memory(
      self._config.model,
      batch_size=self._config.eval.batch_size,
      mem_len=self._mem_len,
    )
    steps = 1 + -(-self._mem_len // self._stream.segment_len)
    mass = np.zeros(0)
    for step in range(min(steps, self._stream.num_steps)):
      segments = data.device_segments(
        self._stream, step, 1, sharding.segments(self._mesh)
      )
      memory, mass = self._read(
        params, memory, segments.inputs[0], segments.targets[0]
      )
    return [float(share) for share in mass]


class Report:
  """What training logs of memory at each evaluation, if asked to."""

  def __init__(
    self, config: config_lib.ExperimentConfig, mesh: jax.sharding.Mesh
  ):
    mem_len = config.train.eval_mem_len
    if not mem_len:
      raise errors.UserError(
        "train.log_memory_use needs a memory: train.eval_mem_len is 0; set "
        "--config.train.log_memory_use=False."
      )
    self._mass = MemoryUse(config, mesh, split="valid", mem_len=mem_len)
    self._without = evaluate.Evaluator(config, mesh, split="valid", mem_len=0)

  def __call__(self, params: shapes.PyTree) -> dict[str, float]:
    """Each layer's share of attention, and the loss without memory."""
    score = self._without(params)
    shares = enumerate(self._mass(params), start=1)
    return {
      "nll_without_memory": score.nll / score.num_tokens,
      **{f"memory_share_layer_{index}": share for index, share in shares},
    }
