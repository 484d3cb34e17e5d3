"""Types of TPU slices, such as `v5litepod-16`: their chips and their cost.

`--price` overrides the list prices of `transformer_xl/planning/prices.py`.
"""

import re
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl.planning import prices

TIERS = ("on-demand", "spot", "reserved", "guaranteed")


class Kind(NamedTuple):
  """What the slices of one kind of chip have in common."""

  runtime_version: str
  numbers_a_chip: int  # The type's number counts chips, or their two cores.
  price: prices.Price


KINDS = {
  "v4": Kind("tpu-ubuntu2204-base", 2, prices.PRICES["v4"]),
  "v5litepod": Kind("v2-alpha-tpuv5-lite", 1, prices.PRICES["v5e"]),
  "v5p": Kind("v2-alpha-tpuv5", 2, prices.PRICES["v5p"]),
  "v6e": Kind("v2-alpha-tpuv6e", 1, prices.PRICES["v6e"]),
}


def kind(name: str) -> Kind:
  """The kind of a type.

  Raises:
    UserError: there is no such type.
  """
  match = re.fullmatch(r"([a-z0-9]+)-([1-9]\d*)", name)
  if not match or match[1] not in KINDS:
    raise errors.UserError(
      f"--type={name} is no TPU slice: take a name like v5litepod-16, v6e-8 "
      "(chips), v5p-32 or v4-16 (two for each chip)."
    )
  return KINDS[match[1]]


def num_chips(name: str) -> int:
  """Chips of a type."""
  number = int(name.rpartition("-")[2])
  return -(-number // kind(name).numbers_a_chip)


def price(name: str, tier: str, given: float | None) -> tuple[float, str]:
  """US dollars a chip-hour, and who says so.

  Raises:
    UserError: nobody says so.
  """
  if given is not None:
    return given, "by --price"
  listed = kind(name).price
  found = {"on-demand": listed.on_demand, "spot": listed.spot}
  if tier not in found:
    raise errors.UserError(
      f"--tier={tier} has no list price: give yours, in US dollars a "
      "chip-hour, as --price=PRICE."
    )
  return found[tier], prices.SOURCE


def cost(name: str, tier: str, given: float | None, hours: float | None) -> str:
  """One line on what a slice costs."""
  chips, (dollars, source) = num_chips(name), price(name, tier, given)
  hourly = chips * dollars
  total = f"${hourly * 24:,.2f} a day"
  if hours is not None:
    total = f"${hourly * hours:,.2f} in {hours:g} h"
  return (
    f"{name}, {tier}: {chips} chips x ${dollars:.4g} a chip-hour ({source}) = "
    f"${hourly:,.2f} an hour, {total}. Storage and traffic come on top."
  )
