"""Generation for a TPU slice: the loop that draws tokens, on one device."""

import functools

import jax
import jax.numpy as jnp

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.text import decoding
from transformer_xl.text import sampling


def lower(
  model: schema.ModelConfig,
  evaluation: schema.EvalConfig,
  generate: schema.GenerateConfig,
  mesh: jax.sharding.Mesh,
) -> jax.stages.Lowered:
  """Lowers the loop of `--mode=generate`, for a mesh of one device.

  The compiler does not know how many tokens the loop will draw, so its costs
  are those of one token of each sample.
  """
  settings = sampling.settings_of(generate)
  reader = reader_lib.Reader(
    model,
    mem_len=generate.mem_len,
    segment_len=generate.segment_len,
    clamp_len=evaluation.clamp_len,
    same_length=evaluation.same_length,
    step_len=1,
  )

  def prepared(
    params: shapes.PyTree, keys: jax.Array
  ) -> tuple[shapes.PyTree, ...]:
    """The arguments that the loop starts from, after a token."""
    frozen = reader.freeze(params)
    state = reader.start(frozen, batch_size=1)
    hidden, state = reader.read(frozen, state, jnp.zeros((1, 1), jnp.int32))
    recent = jnp.zeros((sampling.window(settings),), jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    count = generate.num_samples
    drawing = sampling.begin(state, hidden, recent, zero, num_samples=count)
    weights = sampling.Weights(frozen, reader.head(frozen))
    return weights, drawing, keys, zero

  with jax.set_mesh(mesh):
    abstract = jax.eval_shape(
      prepared,
      network.abstract_params(model),
      jax.eval_shape(
        functools.partial(decoding.sample_keys, 0, generate.num_samples)
      ),
    )
    whole = mesh_lib.replicated(mesh)
    arguments = mesh_lib.with_shardings(
      abstract, jax.tree.map(lambda _: whole, abstract)
    )
    return decoding.lower(*arguments, reader=reader, settings=settings)
