"""How evaluation remembers: hidden states, or cached keys and values.

Both give the same numbers. A scorer freezes the parameters once, starts a
memory and scores segments with it:

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
from transformer_xl.evaluation import sums
from transformer_xl.model import kv_cache
from transformer_xl.model import transformer_xl


class _Reading(NamedTuple):
  """Pure functions; memory is a value of any kind."""

  freeze: Callable[[shapes.PyTree], shapes.PyTree]
  start: Callable[[shapes.PyTree], shapes.PyTree]
  score: Callable[..., tuple[shapes.PyTree, sums.Sums]]


class Scorer:
  """Compiled functions that score segments of a split on a mesh.

  Arrays keep their places between calls: lanes over `data` and `fsdp`, the
  heads of keys and values over `tensor`.
  """

  def __init__(
    self,
    config: schema.ExperimentConfig,
    mesh: jax.sharding.Mesh,
    *,
    mem_len: int,
  ):
    self._mesh = mesh
    self._reading = _reading(config, mesh, mem_len)
    params = transformer_xl.abstract_params(config.model)
    self._frozen = self._placed(self._reading.freeze, params)
    self._memory = self._placed(self._reading.start, self._frozen)
    places = functools.partial(jax.tree.map, lambda leaf: leaf.sharding)
    self.freeze = jax.jit(
      self._reading.freeze, out_shardings=places(self._frozen)
    )
    self.start = jax.jit(
      self._reading.start, out_shardings=places(self._memory)
    )
    self.score = jax.jit(
      self._reading.score,
      donate_argnums=1,
      out_shardings=(places(self._memory), mesh_lib.replicated(mesh)),
      compiler_options=mesh_lib.compiler_options(mesh),
    )

  def lower(self, segments: segment_lib.Segment) -> Any:
    """`score` for shapes alone, to compile for devices that are not here."""
    return self.score.lower(self._frozen, self._memory, segments)

  def _placed(self, function, argument) -> shapes.PyTree:
    tree = jax.eval_shape(function, argument)
    return mesh_lib.placed(tree, mesh_lib.parameters(self._mesh, tree))


def _reading(config, mesh, mem_len) -> _Reading:
  kind = config.eval.memory
  if kind == "auto":
    is_tpu = mesh.devices.flat[0].device_kind.startswith("TPU")
    is_relative = config.model.encoding == "relative"
    kind = "key_value" if is_relative and not is_tpu else "hidden"
  make = _key_values if kind == "key_value" else _hidden_states
  return make(config, mem_len)


def _hidden_states(config, mem_len) -> _Reading:
  model = transformer_xl.TransformerXL(
    config.model,
    clamp_len=config.eval.clamp_len,
    same_length=config.eval.same_length,
  )

  def start(params):
    del params
    return transformer_xl.empty_memory(
      config.model, batch_size=config.eval.batch_size, mem_len=mem_len
    )

  score = functools.partial(sums.score_chunk, model=model)
  return _Reading(lambda params: params, start, score)


def _key_values(config, mem_len) -> _Reading:
  reader = kv_cache.Reader(
    config.model,
    mem_len=mem_len,
    segment_len=config.eval.segment_len,
    clamp_len=config.eval.clamp_len,
    same_length=config.eval.same_length,
  )

  def score_segment(frozen, state, segment):
    nll, state = reader.nll(
      frozen, state, segment.inputs, segment.targets, segment.resets
    )
    return state, nll

  start = functools.partial(reader.start, batch_size=config.eval.batch_size)
  score = functools.partial(sums.sum_segments, score=score_segment)
  return _Reading(reader.freeze, start, score)
