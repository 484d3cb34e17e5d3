"""Devices of a slice, where the TPU compiler is not installed."""

import importlib.util

import pytest

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
