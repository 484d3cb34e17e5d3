"""The share of a model's attention that goes to memory."""

import jax
import jax.numpy as jnp
import jaxtyping as jt

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import attention_terms
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import scorer
from transformer_xl.evaluation import sums


def memory_mass(
  weights: jt.Float[shapes.Array, "N B H T K"],
) -> jt.Float[shapes.Array, "N"]:
  """The share of each layer's attention weights on memory, the first keys."""
  mem_len = weights.shape[-1] - weights.shape[-2]
  return jnp.mean(jnp.sum(weights[..., :mem_len], axis=-1), axis=(1, 2, 3))


class Report:
  """What `train.log_memory_use` adds to the log at each evaluation.

  Reads as many validation segments as fill the memory, in all lanes of
  evaluation, and measures attention in the one after them.
  """

  def __init__(self, config: schema.ExperimentConfig, mesh: jax.sharding.Mesh):
    mem_len = config.train.eval_mem_len
    if not mem_len:
      raise errors.UserError(
        "train.log_memory_use needs a memory: train.eval_mem_len is 0; set "
        "--config.train.log_memory_use=False."
      )
    self._without = evaluate.Evaluator(config, mesh, split="valid", mem_len=0)
    self._sharding = mesh_lib.segments(mesh)
    segment_len = min(config.eval.segment_len, mem_len)
    self._stream = streams.EvalStream(
      token_file.open_split(config.data.dataset_dir, "valid"),
      num_lanes=config.eval.batch_size,
      segment_len=segment_len,
      warmup_len=0,
      resets="never",
    )
    filling = -(-mem_len // segment_len)
    self._num_steps = min(filling + 1, self._stream.num_steps)
    self._start = scorer.hidden_states(config, mem_len).start

    def read(params, memory, inputs, targets):
      found = attention_terms.read_segment(
        params, memory, inputs, targets, model=sums.make_model(config)
      )
      return found.memory, memory_mass(found.weights)

    self._read = jax.jit(read, compiler_options=mesh_lib.compiler_options(mesh))

  def __call__(self, params: shapes.PyTree) -> dict[str, float]:
    """Returns each layer's share of attention, and the loss without memory."""
    score, memory = self._without(params), self._start(params)
    for step in range(self._num_steps):
      segments = streams.device_segments(self._stream, step, 1, self._sharding)
      inputs, targets = segments.inputs[0], segments.targets[0]
      memory, shares = self._read(params, memory, inputs, targets)
    return {
      "nll_without_memory": score.nll / score.num_tokens,
      **{
        f"memory_share_layer_{index}": float(share)
        for index, share in enumerate(shares, start=1)
      },
    }
