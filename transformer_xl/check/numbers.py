"""The parts of the model against float64 NumPy, on every mesh of the devices.

Float32 is computed with the most exact products that the device has, so that
its errors are those of the algorithm; by default a TPU or GPU may round the
factors. bfloat16 is computed as in training.
"""

import os
from collections.abc import Callable, Sequence
from concurrent import futures

import jax
from absl import logging

from transformer_xl.check import attention_numbers
from transformer_xl.check import finding
from transformer_xl.check import on_mesh
from transformer_xl.check import product_numbers
from transformer_xl.check import softmax_numbers

Check = Callable[..., finding.Finding]
_MOST_THREADS = 8  # Their arrays have to fit into the device together.


def run(
  meshes: Sequence[jax.sharding.Mesh], *, short: bool
) -> list[finding.Finding]:
  """Checks all parts: on the first mesh all cases, on the others a few."""
  findings: list[finding.Finding] = []
  for mesh in meshes:
    logging.info(
      "Checking products, attention and softmax on %s.", on_mesh.describe(mesh)
    )
    for dtype in on_mesh.DTYPES:
      findings += check_mesh(
        mesh, dtype, short=short, is_first=mesh is meshes[0]
      )
  return findings


def check_mesh(
  mesh: jax.sharding.Mesh, dtype: str, *, short: bool, is_first: bool
) -> list[finding.Finding]:
  """Checks all parts in one format; fewer cases unless `is_first`."""
  checks: list[tuple[str, Check, tuple[object, ...]]] = []

  def check(part: str, function: Check, *arguments: object) -> None:
    checks.append((part, function, arguments))

  if is_first:
    check("products", product_numbers.check_products, 1024 if short else 4096)
    check("dropout masks", attention_numbers.check_dropout_masks)

  cases = attention_numbers.cases(mesh, dtype, short=short, is_first=is_first)
  for sizes, kind, rate in cases:
    for form in attention_numbers.forms():
      check(
        "attention",
        attention_numbers.check_attention,
        form,
        sizes,
        kind,
        rate,
      )

  check_ring = attention_numbers.check_ring
  kinds = ("keys and biases", "slopes") if is_first else ("keys and biases",)
  for kind in kinds:
    for form in attention_numbers.forms():
      check("ring", check_ring, form, attention_numbers.RING, kind)
  tokens = attention_numbers.RING_OF_TOKENS
  check("ring", check_ring, "xla", tokens, "keys and biases")

  room = softmax_numbers.ROOM
  for capacities, has_many in (((), False), (room, False), (room, True)):
    check("softmax", softmax_numbers.check_softmax, capacities, has_many)

  def run_check(
    part: str, function: Check, arguments: tuple[object, ...]
  ) -> list[finding.Finding]:
    """Calls a function with the mesh, the format and its other arguments."""
    case = ", ".join(map(str, (dtype, *arguments, on_mesh.describe(mesh))))
    with jax.set_mesh(mesh), on_mesh.exact_products(dtype):
      return finding.attempt(
        part, case, lambda: [function(mesh, dtype, *arguments)]
      )

  with futures.ThreadPoolExecutor(_num_threads()) as threads:
    found = threads.map(run_check, *zip(*checks, strict=True))
    return [one for findings in found for one in findings]


def _num_threads() -> int:
  """How many cases are computed at a time: compiling them takes long.

  Several devices have to start programs in the same order.
  """
  is_alone = jax.device_count() == 1 and jax.devices()[0].platform != "cpu"
  return min(_MOST_THREADS, os.cpu_count() or 1) if is_alone else 1
