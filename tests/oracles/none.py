"""Nothing tells the order of tokens."""

from tests.oracles import cases

CASES = ()
REST = (
  cases.Case(3, 7, 0, None, {"encoding": "none"}),
  cases.Case(4, 2, 0, "mem_len", cases.ZEROS | {"encoding": "none"}),
)
