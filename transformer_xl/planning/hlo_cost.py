"""Cycles, FLOPs and communication of a program compiled for a TPU or a GPU.

JAX's `cost_analysis` counts the body of a loop once. Here costs are summed over
the instructions of the compiled text, with loops multiplied by their trip
counts. Cycles are the compiler's own estimates, not measurements. It gives none
for collectives, overlapped copies and custom calls.

For GPUs it has several estimates of an operation, and the lowest counts: some
repeat the traffic of an array for every tile. How fast a matrix product is
depends on tiles that are chosen on the GPU, so only the cycles of its traffic
are counted here, and its FLOPs as those of a kernel.

XLA prints computations one after another, with one instruction per line. Each
line states the shape of its result; operands are names.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from transformer_xl.config import registry

_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
_INSTRUCTION = re.compile(
  r"^\s+(?:ROOT )?%(\S+) = (.*?) ([a-z][a-z0-9-]*)\((.*)$"
)
_NAME = re.compile(r"%([^,\s)]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# On a GPU: cycles, and seconds of the whole and of its traffic.
_GPU_ESTIMATE = re.compile(
  r'"end_to_end_cycles":([^,]+),"exec_time_us":([^,]+),'
  r'"compute_time_us":[^,]+,"memory_access_time_us":([^,]+)'
)
_GPU_PRODUCT = re.compile(r'"kind":"__triton_(nested_)?gemm')
_KERNEL_FLOPS = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_LOOP = re.compile(r"condition=%([^,\s]+), body=%([^,\s]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(r"(?:calls|to_apply)=%([^,\s]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TWO_BRANCHES = re.compile(
  r"true_computation=%([^,\s]+), false_computation=%([^,\s]+)"
)
_CHANNEL = re.compile(r"channel_id=(\d+)")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_GROUPS = re.compile(r"(?:feature|batch)_group_count=(\d+)")
# Bytes of a number of each type; 4 for the others.
_WIDTHS = {"pred": 1, "s8": 1, "u8": 1} | {"f64": 8, "s64": 8, "u64": 8}
_WIDTHS |= {"bf16": 2, "f16": 2, "s16": 2, "u16": 2}
_OPERATION = re.compile(r'op_name="([^"]*)"')
# The module of a layer that an operation belongs to, by JAX's name of the
# operation. Readers of fixed parameters call layers one by one.
_IN_LAYER = re.compile(r"\b(?:layers/\d+|Layer)/(\w+)/")
# Other parts of a model by what occurs in the name; the first that does. What
# is outside the layers and has no other part is the softmax.
_PARTS = (
  ("optimizer", "/optimizer/"),
  ("saved for the backward pass", r"/jit\(dynamic_update_index_in_dim\)/"),
  ("read of one layer from all", r"/jit\(dynamic_index_in_dim\)/"),
  ("norms", "_norm/"),
  ("feed-forward", "/feed_forward/"),
  ("embedding", "/embedding/"),
  ("softmax", "/head/"),
  ("softmax", "/tail_"),
  ("other", "/body.read/"),
  ("softmax", r"Network\."),
)
# The share of updates in which a conditional takes its most expensive branch,
# by what occurs in its name. On average a layer below the last predicts in a
# quarter of them (`training/loss.py`). All others take it where something
# overflows.
_SHARES = {"/auxiliary_layers/": 0.25}
_START = "AsyncCollectiveStart"
COLLECTIVES = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)


@dataclasses.dataclass
class Cost:
  """Cost of one execution of a program on one device."""

  cycles: float = 0.0
  flops: float = 0.0  # XLA's matrix products; a multiply-add is two.
  kernel_flops: float = 0.0  # As stated by kernels, which have no cycles.
  # Sizes of whole gathered or reduced arrays, by kind.
  collective_bytes: dict[str, float] = dataclasses.field(default_factory=dict)
  # Of each part of the model and "forward" or "backward".
  part_cycles: dict[tuple[str, str], float] = dataclasses.field(
    default_factory=dict
  )

  def add(self, other: "Cost", *, times: float = 1) -> None:
    """Adds the cost of something that runs `times` times."""
    self.cycles += times * other.cycles
    self.flops += times * other.flops
    self.kernel_flops += times * other.kernel_flops
    for field in ("collective_bytes", "part_cycles"):
      totals = getattr(self, field)
      for name, value in getattr(other, field).items():
        totals[name] = totals.get(name, 0.0) + times * value

  def by_part(self, *, steps: int = 1) -> dict[str, dict[str, float]]:
    """Cycles of each part in one of `steps` steps, most first."""
    total: dict[str, dict[str, float]] = {}
    for (part, direction), cycles in self.part_cycles.items():
      passes = total.setdefault(part, {"forward": 0.0, "backward": 0.0})
      passes[direction] = cycles / steps
    order = sorted(total, key=lambda part: -sum(total[part].values()))
    return {part: total[part] for part in order}

  def traffic(self) -> float:
    """Lower bound on the bytes that a device sends, for many devices.

    In a ring, every part of an array is sent once to gather or scatter it, and
    twice to reduce it for all devices.
    """
    sizes = self.collective_bytes
    return sum(sizes.values()) + sizes.get("all-reduce", 0.0)


def program_cost(text: str, *, is_expected: bool = False) -> Cost:
  """Returns the largest cost of a compiled program, or the expected one.

  In the largest the most expensive branch of a conditional counts, by cycles
  and then by FLOPs. In the expected one it is the cheapest, but for those with
  a share in which they are computed.

  Args:
    text: `compiled.as_text()`.
    is_expected: whether to return the expected cost.
  """
  computations, entry = _parse(text)
  return _Walk(computations, is_expected).cost(entry)


class _Instruction(NamedTuple):
  shape: str  # Of the result; may be a tuple of arrays.
  operation: str
  operands: tuple[str, ...]  # Names in the same computation.
  text: str  # Everything after the operation's opening bracket.


_Computation = dict[str, _Instruction]  # Instructions by name, in order.


def _parse(text: str) -> tuple[dict[str, _Computation], str]:
  """All computations by name, and the name of the entry computation."""
  computations: dict[str, _Computation] = {}
  entry = ""
  current: _Computation = {}
  for line in text.splitlines():
    if start := _COMPUTATION.match(line):
      current = computations.setdefault(start[1], {})
      entry = start[1] if line.startswith("ENTRY") else entry
    elif match := _INSTRUCTION.match(line):
      name, shape, operation, rest = match.groups()
      operands = tuple(_NAME.findall(rest.partition(")")[0]))
      current[name] = _Instruction(shape, operation, operands, rest)
  return computations, entry


class _Walk:
  """Visits computations; each is costed once."""

  def __init__(self, computations: dict[str, _Computation], is_expected: bool):
    self._computations = computations
    self._is_expected = is_expected
    self._costs: dict[str, Cost] = {}
    # A collective that overlaps with products is listed in each of their
    # fusions; count it only where it starts.
    starting = filter(_starts, computations.values())
    every = [i.text for found in starting for i in found.values()]
    self._started = {_number(_CHANNEL, text) for text in every} - {None}

  def cost(self, name: str) -> Cost:
    if name not in self._costs:
      total = self._costs[name] = Cost()
      for instruction in self._computations.get(name, {}).values():
        self._add(total, instruction, name)
    return self._costs[name]

  def _add(self, total: Cost, instruction: _Instruction, name: str) -> None:
    text = instruction.text
    operation = instruction.operation
    cycles = _cycles(text)
    if cycles:
      total.add(Cost(cycles, part_cycles={_part(text): cycles}))
    if operation.removesuffix("-start") in COLLECTIVES:
      total.add(self._collective(instruction, name))
    elif operation in ("dot", "convolution"):
      total.add(Cost(flops=_flops(instruction, self._computations[name])))
    elif operation == "custom-call":
      total.add(Cost(kernel_flops=_number(_KERNEL_FLOPS, text) or 0))
    elif operation == "while":
      condition, body = _found(_LOOP, text)
      times = _trips(instruction, self._computations[condition])
      total.add(self.cost(body), times=times)
    elif operation == "conditional":
      match = _BRANCHES.search(text)
      names = _NAME.findall(match[1]) if match else _found(_TWO_BRANCHES, text)
      costs = sorted(map(self.cost, names), key=_expense)
      share = 1.0
      if self._is_expected:
        shares = (each for mark, each in _SHARES.items() if mark in text)
        share = next(shares, 0.0)
      if share > 0:
        total.add(costs[-1], times=share)
      if share < 1:
        total.add(costs[0], times=1 - share)
    elif operation in ("call", "fusion", "async-start"):
      called = self.cost(_found(_CALLED, text)[0])
      # A fusion has its own estimate, but may contain a collective.
      if cycles is not None:
        called = dataclasses.replace(called, cycles=0.0, part_cycles={})
      if _GPU_PRODUCT.search(text):
        called = dataclasses.replace(
          called, flops=0.0, kernel_flops=called.flops
        )
      total.add(called)

  def _collective(self, instruction: _Instruction, name: str) -> Cost:
    computation = self._computations[name]
    channel = _number(_CHANNEL, instruction.text)
    if channel in self._started and not _starts(computation):
      return Cost()
    operands = [computation[operand] for operand in instruction.operands]
    sent = sum(_num_bytes(operand.shape) for operand in operands)
    result = _num_bytes(instruction.shape)
    kind = instruction.operation.removesuffix("-start")
    if kind != instruction.operation and kind != "all-reduce":
      result -= sent  # An asynchronous one also returns its operands.
    if name.startswith("all-reduce-scatter"):
      kind = "reduce-scatter"  # The fusion as a whole reduces and scatters.
    return Cost(collective_bytes={kind: max(sent, result)})


def _cycles(text: str) -> float | None:
  """The compiler's estimate for one instruction; None if it has none."""
  cycles = _number(_CYCLES, text)
  if cycles is not None:
    return cycles
  is_product = _GPU_PRODUCT.search(text)
  estimates = []
  for match in _GPU_ESTIMATE.finditer(text):
    # What has no bound is the string "Infinity".
    whole, seconds, traffic_seconds = (
      float(number.strip('"')) for number in match.groups()
    )
    # An estimate of communication has no cycles.
    if 0 < whole < math.inf and 0 < seconds < math.inf:
      share = traffic_seconds / seconds if is_product else 1
      estimates.append(whole * share)
  return min(estimates, default=None)


