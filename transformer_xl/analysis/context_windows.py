"""Losses in windows of text that are read from nothing.

What precedes a window is not seen by any layer, so a window's c-th loss is
that of a token of which exactly c are known. Windows are lanes of a batch; each
costs its whole length, however few of its losses are wanted.

Shapes: W windows, B of them in a call, L their length.
"""

import functools

import jax
import jaxtyping as jt
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import transformer_xl


def losses(
  params: shapes.PyTree,
  tokens: np.ndarray,
  starts: np.ndarray,
  *,
  config: schema.ExperimentConfig,
  mesh: jax.sharding.Mesh,
  length: int,
  wanted: np.ndarray,
) -> jt.Float[np.ndarray, "W C"]:
  """Negative log-probabilities, in nats, of some targets of windows.

  Args:
    params: on the mesh.
    tokens: [num_tokens] of the split.
    starts: [W], where each window begins; L + 1 tokens from there on exist.
    config: its `eval` says how many tokens are read at a time.
    mesh: whose lanes share the windows.
    length: L.
    wanted: [C], which targets of a window, from 0.
  """
  read = jax.jit(
    functools.partial(read_window, model=_model(config), wanted=wanted),
    compiler_options=mesh_lib.compiler_options(mesh),
  )
  parts = mesh.shape["data"] * mesh.shape["fsdp"]
  evaluation = config.eval  # A call reads as many tokens as one of its calls.
  num_segments = evaluation.batch_size * evaluation.segments_per_call
  lanes = max(num_segments * evaluation.segment_len // length, 1)
  lanes = -(-lanes // parts) * parts
  place = NamedSharding(mesh, PartitionSpec(mesh_lib.LANES))
  result = np.empty((len(starts), len(wanted)), np.float32)
  for first in range(0, len(starts), lanes):
    chosen = starts[first : first + lanes]
    # Windows that fill up the last call are not kept.
    filled = np.resize(chosen, lanes)
    text = tokens[filled[:, None] + np.arange(length + 1)].astype(np.int32)
    found = read(params, jax.device_put(text, place))
    result[first : first + lanes] = np.asarray(found)[: len(chosen)]
  return result


def read_window(
  params: shapes.PyTree,
  text: jt.Int[shapes.Array, "B L+1"],
  *,
  model: transformer_xl.TransformerXL,
  wanted: np.ndarray,
) -> jt.Float[shapes.Array, "B C"]:
  """The wanted losses of each window; `wanted` is [C]."""
  memory = transformer_xl.empty_memory(
    model.config, batch_size=text.shape[0], mem_len=0
  )
  bound = model.bind({"params": params})
  hidden, _ = bound(text[:, :-1], memory)
  return adaptive_softmax.nll(
    hidden[:, wanted], text[:, wanted + 1], bound.head()
  )


def _model(config: schema.ExperimentConfig) -> transformer_xl.TransformerXL:
  return transformer_xl.TransformerXL(
    config.model, clamp_len=config.eval.clamp_len, same_length=False
  )
