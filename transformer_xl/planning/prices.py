"""List prices of TPU chips, in US dollars a chip-hour.

They are those of us-central1 (v4: us-central2) in SkyPilot's catalog of
Google's prices (skypilot-org/skypilot-catalog on GitHub,
catalogs/v8/gcp/vms.csv, commit 8427bbf). On demand, other regions cost up to
1.4 times as much; spot prices differ more, and change. Google's own page is
https://cloud.google.com/tpu/pricing.
"""

from typing import NamedTuple

SOURCE = "SkyPilot's catalog 8427bbf, us-central1"
DATE = "23 November 2026"  # When they were looked up.


class Price(NamedTuple):
  """US dollars a chip-hour."""

  on_demand: float
  spot: float


# By the chip's name in topologies such as `v5e:4x4`.
PRICES = {
  "v4": Price(3.22, 0.9215),
  "v5e": Price(1.2, 0.2449),
  "v5p": Price(4.2, 0.9286),
  "v6e": Price(2.7, 0.5729),
}
