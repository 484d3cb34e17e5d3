"""What the devices multiply fast, and the type that a run computes in."""

import types

import jax
import pytest

from tests import tiny
from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl.config import load
from transformer_xl.config import precision
from transformer_xl.workdir import run_record


@pytest.mark.parametrize(
  ("device", "cpu_flags", "expected"),
  [
    ({"platform": "tpu"}, "", "bfloat16"),
    ({"platform": "gpu", "compute_capability": "8.0"}, "", "bfloat16"),
    ({"platform": "gpu", "compute_capability": "10.0"}, "", "bfloat16"),
    ({"platform": "gpu", "compute_capability": "7.5"}, "amx_bf16", "float32"),
    ({"platform": "gpu", "compute_capability": "gfx90a"}, "", "float32"),
    ({"platform": "cpu"}, "flags : fpu amx_bf16 sse", "bfloat16"),
    ({"platform": "cpu"}, "flags : fpu avx512_bf16\n", "bfloat16"),
    ({"platform": "cpu"}, "flags : fpu avx512f", "float32"),
    ({"platform": "cpu"}, None, "float32"),
  ],
)
def test_bfloat16_is_fast_where_hardware_multiplies_it(
  monkeypatch, tmp_path, device, cpu_flags, expected
):
  path = tmp_path / "cpuinfo"
  if cpu_flags is not None:
    path.write_text(cpu_flags)
  monkeypatch.setattr(hardware, "_CPU_INFO", path)
  monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(**device)])
  assert hardware.fast_dtype() == expected


def test_a_run_goes_on_in_the_type_that_it_began_with(monkeypatch, tmp_path):
  config = load.from_config_dict(tiny.config_dict(**{"model.dtype": "auto"}))
  model = config.model
  monkeypatch.setattr(hardware, "fast_dtype", lambda: "float32")
  assert precision.dtype_of(model, str(tmp_path), "train") == "float32"
  begun = load.replaced(config, {"model.dtype": "float32"})
  run_record.record(begun, str(tmp_path))
  monkeypatch.setattr(hardware, "fast_dtype", lambda: "bfloat16")
  assert precision.dtype_of(model, str(tmp_path), "eval") == "float32"
  elsewhere = precision.dtype_of(model, str(tmp_path / "other"), "train")
  assert elsewhere == "bfloat16"
  # For TPUs.
  assert precision.dtype_of(model, str(tmp_path), "plan") == "bfloat16"


def test_a_run_whose_record_is_damaged_goes_on(monkeypatch, tmp_path, caplog):
  """Training writes the record again."""
  monkeypatch.setattr(hardware, "fast_dtype", lambda: "float32")
  (tmp_path / "config.json").write_text('{"con')
  config = load.from_config_dict(tiny.config_dict(**{"model.dtype": "auto"}))
  assert precision.dtype_of(config.model, str(tmp_path), "train") == "float32"
  assert "Set --config.model.dtype if the run had another" in caplog.text
  with pytest.raises(errors.UserError, match="is damaged"):
    precision.dtype_of(config.model, str(tmp_path), "study")


@pytest.mark.parametrize("mode", ["ablation", "paper", "study"])
def test_a_comparison_goes_on_in_the_type_that_it_began_with(
  monkeypatch, tmp_path, mode
):
  """Its workers may run on other processors, from another day on."""
  config = load.from_config_dict(tiny.config_dict(**{"model.dtype": "auto"}))
  for kind in ("float32", "bfloat16"):
    monkeypatch.setattr(hardware, "fast_dtype", lambda kind=kind: kind)
    assert precision.dtype_of(config.model, str(tmp_path), mode) == "float32"


def test_a_type_that_is_named_stays(tmp_path):
  config = load.from_config_dict(tiny.config_dict())
  named = precision.dtype_of(config.model, str(tmp_path), "plan")
  assert named == config.model.dtype != "bfloat16"
