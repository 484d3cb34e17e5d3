"""The share of a model's attention that goes to memory."""

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import attention_terms
from transformer_xl.evaluation import evaluate
from transformer_xl.model import transformer_xl


def memory_mass(
  weights: jt.Float[shapes.Array, "N B H T K"],
) -> jt.Float[shapes.Array, "N"]:
  """The share of attention that goes to memory in each layer.

  Args:
    weights: attention weights; keys are memory first, then the segment.
  """
  mem_len = weights.shape[-1] - weights.shape[-2]
  return jnp.mean(jnp.sum(weights[..., :mem_len], axis=-1), axis=(1, 2, 3))


class MemoryUse:
  """Measures the share of attention to memory at the start of a split.

  Reads as many segments as fill the memory, in all lanes of evaluation, and
  measures the one after them.
  """

  def __init__(
    self,
    config: schema.ExperimentConfig,
    mesh: jax.sharding.Mesh,
    *,
    split: str,
    mem_len: int,
  ):
    self._config, self._mesh, self._mem_len = config, mesh, mem_len
    self._stream = streams.EvalStream(
      token_file.open_split(config.data.dataset_dir, split),
      num_lanes=config.eval.batch_size,
      segment_len=min(config.eval.segment_len, mem_len),
      warmup_len=0,
      resets="never",
    )
    model = transformer_xl.TransformerXL(
      config.model,
      clamp_len=config.eval.clamp_len,
      same_length=config.eval.same_length,
    )

    def read(params, memory, inputs, targets):
      found = attention_terms.read_segment(
        params, memory, inputs, targets, model=model
      )
      return found.memory, memory_mass(found.weights)

    self._read = jax.jit(read, compiler_options=mesh_lib.compiler_options(mesh))

  def __call__(self, params: shapes.PyTree) -> list[float]:
    """Returns the share in each layer, from the first to the last."""
    memory = transformer_xl.empty_memory(
      self._config.model,
      batch_size=self._config.eval.batch_size,
      mem_len=self._mem_len,
    )
    steps = 1 + -(-self._mem_len // self._stream.segment_len)
    mass = np.zeros(0)
    for step in range(min(steps, self._stream.num_steps)):
      segments = streams.device_segments(
        self._stream, step, 1, mesh_lib.segments(self._mesh)
      )
      memory, mass = self._read(
        params, memory, segments.inputs[0], segments.targets[0]
      )
    return [float(share) for share in mass]


class Report:
  """What `train.log_memory_use` adds to the log at each evaluation."""

  def __init__(self, config: schema.ExperimentConfig, mesh: jax.sharding.Mesh):
    mem_len = config.train.eval_mem_len
    if not mem_len:
      raise errors.UserError(
        "train.log_memory_use needs a memory: train.eval_mem_len is 0; set "
        "--config.train.log_memory_use=False."
      )
    self._mass = MemoryUse(config, mesh, split="valid", mem_len=mem_len)
    self._without = evaluate.Evaluator(config, mesh, split="valid", mem_len=0)

  def __call__(self, params: shapes.PyTree) -> dict[str, float]:
    """Returns each layer's share of attention, and the loss without memory."""
    score = self._without(params)
    shares = enumerate(self._mass(params), start=1)
    return {
      "nll_without_memory": score.nll / score.num_tokens,
      **{f"memory_share_layer_{index}": share for index, share in shares},
    }
