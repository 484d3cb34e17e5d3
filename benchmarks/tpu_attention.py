"""Cycles and memory of one layer's attention, according to the TPU compiler.

    python -m benchmarks.tpu_attention [--shape=wt103_base] [--encoding=alibi]

Needs no TPU, only the `tpu` extra. Prints one JSON line per shape,
implementation and pass; "ring" is that of an evaluation with cached keys and
values, in XLA or by its kernel. Cycles of XLA's code are the compiler's
estimates, times the trip counts of loops. For Pallas kernels it gives none, so
the instruction bundles of the final schedule are counted, times the steps of
the grid: one bundle is issued per cycle unless something stalls. See
docs/measurements/tpu.md.
"""

import functools
import glob
import importlib.metadata
import json
import math
import os
import re
import tempfile
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from absl import flags

from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import scores
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.kernels import tiling as tiling_lib
from transformer_xl.model.kernels import xla_ring
from transformer_xl.planning import hlo_cost
from transformer_xl.planning import topology


class Shape(NamedTuple):
  """Sizes of one device's share of a layer."""

  lanes: int
  heads: int
  segment_len: int
  mem_len: int
  head_dim: int


SHAPES = {
  "wt103_large": Shape(8, 16, 384, 384, 64),
  "enwik8_large": Shape(4, 8, 768, 768, 128),
  "wt103_base": Shape(8, 10, 150, 150, 41),
  "enwik8_large_eval": Shape(1, 8, 128, 3800, 128),
  "wt103_large_eval": Shape(1, 16, 128, 1600, 64),
}
RINGS = {"ring": "xla", "ring_pallas": "pallas"}
IMPLEMENTATIONS = ("xla", "pallas", *RINGS)
# What attention takes besides queries, keys and values. For rope and absolute
# encodings that is none.
TERMS = {
  "relative": ("position_key", "content_bias", "position_bias"),
  "shaw": ("position_key",),
  "alibi": ("slopes",),
  "none": (),
}

_TOPOLOGY = flags.DEFINE_string(
  "topology", "v5e:2x2", "TPU slice to compile for."
)
_SHAPES = flags.DEFINE_multi_enum(
  "shape", [*SHAPES], [*SHAPES], "Shapes to compile."
)
_IMPLEMENTATIONS = flags.DEFINE_multi_enum(
  "implementation", IMPLEMENTATIONS, IMPLEMENTATIONS, "To compile."
)
_DROPOUT = flags.DEFINE_float(
  "dropout_rate", 0.0, "Dropout of attention weights."
)
_ENCODING = flags.DEFINE_enum(
  "encoding", "relative", [*TERMS], "Encoding of positions."
)
_DTYPE = flags.DEFINE_enum(
  "dtype", "bfloat16", ["bfloat16", "float32"], "Type."
)


def main(argv: list[str]) -> None:
  del argv
  with tempfile.TemporaryDirectory() as folder:
    os.environ["LIBTPU_INIT_ARGS"] = (
      f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
    )
    topology.compile_only()
    device = topology.slice_devices(_TOPOLOGY.value)[0]
    for name in _SHAPES.value:
      for implementation in _IMPLEMENTATIONS.value:
        for gradient in (False, True)[: 1 if implementation in RINGS else 2]:
          result = _measure(
            SHAPES[name], implementation, gradient, device, folder
          )
          print(json.dumps({"shape": name, **result}), flush=True)


def _measure(shape, implementation, gradient, device, folder):
  mesh = jax.sharding.Mesh(np.array([device]), ("data",))
  for path in glob.glob(os.path.join(folder, "*")):
    os.remove(path)
  start = time.perf_counter()
  with jax.set_mesh(mesh):
    if implementation in RINGS:
      arguments = (_ring_arguments(shape, mesh),)
      function = functools.partial(_attend_ring, RINGS[implementation])
      steps = shape.lanes * shape.heads
    else:
      arguments = _arguments(shape, gradient, mesh)
      function = functools.partial(_attend, shape, implementation)
      function = _with_gradient(function) if gradient else function
      steps = _grid(shape)
    compiled = jax.jit(function).lower(*arguments).compile()
  seconds = time.perf_counter() - start
  xla = hlo_cost.program_cost(compiled.as_text()).cycles
  bundles = _bundles(folder)
  kernels = {name: count * steps for name, count in bundles.items()}
  return {
    "device": device.device_kind,
    "implementation": implementation,
    "pass": "forward_backward" if gradient else "forward",
    **shape._asdict(),
    "encoding": _ENCODING.value,
    "dropout_rate": _DROPOUT.value,
    "dtype": _DTYPE.value,
    "cycles": round(xla + sum(kernels.values())),
    "xla_cycles": round(xla),
    "kernel_cycles": kernels,
    "kernel_bundles": bundles,
    "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
    "compile_seconds": round(seconds, 1),
    "jax": jax.__version__,
    "libtpu": importlib.metadata.version("libtpu"),
  }