def _part(text: str) -> tuple[str, str]:
  """The part of the model that an instruction belongs to, and its pass."""
  match = _OPERATION.search(text)
  name = match[1] if match else ""
  direction = "backward" if "transpose(" in name else "forward"
  module = _IN_LAYER.search(name)
  if module and module[1] in registry.mixers:
    return module[1], direction
  parts = (part for part, mark in _PARTS if re.search(mark, name))
  return next(parts, "other"), direction


def _starts(computation: _Computation) -> bool:
  return any(_START in instruction.text for instruction in computation.values())


def _expense(cost: Cost) -> tuple[float, float]:
  return cost.cycles, cost.flops + cost.kernel_flops


def _num_bytes(shape: str) -> float:
  """Size of an array, or of all arrays of a tuple, unpadded."""
  arrays = _ARRAY.findall(shape)
  sizes = [_WIDTHS.get(kind, 4) * math.prod(_sides(s)) for kind, s in arrays]
  return float(sum(sizes))


def _flops(instruction: _Instruction, computation: _Computation) -> float:
  """FLOPs of a matrix product, which XLA writes as a convolution for TPUs."""
  operands = [computation[name].shape for name in instruction.operands]
  left, right, result = (
    _sides(_found(_ARRAY, shape)[1]) for shape in (*operands, instruction.shape)
  )
  if instruction.operation == "convolution":
    return 2.0 * _convolution(instruction.text, left, right, result)
  contracted = _sides(_found(_CONTRACTED, instruction.text)[0])
  return 2.0 * math.prod(result) * math.prod(left[axis] for axis in contracted)


