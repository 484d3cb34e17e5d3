"""Losses in windows of text that are read without memory.

No layer sees anything before a window, so the c-th loss of a window has a
context of exactly c tokens. Windows are lanes of a batch; each costs its whole
length, however few of its losses are needed.

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
  """Negative log-probabilities, in nats, of chosen targets in each window.

  Args:
    params: parameters, placed on the mesh.
    tokens: the split, [num_tokens].
    starts: [W] first positions; L + 1 tokens must follow each.
    config: its `eval` sets how many tokens are read per call.
    mesh: windows are divided among its lanes.
    length: L.
    wanted: [C] indices of targets in a window, from 0.
  """
  read = jax.jit(
    functools.partial(read_window, model=_model(config), wanted=wanted),
    out_shardings=mesh_lib.replicated(mesh),  # Every process reads all.
    compiler_options=mesh_lib.compiler_options(mesh),
  )
  num_shards = mesh.shape["data"] * mesh.shape["fsdp"]
  evaluation = config.eval  # As many tokens per call as evaluation reads.
  num_segments = evaluation.batch_size * evaluation.segments_per_call
  lanes = max(num_segments * evaluation.segment_len // length, 1)
  lanes = -(-lanes // num_shards) * num_shards
  sharding = NamedSharding(mesh, PartitionSpec(mesh_lib.LANES))
  result = np.empty((len(starts), len(wanted)), np.float32)
  for first in range(0, len(starts), lanes):
    chosen = starts[first : first + lanes]
    # The last call is padded with windows whose losses are dropped.
    filled = np.resize(chosen, lanes)
    text = tokens[filled[:, None] + np.arange(length + 1)].astype(np.int32)
    found = read(params, jax.device_put(text, sharding))
    result[first : first + lanes] = np.asarray(found)[: len(chosen)]
  return result


def read_window(
  params: shapes.PyTree,
  text: jt.Int[shapes.Array, "B L+1"],
  *,
  model: transformer_xl.TransformerXL,
  wanted: np.ndarray,
) -> jt.Float[shapes.Array, "B C"]:
  """Losses of the targets `wanted`, [C], of each window."""
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
