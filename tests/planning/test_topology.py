"""Devices of a slice, where the TPU compiler is not installed."""

import importlib.util
import types

import pytest
from jax.experimental import topologies

from tests import chips
from transformer_xl import errors
from transformer_xl.planning import topology


@pytest.mark.parametrize("name", ["v5litepod-16", "v5e-16", "v5e", "a100"])
def test_a_name_of_another_form_is_refused_with_examples(name):
  said = rf"--topology={name} must be a kind of chip .* v5e:4x4, which is the"
  with pytest.raises(errors.UserError, match=said):
    topology.slice_devices(name)


def test_without_libtpu_the_error_names_the_extra(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(errors.UserError, match=r"install .* -e '\.\[tpu\]'"):
    topology.slice_devices("v5e:4x4")


@pytest.mark.parametrize(
  ("name", "options"),
  [
    ("v4:2x2x1", {"chip_config_name": "megacore"}),
    ("v5e:4x4x2slices", {"num_slices": 2}),
  ],
)
def test_a_chip_is_one_device(monkeypatch, name, options):
  """Unless it is asked for that, libtpu lists both cores of a v4."""
  asked = {}

  def get_topology_desc(**arguments):
    asked.update(arguments)
    (device,) = chips.make("v5e", (1, 1))
    return types.SimpleNamespace(devices=[device])

  monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
  monkeypatch.setattr(topologies, "get_topology_desc", get_topology_desc)
  topology.slice_devices(name)
  slice_name = name.removesuffix("x2slices")
  assert asked == {"platform": "tpu", "topology_name": slice_name, **options}
