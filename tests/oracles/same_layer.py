"""Remembers its own outputs; `tests/oracle.py` reads it like `attention`."""

from tests.oracles import cases

REMEMBERS_OUTPUTS = True
CASES = (
  cases.Case(3, 7, 0, None, {"layers": ("same_layer",), "pre_norm": True}),
  cases.Case(4, 2, 0, None, {"layers": ("same_layer",)}),
)
REST = (
  cases.Case(4, 0, 0, None, {"layers": ("same_layer", "attention")}),
  cases.Case(
    *(3, 5, 2, "mem_len"),
    {"layers": ("same_layer:4", "attention:2"), "untie_biases": True},
  ),
)