def _arguments(shape, gradient, mesh):
  """Arguments as projections produce them, with the heads side by side."""
  array = _shapes_on(mesh)
  keys, width = shape.mem_len + shape.segment_len, shape.heads * shape.head_dim
  query = array(shape.lanes, shape.segment_len, width)
  key = array(shape.lanes, keys, width)
  reach = array(shape.lanes, shape.segment_len, dtype="int32")
  bias = array(shape.heads, shape.head_dim)
  seeds = array(shape.lanes, shape.heads, dtype="int32")
  terms = {
    "position_key": array(keys, width),
    "content_bias": bias,
    "position_bias": bias,
    "slopes": array(shape.heads, dtype="float32"),
  }
  arrays = {"query": query, "key": key, "value": key}
  arrays |= {name: terms[name] for name in TERMS[_ENCODING.value]}
  slopes = arrays.pop("slopes", None)
  lead = (reach, seeds, slopes)
  return (*lead, query, arrays) if gradient else (*lead, arrays)


def _shapes_on(mesh):
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

  def array(*sizes, dtype=_DTYPE.value):
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype), sharding=sharding)

  return array


def _ring_arguments(shape, mesh):
  """Arguments of attention over a ring that holds whole segments."""
  array, segment_len = _shapes_on(mesh), shape.segment_len
  slots = (math.ceil(shape.mem_len / segment_len) + 1) * segment_len
  rows = array(shape.lanes * shape.heads, shape.head_dim, slots)
  once = array(shape.heads, shape.head_dim, slots)
  twice = array(shape.heads, shape.head_dim, 2 * slots)
  bias = array(shape.heads, shape.head_dim)
  terms = TERMS[_ENCODING.value]
  slopes = array(shape.heads, dtype="float32")
  return {
    "query": array(shape.lanes, shape.heads, segment_len, shape.head_dim),
    "key": rows,
    "value": rows,
    "position_key": xla_ring.RingPositionKeys(once, twice)
    if "position_key" in terms
    else None,
    "distance": scores.DistanceTerms(
      biases=(bias, bias) if "content_bias" in terms else None,
      slopes=slopes if "slopes" in terms else None,
    ),
    "reach": array(shape.lanes, segment_len, dtype="int32"),
    "slot": array(dtype="int32"),
  }


def _attend_ring(implementation, arrays):
  return dispatch.ring_attention(xla_ring.Inputs(**arrays), implementation)


def _attend(shape, implementation, reach, seeds, slopes, arrays):
  def with_heads(name, array):
    if name.endswith("_bias"):
      return array
    return array.reshape(*array.shape[:-1], shape.heads, shape.head_dim)

  by_head = {name: with_heads(name, array) for name, array in arrays.items()}
  biases = None
  if "content_bias" in by_head:
    biases = (by_head["content_bias"], by_head["position_bias"])
  terms = scores.DistanceTerms(by_head.get("position_key"), biases, slopes)
  factors = scores.ScoreFactors(by_head["query"], by_head["key"], reach, terms)
  dropout = None
  if _DROPOUT.value:
    dropout = dropout_lib.AttentionDropout(_DROPOUT.value, seeds)
  values = dispatch.relative_attention(
    factors, by_head["value"], dropout=dropout, implementation=implementation
  )
  return values.reshape(arrays["query"].shape)


def _with_gradient(function):
  def both(reach, seeds, slopes, weights, arrays):
    attend = functools.partial(function, reach, seeds, slopes)
    values, pull = jax.vjp(attend, arrays)
    return values, pull(weights)

  return both


def _bundles(folder) -> dict[str, int]:
  """Bundles in the final schedule of each attention kernel."""
  result = {}
  pattern = "*_attention*schedule-analysis_final_bundles.txt"
  for path in glob.glob(os.path.join(folder, pattern)):
    kind = "backward" if "gradient" in os.path.basename(path) else "forward"
    with open(path, encoding="utf-8") as file:
      found = re.search(r"total scheduled bundles:\s+(\d+)", file.read())
    if found is None:
      raise ValueError(f"unknown form of {path}")
    result[kind] = int(found[1])
  return result


def _grid(shape) -> int:
  """Steps of the kernels' grids: lanes times blocks of heads."""
  tiling = tiling_lib.make_tiling(
    query_len=shape.segment_len,
    key_len=shape.mem_len + shape.segment_len,
    num_heads=shape.heads,
    head_dim=shape.head_dim,
    has_positions="position_key" in TERMS[_ENCODING.value],
  )
  return shape.lanes * (shape.heads // tiling.heads_per_block)


if __name__ == "__main__":
  app.run(main)
