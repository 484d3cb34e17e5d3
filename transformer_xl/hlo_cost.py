"""Cycles and traffic of a program that was compiled for a TPU.

`cost_analysis` counts the body of a loop once. Here each computation of the
compiled text is costed from its instructions, and loops by their trip counts.
The cycles are the compiler's own estimates, which it writes for all but
collectives, overlapped copies and custom calls; they are no measurement.
"""

import dataclasses
import math
import re

_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = (.*?) ([a-z][a-z0-9-]*)\(")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_KERNEL_FLOPS = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_LOOP = re.compile(r"condition=%([^,\s]+), body=%([^,\s]+)")
_CALLED = re.compile(r"(?:calls|to_apply)=%([^,\s]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TWO_BRANCHES = re.compile(
  r"true_computation=%([^,\s]+), false_computation=%([^,\s]+)"
)
_BOUND = re.compile(r"compare\(%\S+, %([^,\s)]+)\), direction=LT")
_SHAPE = re.compile(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]")
_WIDTHS = {
  "pred": 1,
  "s8": 1,
  "u8": 1,
  "bf16": 2,
  "f16": 2,
  "s16": 2,
  "u16": 2,
  "f64": 8,
  "s64": 8,
  "u64": 8,
}
COLLECTIVES = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)


@dataclasses.dataclass
class Cost:
  """Of one run of a program on one device."""

  cycles: float = 0.0
  kernel_flops: float = 0.0  # As kernels state them; they have no cycles.
  collective_bytes: dict[str, float] = dataclasses.field(default_factory=dict)

  def add(self, other: "Cost", *, times: int = 1) -> None:
    """Adds what runs so many times."""
    self.cycles += times * other.cycles
    self.kernel_flops += times * other.kernel_flops
    for kind, size in other.collective_bytes.items():
      total = self.collective_bytes.get(kind, 0.0) + times * size
      self.collective_bytes[kind] = total


def program_cost(text: str) -> Cost:
  """The cost of the entry computation of a compiled program's text.

  A conditional counts as its dearest branch. The size of a collective is that
  of its result; what travels over links depends on the algorithm.
  """
  computations, entry = _split(text)
  costs: dict[str, Cost] = {}

  def cost(name: str) -> Cost:
    if name not in costs:
      costs[name] = Cost()
      for line in computations.get(name, ()):
        _add_instruction(costs[name], line, cost, computations)
    return costs[name]

  return cost(entry)


def _split(text: str) -> tuple[dict[str, list[str]], str]:
  """The lines of each computation, and the name of the entry."""
  computations: dict[str, list[str]] = {}
  entry, lines = "", []
  for line in text.splitlines():
    match = _COMPUTATION.match(line)
    if match:
      lines = computations.setdefault(match[1], [])
      entry = match[1] if line.startswith("ENTRY") else entry
    else:
      lines.append(line)
  return computations, entry


def _add_instruction(total, line, cost, computations) -> None:
  match = _INSTRUCTION.match(line)
  if not match:
    return
  shape, operation = match.groups()
  cycles = _CYCLES.search(line)
  total.cycles += int(cycles[1]) if cycles else 0
  kind = operation.removesuffix("-start")
  if kind in COLLECTIVES:
    size = _size(shape, last=operation != kind)
    total.add(Cost(collective_bytes={kind: size}))
  elif operation == "custom-call":
    flops = _KERNEL_FLOPS.search(line)
    total.add(Cost(kernel_flops=int(flops[1]) if flops else 0))
  elif operation == "while":
    condition, body = _named(_LOOP, line)
    total.add(cost(body), times=_trips(computations[condition]))
  elif operation == "conditional":
    total.add(max(map(cost, _branches(line)), key=lambda item: item.cycles))
  elif operation in ("call", "fusion", "async-start"):
    called = cost(_named(_CALLED, line)[0])
    # A fusion has an estimate of its own, but may hide a collective.
    inner = 0.0 if cycles else called.cycles
    total.add(dataclasses.replace(called, cycles=inner))


def _named(pattern: re.Pattern[str], line: str) -> tuple[str, ...]:
  """The computations that an instruction names."""
  match = pattern.search(line)
  if match is None:
    raise ValueError(f"the compiler's text has a new form: {line[:200]}")
  return match.groups()


def _branches(line: str) -> list[str]:
  match = _BRANCHES.search(line)
  if match:
    return [name.strip().removeprefix("%") for name in match[1].split(",")]
  return list(_named(_TWO_BRANCHES, line))


def _trips(condition: list[str]) -> int:
  """The bound of a loop that counts from 0, as `jax.lax.scan` makes them."""
  for line in condition:
    match = _BOUND.search(line)
    if match:
      constant = re.compile(rf"%{re.escape(match[1])} = \S+ constant\((\d+)\)")
      found = [m for m in map(constant.search, condition) if m]
      if found:
        return int(found[0][1])
  return 1


def _size(shape: str, *, last: bool) -> float:
  """Bytes of a result; of a started collective's tuple, of its last part."""
  sizes = [
    _WIDTHS.get(kind, 4) * math.prod(map(int, filter(None, sides.split(","))))
    for kind, sides in _SHAPE.findall(shape)
  ]
  return float(sizes[-1] if last else sum(sizes))
