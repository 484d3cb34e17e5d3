"""Parses the text of a compiled XLA program into instructions.

XLA prints computations one after another, with one instruction per line. Each
line states the shape of its result; operands are names.
"""

import math
import re
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
_INSTRUCTION = re.compile(
  r"^\s+(?:ROOT )?%(\S+) = (.*?) ([a-z][a-z0-9-]*)\((.*)$"
)
_NAME = re.compile(r"%([^,\s)]+)")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_GROUPS = re.compile(r"(?:feature|batch)_group_count=(\d+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
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


class Instruction(NamedTuple):
  """One instruction, which is one line."""

  shape: str  # Of the result; may be a tuple of arrays.
  operation: str
  operands: tuple[str, ...]  # Names in the same computation.
  text: str  # Everything after the operation's opening bracket.


Computation = dict[str, Instruction]  # Instructions by name, in order.


def parse(text: str) -> tuple[dict[str, Computation], str]:
  """Parses `compiled.as_text()`.

  Returns:
    All computations by name, and the name of the entry computation.
  """
  computations: dict[str, Computation] = {}
  entry, current = "", {}
  for line in text.splitlines():
    start = _COMPUTATION.match(line)
    if start:
      current = computations.setdefault(start[1], {})
      entry = start[1] if line.startswith("ENTRY") else entry
    elif match := _INSTRUCTION.match(line):
      operands = tuple(_NAME.findall(match[4].partition(")")[0]))
      current[match[1]] = Instruction(match[2], match[3], operands, match[4])
  return computations, entry


def num_bytes(shape: str) -> float:
  """Returns the size of an array, or of all arrays of a tuple, unpadded."""
  return float(
    sum(
      _WIDTHS.get(kind, 4) * math.prod(_numbers(sides))
      for kind, sides in _ARRAY.findall(shape)
    )
  )


def flops(instruction: Instruction, computation: Computation) -> float:
  """Returns the FLOPs of a matrix product; 0 for any other instruction.

  A multiply-add counts as two. For TPUs, XLA writes products as convolutions.
  """
  if instruction.operation not in ("dot", "convolution"):
    return 0.0
  shapes = [computation[name].shape for name in instruction.operands]
  if instruction.operation == "convolution":
    return 2.0 * _convolution(instruction, shapes)
  left = _sides(shapes[0])
  contracted = _found(_CONTRACTED, instruction.text)[0]
  depth = math.prod(left[axis] for axis in _numbers(contracted))
  return 2.0 * math.prod(_sides(instruction.shape)) * depth


def trips(loop: Instruction, condition: Computation) -> int:
  """Returns the trip count of a loop that counts from 0, as from a scan."""
  known = _TRIPS.search(loop.text)
  if known:
    return int(known[1])
  for test in condition.values():
    if test.operation == "compare" and "direction=LT" in test.text:
      bound = condition[test.operands[1]]
      if bound.operation == "constant":
        return int(bound.text.partition(")")[0])
  return 1


def _convolution(instruction: Instruction, shapes: list[str]) -> float:
  """Multiply-adds of a convolution, without those on padding."""
  labels = _found(_LABELS, instruction.text)
  left, right, result = (
    dict(zip(names, _sides(shape), strict=True))
    for names, shape in zip(labels, (*shapes, instruction.shape), strict=True)
  )
  window = _window(instruction.text)
  groups = math.prod(map(int, _GROUPS.findall(instruction.text)))
  count = left["f"] * result["b"] * result["f"] / groups
  for axis in filter(str.isdigit, labels[2]):
    options = {name: values[int(axis)] for name, values in window.items()}
    count *= _num_products(left[axis], right[axis], result[axis], options)
  return count


def _window(text: str) -> dict[str, list[str]]:
  """Options of a convolution's window, one value per spatial axis."""
  match = _WINDOW.search(text)
  pairs = [part.split("=") for part in match[1].split()] if match else []
  return {name: values.split("x") for name, values in pairs}


def _num_products(size: int, kernel: int, result: int, options) -> int:
  """Pairs of a kernel and an output position that read an input element."""
  stride, spread, gap = (
    int(options.get(name, 1)) for name in ("stride", "lhs_dilate", "rhs_dilate")
  )
  before = int(options.get("pad", "0_0").split("_")[0])
  positions = (
    out * stride + at * gap - before
    for out in range(result)
    for at in range(kernel)
  )
  return sum(
    0 <= position <= (size - 1) * spread and position % spread == 0
    for position in positions
  )


def _sides(shape: str) -> list[int]:
  return _numbers(_found(_ARRAY, shape)[1])


def _numbers(text: str) -> list[int]:
  return [int(part) for part in text.split(",") if part]


def _found(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
  match = pattern.search(text)
  if match is None:
    raise ValueError(f"unknown form of the compiler's text: {text[:200]}")
  return match.groups()