def _trips(loop: _Instruction, condition: _Computation) -> int:
  """Trip count of a loop that counts from 0, as from a scan."""
  known = _number(_TRIPS, loop.text)
  if known is not None:
    return known
  for test in condition.values():
    if test.operation == "compare" and "direction=LT" in test.text:
      bound = condition[test.operands[1]]
      if bound.operation == "constant":
        return int(bound.text.partition(")")[0])
  return 1


def _convolution(text: str, *sides: list[int]) -> float:
  """Multiply-adds of a convolution, without those on padding."""
  labels = _found(_LABELS, text)
  left, right, result = (
    dict(zip(*pair, strict=True)) for pair in zip(labels, sides, strict=True)
  )
  match = _WINDOW.search(text)
  # Options of the window, each with one value per spatial axis.
  pairs = [part.split("=") for part in match[1].split()] if match else []
  groups = math.prod(map(int, _GROUPS.findall(text)))
  count = left["f"] * result["b"] * result["f"] / groups
  for axis in filter(str.isdigit, labels[2]):
    options = {name: values.split("x")[int(axis)] for name, values in pairs}
    count *= _num_products(left[axis], right[axis], result[axis], options)
  return count


def _num_products(
  size: int, kernel: int, result: int, options: Mapping[str, str]
) -> int:
  """Pairs of a kernel and an output position that read an input element."""
  stride = int(options.get("stride", 1))
  spread = int(options.get("lhs_dilate", 1))
  gap = int(options.get("rhs_dilate", 1))
  before = int(options.get("pad", "0_0").split("_")[0])
  outputs = np.arange(result) * stride
  taps = np.arange(kernel) * gap
  positions, between = np.divmod(np.add.outer(outputs, taps) - before, spread)
  read = (between == 0) & (positions >= 0) & (positions < size)
  return int(np.count_nonzero(read))


def _sides(text: str) -> list[int]:
  return [int(part) for part in text.split(",") if part]


def _number(pattern: re.Pattern[str], text: str) -> int | None:
  match = pattern.search(text)
  return int(match[1]) if match else None


def _found(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
  match = pattern.search(text)
  if match is None:
    raise ValueError(f"unknown form of the compiler's text: {text[:200]}")
  return match.groups()
