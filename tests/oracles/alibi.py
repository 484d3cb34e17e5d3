"""Penalties of distances, from their equations."""

from tests.oracles import cases


def slope(head: int, num_heads: int) -> float:
  """The slope of a head (Press et al. 2021, section 3).

  "For models with 8 heads, the slopes that we use are the geometric sequence
  1/2, 1/4, ..., 1/256", and for n heads one that starts at 2^(-8/n) with that
  ratio. For other numbers than powers of two, the authors' program takes the
  slopes of the power p below and then the first, third, fifth, ... of 2 p.
  """
  power = 1
  while power * 2 <= num_heads:
    power *= 2
  if head < power:
    return (2 ** (-8 / power)) ** (head + 1)
  return (2 ** (-4 / power)) ** (2 * (head - power) + 1)


def slopes(config):
  count = config.num_heads
  return [slope(head, count) for head in range(count)]


CASES = (cases.Case(3, 7, 0, None, {"encoding": "alibi", "num_heads": 3}),)
REST = (
  cases.Case(
    4, 2, 0, "mem_len", cases.ZEROS | {"encoding": "alibi", "pre_norm": True}
  ),
)
