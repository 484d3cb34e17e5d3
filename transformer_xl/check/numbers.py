"""The parts of the model against float64 NumPy, on every mesh of the devices.

Float32 is computed with the most exact products that the device has, so that
its errors are those of the algorithm; by default a TPU or GPU may round the
factors. bfloat16 is computed as in training.

Shapes: B lanes, T queries, M remembered, H heads, Dh head width.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.check import attention_reference
from transformer_xl.check import finding
from transformer_xl.check import softmax_reference
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import attention
from transformer_xl.model import dropout as dropout_lib
from transformer_xl.model.kernels import dense
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.kernels import ring

Arrays = dict[str, np.ndarray]
DTYPES = ("float32", "bfloat16")
# Several times the largest errors that were seen on x86-64 processors, in the
# roundings of each format (docs/measurements/check.md).
LIMITS = {
  "products": {"float32": 40, "bfloat16": 40},
  "attention": {"float32": 40, "bfloat16": 6},
  "ring": {"float32": 40, "bfloat16": 6},
  "softmax": {"float32": 100, "bfloat16": 12},
}
# What attention has besides queries, keys and values. To attention, RoPE and
# the absolute encodings are as none.
TERMS = {
  "relative": ("position_key", "content_bias", "position_bias"),
  "shaw": ("position_key",),
  "alibi": ("slopes",),
  "none": (),
}
RATE = 0.3  # Of dropout, where there is any.
ROOM = (0.25, 0.25)  # In the clusters of a softmax, as shares of the tokens.
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
TWO_BLOCKS = Sizes(130, 70, 2, 64)  # Two blocks of queries in every form.
# One or two heads of the published large models, in segments of training.
PUBLISHED = (Sizes(384, 384, 2, 64), Sizes(768, 768, 1, 128))
RING = Sizes(32, 224, 2, 16)
RING_OF_TOKENS = Sizes(1, 127, 2, 32)  # No kernel reads single tokens.


def run(
  meshes: Sequence[jax.sharding.Mesh], *, short: bool
) -> list[finding.Finding]:
  """Checks all parts: on the first mesh all cases, on the others a few."""
  findings: list[finding.Finding] = []
  for mesh in meshes:
    logging.info(
      "Checking products, attention and softmax on %s.", describe(mesh)
    )
    for dtype in DTYPES:
      with jax.set_mesh(mesh), exact_products(dtype):
        findings += check_mesh(
          mesh, dtype, short=short, is_first=mesh is meshes[0]
        )
  return findings


def check_mesh(
  mesh: jax.sharding.Mesh, dtype: str, *, short: bool, is_first: bool
) -> list[finding.Finding]:
  """Checks all parts in one format; fewer cases unless `is_first`."""
  findings: list[finding.Finding] = []

  def check(
    part: str, function: Callable[..., finding.Finding], *arguments: object
  ) -> None:
    """Calls a function with the mesh, the format and other arguments."""
    case = ", ".join(map(str, (dtype, *arguments, describe(mesh))))
    findings.extend(
      finding.attempt(part, case, lambda: [function(mesh, dtype, *arguments)])
    )

  if is_first:
    check("products", check_products, 1024 if short else 4096)
    check("dropout masks", check_dropout_masks)

  cases = [(TWO_BLOCKS, "relative", RATE)]
  if is_first and dtype == "bfloat16":
    cases.append((SMALL, "alibi", RATE))
  elif is_first:
    cases += [(SMALL, encoding, RATE) for encoding in TERMS]
    cases.append((ODD, "relative", 0.0))
  # The reference of many lanes would take long, and much memory.
  if is_first and not short and mesh_lib.num_shards(mesh) <= _MOST_SHARDS:
    cases += [(sizes, "relative", RATE) for sizes in PUBLISHED]
    cases += [(PUBLISHED[0], encoding, 0.0) for encoding in TERMS]
  for sizes, encoding, rate in cases:
    for form in forms():
      check("attention", check_attention, form, sizes, encoding, rate)

  encodings = ("relative", "alibi") if is_first else ("relative",)
  for encoding in encodings:
    for form in forms():
      check("ring", check_ring, form, RING, encoding)
  check("ring", check_ring, "xla", RING_OF_TOKENS, "relative")

  for capacities, has_many in (((), False), (ROOM, False), (ROOM, True)):
    check("softmax", check_softmax, capacities, has_many)
  return findings


def forms() -> tuple[str, ...]:
  """The implementations of attention to check on these devices.

  On a CPU the TPU's kernels are interpreted, which checks what they compute.
  On a GPU that says nothing about the device.
  """
  kind = jax.devices()[0].device_kind
  has_kernels = dispatch.has_kernels(kind) or kind == "cpu"
  return ("xla", "pallas") if has_kernels else ("xla",)


@contextlib.contextmanager
def exact_products(dtype: str) -> Iterator[None]:
  """Multiplies float32 exactly; bfloat16 has no other product than its own."""
  precision = "highest" if dtype == "float32" else None
  with jax.default_matmul_precision(precision):
    yield


def check_products(
  mesh: jax.sharding.Mesh, dtype: str, length: int
) -> finding.Finding:
  """Products of matrices whose results are sums in float32."""
  num_rows = 64 * mesh_lib.num_shards(mesh)
  draw = np.random.default_rng(0)
  left = np.asarray(draw.standard_normal((num_rows, length)), dtype)
  right = np.asarray(draw.standard_normal((length, 96)), dtype)

  def multiply(
    rows: dict[str, jax.Array], others: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    left = rows["left"]
    right = others["right"]
    return {
      "product": dense.product(left, right),
      "logits": dense.logits(left, right.T),
    }

  expected = left.astype(np.float64) @ right.astype(np.float64)
  return finding.compare(
    _run(mesh, multiply, {"left": left}, {"right": right}),
    {"product": expected, "logits": expected},
    part="products",
    case=f"{dtype}, sums of {length} terms in float32",
    limit=LIMITS["products"][dtype],
    dtype="float32",
  )


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
    return {"kept": dropout_lib.kept(seed, row, column, rate=RATE)}

  found = _run(mesh, keeps, {"seeds": seeds}, {})["kept"]
  expected = attention_reference.kept_weights(seeds, 50, 70, rate=RATE)
  different = int((found != expected).sum())
  case = f"{expected.size} elements, differences"
  return finding.Finding("dropout masks", case, different, 0)


def check_attention(
  mesh: jax.sharding.Mesh,
  dtype: str,
  form: str,
  sizes: Sizes,
  encoding: str,
  rate: float,
) -> finding.Finding:
  """Attention to memory and segment, forward and backward."""
  lanes = max(2, mesh_lib.num_shards(mesh))
  inputs = draw_attention(lanes, sizes, encoding, dtype)
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
      return dispatch.relative_attention(
        attention.Inputs(**inputs, **fixed), dropout, form
      )

    values, pull = jax.vjp(attend, inputs)
    (gradients,) = pull(output_gradient)
    return {"values": values, **gradients}

  terms = {name: inputs[name] for name in TERMS[encoding]}
  rows = {name: inputs[name] for name in inputs if name not in terms}
  rows |= {"seeds": seeds, "output_gradient": output_gradient}
  found = _run(mesh, values_and_gradients, rows, terms)
  kept = None
  if rate:
    kept = attention_reference.kept_weights(
      seeds, sizes.queries, sizes.queries + sizes.remembered, rate=rate
    )
  expected = attention_reference.attention(
    _wide(inputs), output_gradient.astype(np.float64), kept=kept, rate=rate
  )
  with_dropout = f", dropout {rate}" if rate else ""
  return finding.compare(
    found,
    expected,
    part="attention",
    case=(
      f"{form}, {encoding}, {dtype}, {lanes} lanes of {sizes}{with_dropout}, "
      f"{describe(mesh)}"
    ),
    limit=LIMITS["attention"][dtype],
    dtype=dtype,
  )


def check_ring(
  mesh: jax.sharding.Mesh,
  dtype: str,
  form: str,
  sizes: Sizes,
  encoding: str,
) -> finding.Finding:
  """Attention over a ring of cached keys and values, in the middle of it."""
  lanes = max(2, mesh_lib.num_shards(mesh))
  queries, remembered, heads, width = sizes
  slots = queries + remembered
  slot = slots // 2 // queries * queries
  inputs = draw_attention(lanes, sizes, encoding, dtype)
  inputs["reach"] = np.minimum(inputs["reach"], remembered)
  expected = attention_reference.attention(
    _wide(inputs), np.zeros(inputs["query"].shape)
  )["values"]

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
  terms = {name: inputs[name] for name in TERMS[encoding]}

  def attend(
    rows: dict[str, jax.Array], terms: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    keys = None
    biases = None
    if "position_key" in terms:
      keys = ring.position_keys(terms["position_key"])
      biases = (terms["content_bias"], terms["position_bias"])
    values = dispatch.ring_attention(
      rows["query"],
      rows["key"],
      rows["value"],
      keys,
      biases=biases,
      slopes=terms.get("slopes"),
      reach=rows["reach"],
      slot=jnp.int32(slot),
      implementation=form,
    )
    return {"values": jnp.swapaxes(values, 1, 2)}

  return finding.compare(
    _run(mesh, attend, rows, terms),
    {"values": expected},
    part="ring",
    case=f"{form}, {encoding}, {dtype}, {lanes} lanes of {sizes}, "
    f"{describe(mesh)}",
    limit=LIMITS["ring"][dtype],
    dtype=dtype,
  )


def check_softmax(
  mesh: jax.sharding.Mesh,
  dtype: str,
  capacities: tuple[float, ...],
  has_many: bool,
) -> finding.Finding:
  """Losses and gradients of an adaptive softmax with two tail clusters.

  Args:
    mesh: of the devices.
    dtype: of the states.
    capacities: room in the clusters, as shares of the tokens; () for no limit.
    has_many: more targets are in the tails than there is room for.
  """
  lanes = max(2, mesh_lib.num_shards(mesh))
  segment_len, width = 64, 32
  sizes, widths = (50, 40, 60), (32, 16, 8)
  draw = np.random.default_rng(3)

  def normal(*shape: int) -> np.ndarray:
    return draw.standard_normal(shape).astype(np.float32)

  pairs = list(zip(sizes, widths, strict=True))
  # Rounded as the model rounds them, so that both sides have the same numbers.
  kernels = [_rounded(normal(*pair), dtype) for pair in pairs]
  projections = [_rounded(normal(part, width) / 6, dtype) for part in widths]
  bias = normal(sum(sizes))
  cluster_kernel = _rounded(normal(2, width), dtype)
  cluster_bias = normal(2)
  hidden = np.asarray(normal(lanes, segment_len, width), dtype)
  in_tail = draw.random((lanes, segment_len)) < (0.9 if has_many else 0.1)
  ids = draw.integers(sizes[0], size=in_tail.shape)
  tail_ids = draw.integers(sizes[0], sum(sizes), size=in_tail.shape)
  targets = np.where(in_tail, tail_ids, ids).astype(np.int32)
  loss_gradient = normal(lanes, segment_len)

  def losses_and_gradients(
    rows: dict[str, jax.Array], weights: shapes.PyTree
  ) -> dict[str, jax.Array]:
    def losses(hidden: jax.Array, weights: shapes.PyTree) -> jax.Array:
      head = adaptive_softmax.Projection(*weights)
      room = adaptive_softmax.Capacities(capacities)
      head = head._replace(capacities=room)
      return adaptive_softmax.nll(hidden, rows["targets"], head)

    result, pull = jax.vjp(losses, rows["hidden"], weights)
    of_hidden, of_weights = pull(rows["loss_gradient"])
    of_kernels, of_projections, *others = of_weights
    return {
      "losses": result,
      "hidden": of_hidden,
      **{f"kernel_{i}": array for i, array in enumerate(of_kernels)},
      **{f"projection_{i}": array for i, array in enumerate(of_projections)},
      **dict(
        zip(("bias", "cluster_kernel", "cluster_bias"), others, strict=True)
      ),
    }

  rows = {"hidden": hidden, "targets": targets, "loss_gradient": loss_gradient}
  weights = (
    tuple(kernels),
    tuple(projections),
    bias,
    cluster_kernel,
    cluster_bias,
  )
  found = _run(mesh, losses_and_gradients, rows, weights)
  expected = softmax_reference.losses(
    hidden.astype(np.float64).reshape(-1, width),
    targets.reshape(-1),
    softmax_reference.Weights(
      [kernel.astype(np.float64) for kernel in kernels],
      [projection.astype(np.float64) for projection in projections],
      bias.astype(np.float64),
      cluster_kernel.astype(np.float64),
      cluster_bias.astype(np.float64),
    ),
    loss_gradient.astype(np.float64).reshape(-1),
  )
  flat = {name: found[name].reshape(expected[name].shape) for name in expected}
  room = "without room" if has_many else "with room"
  clusters = (
    f"capacities {capacities} {room}" if capacities else "no capacities"
  )
  return finding.compare(
    flat,
    expected,
    part="softmax",
    case=f"{dtype}, {clusters}, {lanes} lanes, {describe(mesh)}",
    limit=LIMITS["softmax"][dtype],
    dtype=dtype,
  )


def draw_attention(
  lanes: int, sizes: Sizes, encoding: str, dtype: str
) -> Arrays:
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
  return inputs | {name: terms[name] for name in TERMS[encoding]}


def describe(mesh: jax.sharding.Mesh) -> str:
  """The axes of a mesh that split anything."""
  axes = [f"{name} {size}" for name, size in mesh.shape.items() if size > 1]
  return f"mesh of {', '.join(axes)}" if axes else "one device"


def _seeds(lanes: int, heads: int) -> np.ndarray:
  draw = np.random.default_rng(2)
  seeds = draw.integers(-(2**31), 2**31, size=(lanes, heads))
  return seeds.astype(np.int32)


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
  """Numbers of a format, in float32."""
  return array.astype(dtype).astype(np.float32)


def _wide(arrays: Arrays) -> Arrays:
  """Arrays in float64; integers unchanged."""
  return {
    name: array if name == "reach" else array.astype(np.float64)
    for name, array in arrays.items()
  }


def _run(
  mesh: jax.sharding.Mesh,
  function: Callable[..., dict[str, jax.Array]],
  rows: Arrays,
  others: shapes.PyTree,
) -> Arrays:
  """Calls a function on a mesh, with `rows` split by lanes, others whole.

  The results are whole on every device, so that each process reads them.
  """
  whole = mesh_lib.replicated(mesh)
  rows_at = jax.device_put(rows, mesh_lib.lanes(mesh))
  others_at = jax.device_put(others, whole)
  found = jax.jit(function, out_shardings=whole)(rows_at, others_at)
  return {name: np.asarray(array) for name, array in found.items()}
