"""Devices of a slice, where the TPU compiler is not installed."""

import importlib.util

import pytest

from transformer_xl import errors
from transformer_xl.planning import topology


def test_without_libtpu_the_error_names_the_extra(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(errors.UserError, match=r"install .* -e '\.\[tpu\]'"):
    topology.slice_devices("v5e:4x4")
