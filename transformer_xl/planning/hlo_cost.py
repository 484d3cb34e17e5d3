"""Cycles, FLOPs and communication of a program compiled for a TPU.

JAX's `cost_analysis` counts the body of a loop once. Here costs are summed over
the instructions of the compiled text, with loops multiplied by their trip
counts. Cycles are the compiler's own estimates, not measurements. It gives none
for collectives, overlapped copies and custom calls.
"""

import dataclasses
import re
from collections.abc import Callable

from transformer_xl.planning import hlo_parser

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_KERNEL_FLOPS = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_LOOP = re.compile(r"condition=%([^,\s]+), body=%([^,\s]+)")
_CALLED = re.compile(r"(?:calls|to_apply)=%([^,\s]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TWO_BRANCHES = re.compile(
  r"true_computation=%([^,\s]+), false_computation=%([^,\s]+)"
)
_CHANNEL = re.compile(r"channel_id=(\d+)")
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

  def add(self, other: "Cost", *, times: int = 1) -> None:
    """Adds the cost of something that runs `times` times."""
    self.cycles += times * other.cycles
    self.flops += times * other.flops
    self.kernel_flops += times * other.kernel_flops
    for kind, size in other.collective_bytes.items():
      total = self.collective_bytes.get(kind, 0.0) + times * size
      self.collective_bytes[kind] = total

  def traffic(self) -> float:
    """Lower bound on the bytes that a device sends, for many devices.

    In a ring, every part of an array is sent once to gather or scatter it, and
    twice to reduce it for all devices.
    """
    return sum(self.collective_bytes.values()) + self.collective_bytes.get(
      "all-reduce", 0.0
    )


def program_cost(text: str, *, branch: Callable[..., Cost] = max) -> Cost:
  """Returns the cost of a compiled program.

  Args:
    text: `compiled.as_text()`.
    branch: which branch of a conditional counts: `max` for the most expensive,
      by cycles and then by FLOPs, or `min` for the cheapest.
  """
  walk = _Walk(text, branch)
  return walk.cost(walk.entry)


class _Walk:
  """Visits computations; each is costed once."""

  def __init__(self, text: str, branch: Callable[..., Cost]):
    self._computations, self.entry = hlo_parser.parse(text)
    self._branch, self._costs = branch, dict[str, Cost]()
    # A collective that overlaps with products is listed in each of their
    # fusions; count it only where it starts.
    self._started = {
      channel
      for computation in self._computations.values()
      if _starts(computation)
      for instruction in computation.values()
      for channel in _CHANNEL.findall(instruction.text)
    }

  def cost(self, name: str) -> Cost:
    if name not in self._costs:
      total = self._costs[name] = Cost()
      for instruction in self._computations.get(name, {}).values():
        cycles = _CYCLES.search(instruction.text)
        total.cycles += int(cycles[1]) if cycles else 0
        self._add(total, instruction, name, has_cycles=bool(cycles))
    return self._costs[name]

  def _add(self, total, instruction, name, *, has_cycles) -> None:
    text, operation = instruction.text, instruction.operation
    if operation.removesuffix("-start") in COLLECTIVES:
      total.add(self._collective(instruction, name))
    elif operation in ("dot", "convolution"):
      computation = self._computations[name]
      total.add(Cost(flops=hlo_parser.flops(instruction, computation)))
    elif operation == "custom-call":
      flops = _KERNEL_FLOPS.search(text)
      total.add(Cost(kernel_flops=int(flops[1]) if flops else 0))
    elif operation == "while":
      condition, body = _named(_LOOP, text)
      times = hlo_parser.trips(instruction, self._computations[condition])
      total.add(self.cost(body), times=times)
    elif operation == "conditional":
      branches = map(self.cost, _branches(text))
      total.add(self._branch(branches, key=_expense))
    elif operation in ("call", "fusion", "async-start"):
      called = self.cost(_named(_CALLED, text)[0])
      # A fusion has its own estimate, but may contain a collective.
      inner = 0.0 if has_cycles else called.cycles
      total.add(dataclasses.replace(called, cycles=inner))

  def _collective(self, instruction, name) -> Cost:
    computation = self._computations[name]
    channel = _CHANNEL.search(instruction.text)
    if channel and channel[1] in self._started and not _starts(computation):
      return Cost()
    sent = sum(
      hlo_parser.num_bytes(computation[operand].shape)
      for operand in instruction.operands
    )
    result = hlo_parser.num_bytes(instruction.shape)
    kind = instruction.operation.removesuffix("-start")
    if kind != instruction.operation and kind != "all-reduce":
      result -= sent  # An asynchronous one also returns its operands.
    if name.startswith("all-reduce-scatter"):
      kind = "reduce-scatter"  # The fusion as a whole reduces and scatters.
    return Cost(collective_bytes={kind: max(sent, result)})


def _starts(computation: hlo_parser.Computation) -> bool:
  return any(_START in instruction.text for instruction in computation.values())


def _expense(cost: Cost) -> tuple[float, float]:
  return cost.cycles, cost.flops + cost.kernel_flops


def _named(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
  """Returns the names of the computations that an instruction calls."""
  match = pattern.search(text)
  if match is None:
    raise ValueError(f"unknown form of the compiler's text: {text[:200]}")
  return match.groups()


def _branches(text: str) -> list[str]:
  match = _BRANCHES.search(text)
  if match:
    return [name.strip().removeprefix("%") for name in match[1].split(",")]
  return list(_named(_TWO_BRANCHES, text))
