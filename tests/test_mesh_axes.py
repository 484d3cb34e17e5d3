"""How many devices lie along each axis, where the configuration leaves it."""

import itertools
import math

import pytest

from tests import chips
from tests import tiny
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import mesh_axes
from transformer_xl.config import schema
from transformer_xl.workdir import trained_model

GIB = 1 << 30
LARGE = mesh_axes.Demand(
  lanes=128, width=1024, heads=16, state_bytes=3 * GIB, most_bytes=GIB // 4
)


def choose(num_devices, demand=LARGE, *, num_slices=1, **given):
  axes = {"data": -1, "fsdp": -1, "tensor": -1} | given
  return mesh_axes.choose(
    schema.MeshConfig(**axes),
    demand,
    num_devices=num_devices,
    num_slices=num_slices,
  )


@pytest.mark.parametrize(
  ("num_devices", "axes"),
  [
    (1, (1, 1, 1)),
    (8, (1, 8, 1)),  # Not small enough yet, but there are no more.
    (16, (1, 16, 1)),  # 3 GiB / 16 are less than GiB / 4.
    (64, (4, 16, 1)),
    (128, (8, 16, 1)),
    (256, (16, 8, 2)),  # Two devices share a lane, and what they hold.
    (6, (3, 2, 1)),  # 3 does not divide the width.
  ],
)
def test_a_large_state_is_split_until_it_is_small(num_devices, axes):
  assert choose(num_devices) == axes


@pytest.mark.parametrize(
  ("num_devices", "given", "message"),
  [
    (3, {"data": 1}, "leave 3 devices to mesh.fsdp, which must divide .* 1024"),
    (6, {"data": 1, "fsdp": 1}, "leave 6 devices to mesh.tensor, .* 16: set"),
  ],
)
def test_the_rest_must_split_matrices(num_devices, given, message):
  with pytest.raises(errors.UserError, match=message):
    choose(num_devices, **given)


@pytest.mark.parametrize("num_devices", [1, 2, 4, 6, 8, 64])
def test_a_small_state_stays_whole(num_devices):
  small = LARGE._replace(state_bytes=LARGE.most_bytes)
  assert choose(num_devices, small) == (num_devices, 1, 1)


@pytest.mark.parametrize(
  ("lanes", "heads", "tensor"),
  [
    (16, 8, 1),
    (9, 8, 1),  # Sixteen shards have a lane or none.
    (8, 8, 2),
    (4, 8, 4),
    (1, 8, 8),
    (1, 10, 2),  # 4 and 8 do not divide the heads.
    (1, 7, 1),
  ],
)
def test_devices_share_a_lane_where_they_are_twice_as_many(
  lanes, heads, tensor
):
  demand = mesh_axes.Demand(lanes=lanes, heads=heads)
  assert choose(16, demand) == (16 // tensor, 1, tensor)


@pytest.mark.parametrize("num_slices", [1, 2])
@pytest.mark.parametrize(
  ("given", "axes"),
  [
    ({"fsdp": 8}, (4, 8, 1)),
    ({"fsdp": 1, "tensor": 1}, (32, 1, 1)),  # What earlier runs have saved.
    ({"tensor": 4}, (2, 4, 4)),
    ({"data": 4}, (4, 8, 1)),
    ({"data": 4, "fsdp": 4}, (4, 4, 2)),
    ({"data": 4, "tensor": 4}, (4, 2, 4)),
    ({"data": 2, "fsdp": 8, "tensor": 2}, (2, 8, 2)),
  ],
)
def test_given_numbers_are_taken(given, axes, num_slices):
  assert choose(32, num_slices=num_slices, **given) == axes


def test_what_trains_on_a_mesh_can_be_evaluated_on_it():
  """Training has few lanes, and parameters alone keep whole if they can."""
  config = tiny.model_config(model_dim=12, num_heads=8, ff_dim=24)
  assert config.most_tensor_parts == 8
  found = set()
  devices = chips.make("v5e", (2, 4))
  for given in itertools.product((-1, 1, 2, 4, 8), repeat=3):
    axes = schema.MeshConfig(*given)
    train = mesh_axes.Demand(lanes=2, width=12, heads=8, state_bytes=1 << 20)
    try:
      trained = mesh_axes.choose(axes, train, num_devices=8)
    except errors.UserError:
      continue
    found.add(trained)
    mesh = trained_model.make_mesh(config, axes, devices=devices)
    assert mesh.size == 8
  assert len(found) > 5


@pytest.mark.parametrize(
  "given", [{"fsdp": 3}, {"data": 2, "fsdp": 2, "tensor": 2}, {"data": 5}]
)
def test_numbers_that_do_not_use_all_devices_are_one_line(given):
  with pytest.raises(errors.UserError, match="must use all 16 devices") as says:
    choose(16, **given)
  assert "1, 2, 4, 8, 16." in str(says.value)
  assert "\n" not in str(says.value)


def test_numbers_that_cross_slices_are_one_line():
  for given in ({"fsdp": 16}, {"data": 1}, {"fsdp": 8, "tensor": 2}):
    with pytest.raises(errors.UserError, match="the 8 devices of a slice"):
      choose(16, num_slices=2, **given)


@pytest.mark.parametrize("num_slices", [1, 2, 3])
@pytest.mark.parametrize("demand", [LARGE, mesh_axes.Demand(heads=4)])
def test_every_choice_uses_all_devices_inside_slices(demand, num_slices):
  for in_slice in range(1, 40):
    count = in_slice * num_slices
    axes = choose(count, demand, num_slices=num_slices)
    assert math.prod(axes) == count
    assert in_slice % (axes.fsdp * axes.tensor) == 0


def test_only_data_parallelism_crosses_slices():
  devices = chips.make("v5e", (4, 4), slices=2)
  mesh = mesh_lib.make_mesh(schema.MeshConfig(-1, 4, 2), devices=devices[::-1])
  assert mesh.devices.shape == (4, 4, 2)
  assert {chip.id for chip in mesh.devices.flat} == {*range(32)}
  found = [{chip.slice_index for chip in part.flat} for part in mesh.devices]
  assert found == [{0}, {0}, {1}, {1}]


@pytest.mark.parametrize("kind", chips.KINDS)
def test_neighbours_in_a_slice_share_parameters(kind):
  """`create_device_mesh` was given the coordinates, not only the count."""
  (shape,) = (s for s in chips.SLICES[kind] if math.prod(s) == 64)
  devices = chips.make(kind, shape)
  mesh = mesh_lib.make_mesh(schema.MeshConfig(-1, 4, 1), devices=devices)
  for group in mesh.devices.reshape(-1, 4):
    spread = [
      max(x) - min(x) for x in zip(*(c.coords for c in group), strict=True)
    ]
    assert sum(spread) <= 3
