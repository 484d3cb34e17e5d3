"""Types of TPU slices, such as `v5litepod-16`: their chips and their cost.

Prices are US dollars a chip-hour in us-central1 (v4: us-central2), from
SkyPilot's catalog of Google's prices (skypilot-org/skypilot-catalog on GitHub,
catalogs/v8/gcp/vms.csv, commit 8427bbf). On demand, other regions cost up to
1.4 times as much; spot prices differ more, and change. `--price` overrides it.
"""

import re
from typing import NamedTuple

from transformer_xl import errors

SOURCE = "SkyPilot's catalog 8427bbf, us-central1"
TIERS = ("on-demand", "spot", "reserved", "guaranteed")


class Kind(NamedTuple):
  """What the slices of one kind of chip have in common."""

  runtime_version: str
  numbers_a_chip: int  # The type's number counts chips, or their two cores.
  on_demand: float
  spot: float


KINDS = {
  "v4": Kind("tpu-ubuntu2204-base", 2, 3.22, 0.9215),
  "v5litepod": Kind("v2-alpha-tpuv5-lite", 1, 1.2, 0.2449),
  "v5p": Kind("v2-alpha-tpuv5", 2, 4.2, 0.9286),
  "v6e": Kind("v2-alpha-tpuv6e", 1, 2.7, 0.5729),
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
  found = {"on-demand": kind(name).on_demand, "spot": kind(name).spot}
  if tier not in found:
    raise errors.UserError(
      f"--tier={tier} has no list price: give yours, in US dollars a "
      "chip-hour, as --price=PRICE."
    )
  return found[tier], SOURCE


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
