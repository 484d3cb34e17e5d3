"""Cycles and memory of the adaptive softmax, according to the TPU compiler.

    python -m benchmarks.tpu_softmax [--topology=v5e:2x2]

Needs no TPU, only the `tpu` extra. Prints one JSON line without capacities and
one with them, for the loss of 8 lanes of 384 tokens and its gradients, with the
vocabulary of WikiText-103. `cycles` assumes that every cluster has room,
`overflow_cycles` that none has.
"""

import importlib.metadata
import json

import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from absl import flags

from transformer_xl.model import adaptive_softmax
from transformer_xl.planning import hlo_cost
from transformer_xl.planning import topology

_TOPOLOGY = flags.DEFINE_string(
  "topology", "v5e:2x2", "TPU slice to compile for."
)

LANES, SEGMENT, MODEL_DIM, DIV_VAL = 8, 384, 1024, 4
CLUSTERS = (20_000, 20_000, 160_000, 67_735)
CAPACITIES = ((), (1 / 12, 1 / 12, 1 / 24))  # As in experiments/wt103_large.py.


def main(argv: list[str]) -> None:
  del argv
  topology.compile_only()
  device = topology.slice_devices(_TOPOLOGY.value)[0]
  mesh = jax.sharding.Mesh(np.array([device]), ("data",))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

  def array(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype), sharding=sharding)

  widths = [MODEL_DIM // DIV_VAL**index for index in range(len(CLUSTERS))]
  weights = adaptive_softmax.Projection(
    tuple(map(array, CLUSTERS, widths)),
    tuple(array(width, MODEL_DIM) for width in widths),
    array(sum(CLUSTERS)),
    array(len(CLUSTERS) - 1, MODEL_DIM),
    array(len(CLUSTERS) - 1),
  )
  arguments = (
    array(LANES, SEGMENT, MODEL_DIM, dtype="bfloat16"),
    array(LANES, SEGMENT, dtype="int32"),
    weights,
    array(LANES, SEGMENT),
  )
  for capacities in CAPACITIES:
    with jax.set_mesh(mesh):
      hidden, targets, plain, gradient = arguments
      rooms = adaptive_softmax.Capacities(capacities)
      weights = plain._replace(capacities=rooms)
      compiled = _loss.lower(hidden, targets, weights, gradient).compile()
    text = compiled.as_text()
    usual = hlo_cost.program_cost(text, branch=min)
    overflow = hlo_cost.program_cost(text, branch=max)
    result = {
      "device": device.device_kind,
      "tokens": LANES * SEGMENT,
      "vocabulary": sum(CLUSTERS),
      "capacities": capacities,
      "cycles": round(usual.cycles),
      "overflow_cycles": round(overflow.cycles),
      "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
      "jax": jax.__version__,
      "libtpu": importlib.metadata.version("libtpu"),
    }
    print(json.dumps(result), flush=True)


@jax.jit
def _loss(hidden, targets, weights, gradient):
  """The losses, and all gradients."""

  def loss(hidden, weights):
    return adaptive_softmax.nll(hidden, targets, weights)

  losses, pull = jax.vjp(loss, hidden, weights)
  return losses, pull(gradient)


if __name__ == "__main__":
  app.run(main)
