"""Attention and its dropout, against the equations in float64.

Shapes: B lanes, T queries, M remembered, H heads, Dh head width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl.check import finding
from transformer_xl.check import on_mesh
from transformer_xl.conformance.equations import attention as equations
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model import scores
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.kernels import xla_ring

# Several times the largest errors that were seen on x86-64 processors and on an
# H100, in the roundings of each format.
LIMITS = {"float32": 40, "bfloat16": 6}
# What attention has besides queries, keys and values, by kind: terms of the
# distance, as encodings have them.
TERMS = {
  "keys and biases": ("position_key", "content_bias", "position_bias"),
  "keys": ("position_key",),
  "slopes": ("slopes",),
  "plain": (),
}
RATE = 0.3  # Cases with dropout have this rate.
_MOST_SHARDS = 16


class Sizes(NamedTuple):
  """Sizes of a lane."""

  queries: int
  remembered: int
  heads: int
  width: int

  def __str__(self) -> str:
    return (
      f"{self.queries}+{self.remembered} tokens, {self.heads} heads of "
      f"{self.width}"
    )


SMALL = Sizes(8, 24, 2, 16)
ODD = Sizes(20, 9, 3, 41)  # The head width of the published base model.
# Two blocks of queries in every form, except on a GPU.
TWO_BLOCKS = Sizes(130, 70, 2, 64)
# One or two heads of the published large models, in segments of training.
PUBLISHED = (Sizes(384, 384, 2, 64), Sizes(768, 768, 1, 128))
TWO_BLOCKS_OF_A_GPU = Sizes(1040, 16, 1, 64)
RING = Sizes(32, 224, 2, 16)
RING_OF_TOKENS = Sizes(1, 127, 2, 32)  # No kernel reads single tokens.


def cases(
  mesh: jax.sharding.Mesh, dtype: str, *, short: bool, is_first: bool
) -> list[tuple[Sizes, str, float]]:
  """Sizes, kinds of terms and rates of dropout to check attention with."""
  result = [(TWO_BLOCKS, "keys and biases", RATE)]
  if is_first and dtype == "bfloat16":
    result.append((SMALL, "slopes", RATE))
  elif is_first:
    result += [(SMALL, kind, RATE) for kind in TERMS]
    result.append((ODD, "keys and biases", 0.0))
  # The reference of many lanes would take long, and much memory.
  if is_first and not short and mesh_lib.num_shards(mesh) <= _MOST_SHARDS:
    result += [(sizes, "keys and biases", RATE) for sizes in PUBLISHED]
    result += [(PUBLISHED[0], kind, 0.0) for kind in TERMS]
    if hardware.is_gpu():
      result.append((TWO_BLOCKS_OF_A_GPU, "keys and biases", RATE))
  return result


def forms() -> tuple[str, ...]:
  """The implementations of attention to check on these devices.

  On a CPU the TPU's kernels are interpreted, which checks what they compute.
  On a GPU that says nothing about the device.
  """
  kind = jax.devices()[0].device_kind
  has_kernels = dispatch.has_kernels(kind) or kind == "cpu"
  return ("xla", "pallas") if has_kernels else ("xla",)


def check_dropout_masks(mesh: jax.sharding.Mesh, dtype: str) -> finding.Finding:
  """Which elements dropout keeps; that depends on no number format."""
  del dtype
  seeds = _seeds(mesh_lib.num_shards(mesh), 3)

  def keeps(
    rows: dict[str, jax.Array], others: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    del others
    row = jnp.arange(50, dtype=jnp.int32)[None, None, :, None]
    column = jnp.arange(70, dtype=jnp.int32)[None, None, None]
    seed = rows["seeds"][:, :, None, None]
    return {"kept": dropout_lib.keep_mask(seed, row, column, rate=RATE)}

  found = on_mesh.call(mesh, keeps, {"seeds": seeds}, {})["kept"]
  expected = equations.kept_weights(seeds, 50, 70, rate=RATE)
  different = int((found != expected).sum())
  case = f"{expected.size} elements, differences"
  return finding.Finding("dropout masks", case, different, 0)


def check_attention(
  mesh: jax.sharding.Mesh,
  dtype: str,
  form: str,
  sizes: Sizes,
  kind: str,
  rate: float,
) -> finding.Finding:
  """Attention to memory and segment, forward and backward."""
  lanes = max(2, mesh_lib.num_shards(mesh))
  inputs = draw_attention(lanes, sizes, kind, dtype)
  draw = np.random.default_rng(1)
  shape = inputs["query"].shape
  output_gradient = np.asarray(draw.standard_normal(shape), dtype)
  seeds = _seeds(lanes, sizes.heads)
  constants = ("reach", "slopes")  # They have no gradient.

  def values_and_gradients(
    rows: dict[str, jax.Array], terms: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    rows = dict(rows)
    output_gradient = rows.pop("output_gradient")
    seeds = rows.pop("seeds")
    inputs = rows | terms
    fixed = {name: inputs.pop(name) for name in constants if name in inputs}
    dropout = dropout_lib.AttentionDropout(rate, seeds) if rate else None

    def attend(inputs: dict[str, jax.Array]) -> jax.Array:
      biases = None
      if "content_bias" in inputs:
        biases = (inputs["content_bias"], inputs["position_bias"])
      distance = scores.DistanceTerms(
        inputs.get("position_key"), biases, fixed.get("slopes")
      )
      factors = scores.ScoreFactors(
        inputs["query"], inputs["key"], fixed["reach"], distance
      )
      return dispatch.relative_attention(
        factors, inputs["value"], dropout=dropout, implementation=form
      )

    values, pull = jax.vjp(attend, inputs)
    (gradients,) = pull(output_gradient)
    return {"values": values, **gradients}

  terms = {name: inputs[name] for name in TERMS[kind]}
  rows = {name: inputs[name] for name in inputs if name not in terms}
  rows |= {"seeds": seeds, "output_gradient": output_gradient}
  found = on_mesh.call(mesh, values_and_gradients, rows, terms)
  kept = None
  if rate:
    kept = equations.kept_weights(
      seeds, sizes.queries, sizes.queries + sizes.remembered, rate=rate
    )
  expected = equations.attention(
    _wide(inputs), output_gradient.astype(np.float64), kept=kept, rate=rate
  )
  with_dropout = f", dropout {rate}" if rate else ""
  return finding.compare(
    found,
    expected,
    part="attention",
    case=(
      f"{form}, {kind}, {dtype}, {lanes} lanes of {sizes}{with_dropout}, "
      f"{on_mesh.describe(mesh)}"
    ),
    limit=LIMITS[dtype],
    dtype=dtype,
  )


def check_ring(
  mesh: jax.sharding.Mesh,
  dtype: str,
  form: str,
  sizes: Sizes,
  kind: str,
) -> finding.Finding:
  """Attention over a ring of cached keys and values, in the middle of it."""
  lanes = max(2, mesh_lib.num_shards(mesh))
  queries, remembered, heads, width = sizes
  slots = queries + remembered
  slot = slots // 2 // queries * queries
  inputs = draw_attention(lanes, sizes, kind, dtype)
  inputs["reach"] = np.minimum(inputs["reach"], remembered)
  expected = equations.attention(_wide(inputs))["values"]

  def in_slots(keys: np.ndarray) -> np.ndarray:
    """Keys [B, R, H, Dh], oldest first, by slot: [B * H, Dh, R]."""
    by_slot = np.roll(keys, slot + queries, axis=1)
    return by_slot.transpose(0, 2, 3, 1).reshape(lanes * heads, width, slots)

  rows = {
    "query": inputs["query"].transpose(0, 2, 1, 3),
    "key": in_slots(inputs["key"]),
    "value": in_slots(inputs["value"]),
    "reach": inputs["reach"],
  }
  terms = {name: inputs[name] for name in TERMS[kind]}

  def attend(
    rows: dict[str, jax.Array], terms: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    keys = None
    biases = None
    if "position_key" in terms:
      keys = xla_ring.position_keys(terms["position_key"])
      biases = (terms["content_bias"], terms["position_bias"])
    inputs = xla_ring.Inputs(
      query=rows["query"],
      key=rows["key"],
      value=rows["value"],
      reach=rows["reach"],
      slot=jnp.int32(slot),
      position_key=keys,
      distance=scores.DistanceTerms(biases=biases, slopes=terms.get("slopes")),
    )
    values = dispatch.ring_attention(inputs, form)
    return {"values": jnp.swapaxes(values, 1, 2)}

  return finding.compare(
    on_mesh.call(mesh, attend, rows, terms),
    {"values": expected},
    part="ring",
    case=f"{form}, {kind}, {dtype}, {lanes} lanes of {sizes}, "
    f"{on_mesh.describe(mesh)}",
    limit=LIMITS[dtype],
    dtype=dtype,
  )


def draw_attention(
  lanes: int, sizes: Sizes, kind: str, dtype: str
) -> on_mesh.Arrays:
  """Random arguments of attention; one query at least sees all keys."""
  queries, remembered, heads, width = sizes
  keys = queries + remembered
  draw = np.random.default_rng(0)

  def normal(*shape: int) -> np.ndarray:
    return np.asarray(draw.standard_normal(shape), dtype)

  reach = draw.integers(0, keys + 1, size=(lanes, queries), dtype=np.int32)
  reach[0, -1] = keys
  inputs = {
    "query": normal(lanes, queries, heads, width),
    "key": normal(lanes, keys, heads, width),
    "value": normal(lanes, keys, heads, width),
    "reach": reach,
  }
  terms = {
    "position_key": normal(keys, heads, width),
    "content_bias": normal(heads, width),
    "position_bias": normal(heads, width),
    "slopes": draw.uniform(0.01, 0.5, heads).astype(np.float32),
  }
  return inputs | {name: terms[name] for name in TERMS[kind]}


def _seeds(lanes: int, heads: int) -> np.ndarray:
  draw = np.random.default_rng(2)
  seeds = draw.integers(-(2**31), 2**31, size=(lanes, heads))
  return seeds.astype(np.int32)


def _wide(arrays: on_mesh.Arrays) -> on_mesh.Arrays:
  """on_mesh.Arrays in float64; integers unchanged."""
  return {
    name: array if name == "reach" else array.astype(np.float64)
    for name, array in arrays.items()
  }
