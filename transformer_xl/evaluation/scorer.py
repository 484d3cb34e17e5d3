"""Memory during evaluation: hidden states, or cached keys and values.

Both give the same numbers for every encoding. A scorer freezes the parameters
once, starts a memory and scores segments with it:

    scorer = scorer.Scorer(config, mesh, mem_len=1600)
    frozen = scorer.freeze(params)
    memory = scorer.start(frozen)
    memory, sums = scorer.score(frozen, memory, segments)
"""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.evaluation import pass_through
from transformer_xl.evaluation import sums
from transformer_xl.model import kv_cache
from transformer_xl.model import transformer_xl


class _Functions(NamedTuple):
  """Pure functions over one kind of memory."""

  freeze: Callable[[shapes.PyTree], shapes.PyTree]
  start: Callable[[shapes.PyTree], shapes.PyTree]
  score: Callable[..., tuple[shapes.PyTree, sums.Sums]]


class Scorer:
  """Compiled functions that score segments of a split on a mesh.

  Arrays keep their shardings between calls: lanes are split over `data` and
  `fsdp`, cached keys and values over `tensor` as well.
  """

  def __init__(
    self,
    config: schema.ExperimentConfig,
    mesh: jax.sharding.Mesh,
    *,
    mem_len: int,
    temperature: float = 1.0,
  ):
    self._mesh = mesh
    functions = _functions(config, mesh, mem_len, temperature)
    # Only shapes: the mesh's devices may belong to another machine.
    params = transformer_xl.abstract_params(config.model)
    self._frozen = self._placed(functions.freeze, params)
    self._memory = self._placed(functions.start, self._frozen)
    shardings = functools.partial(jax.tree.map, lambda leaf: leaf.sharding)
    self.freeze = pass_through.compiled(
      functions.freeze, params, shardings(self._frozen)
    )
    self.start = jax.jit(functions.start, out_shardings=shardings(self._memory))
    self.score = jax.jit(
      functions.score,
      donate_argnums=1,
      out_shardings=(shardings(self._memory), mesh_lib.replicated(mesh)),
      compiler_options=mesh_lib.compiler_options(mesh),
    )

  def lower(self, segments: segment_lib.Segment) -> Any:
    """`score` lowered for shapes, to compile for other machines' devices."""
    return self.score.lower(self._frozen, self._memory, segments)

  def _placed(self, function, argument) -> shapes.PyTree:
    tree = jax.eval_shape(function, argument)
    return mesh_lib.placed(tree, mesh_lib.parameters(self._mesh, tree))


def _functions(config, mesh, mem_len, temperature) -> _Functions:
  kind = config.eval.memory
  if kind == "auto":  # The fused kernel for TPU serves hidden states only.
    is_tpu = mesh.devices.flat[0].device_kind.startswith("TPU")
    kind = "hidden" if is_tpu else "key_value"
  make = _key_values if kind == "key_value" else _hidden_states
  return make(config, mem_len, temperature)


def _hidden_states(config, mem_len, temperature) -> _Functions:
  model = transformer_xl.TransformerXL(
    config.model,
    clamp_len=config.eval.clamp_len,
    same_length=config.eval.same_length,
    temperature=temperature,
  )

  def start(params):
    del params
    return transformer_xl.empty_memory(
      config.model, batch_size=config.eval.batch_size, mem_len=mem_len
    )

  score = functools.partial(sums.score_chunk, model=model)
  return _Functions(_unchanged, start, score)


def _unchanged(params: shapes.PyTree) -> shapes.PyTree:
  return params


def _key_values(config, mem_len, temperature) -> _Functions:
  reader = kv_cache.Reader(
    config.model,
    mem_len=mem_len,
    segment_len=config.eval.context_len + config.eval.segment_len,
    clamp_len=config.eval.clamp_len,
    same_length=config.eval.same_length,
    temperature=temperature,
  )

  def score_segment(frozen, state, segment):
    nll, state = reader.nll(
      frozen, state, segment.inputs, segment.targets, segment.resets
    )
    return state, nll

  start = functools.partial(reader.start, batch_size=config.eval.batch_size)
  score = functools.partial(sums.sum_segments, score=score_segment)
  return _Functions(reader.freeze, start, score)
