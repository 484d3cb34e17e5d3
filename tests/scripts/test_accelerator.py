"""Types of slices: chips, runtime versions and costs."""

import pytest

from scripts.tpu import accelerator
from tests.scripts import conftest
from transformer_xl import errors


@pytest.mark.parametrize(
  ("name", "chips"),
  [("v5litepod-16", 16), ("v6e-256", 256), ("v5p-32", 16), ("v4-8", 4)],
)
def test_chips(name, chips):
  assert accelerator.num_chips(name) == chips


def test_the_runtime_version_is_that_of_googles_table():
  assert accelerator.kind("v5litepod-4").runtime_version == (
    "v2-alpha-tpuv5-lite"
  )
  assert accelerator.kind("v5p-8").runtime_version == "v2-alpha-tpuv5"
  assert accelerator.kind("v6e-8").runtime_version == "v2-alpha-tpuv6e"


@pytest.mark.parametrize("name", ["v5e:4x4", "v5litepod", "v9-8", "v5p-0"])
def test_other_names_are_refused(name):
  with pytest.raises(errors.UserError, match="no TPU slice: take a name like"):
    accelerator.kind(name)


def test_the_cost_is_chips_times_price_times_hours():
  line = accelerator.cost("v5p-32", "on-demand", None, 10)
  assert "16 chips x $4.2 a chip-hour (SkyPilot's catalog" in line
  assert "= $67.20 an hour, $672.00 in 10 h." in line
  line = accelerator.cost("v6e-8", "reserved", 1.5, None)
  assert "8 chips x $1.5 a chip-hour (by --price) = $12.00 an hour" in line
  assert "$288.00 a day" in line


def test_a_tier_without_list_price_needs_one(cloud):
  flags = ("--type=v6e-8", "--tier=reserved", "--yes")
  lines = conftest.finish(conftest.start(cloud, "create", *flags), status=2)
  assert any("give yours, in US dollars a chip-hour" in line for line in lines)
  assert cloud.calls("create") == []


@pytest.mark.parametrize("price", [(), ("--price=1",)])
def test_a_mistyped_type_is_one_line(cloud, price):
  flags = ("--type=v5e-16", "--yes", *price)
  lines = conftest.finish(conftest.start(cloud, "create", *flags), status=2)
  assert sum("v5e-16" in line for line in lines) == 1
  assert not any("Traceback" in line for line in lines)
  assert cloud.calls("create") == []


def test_cost_asks_nobody(cloud):
  process = conftest.start(cloud, "cost", "--type=v6e-8", "--hours=2")
  (line,) = conftest.finish(process)
  assert line.startswith("v6e-8, on-demand: 8 chips x $2.7 a chip-hour")
  assert cloud.calls() == []
