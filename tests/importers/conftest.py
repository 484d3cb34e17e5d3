"""Exports for tests in PyTorch, and the marks of transformers' own tests."""

import pytest

from tests import saved_runs
from transformer_xl.importers import export_run

_MARKS = (
  *("accelerate_tests", "torch_compile_test"),
  *("flash_attn_test", "flash_attn_3_test", "flash_attn_4_test"),
)


def pytest_configure(config):
  for name in _MARKS:
    config.addinivalue_line("markers", f"{name}: of transformers' own tests")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
  """Exports a random model once: the folder of its name in `MODELS`."""
  from tests.importers import in_pytorch  # Skips what imports it.

  folders = {}

  def make(name):
    if name not in folders:
      place = tmp_path_factory.mktemp("model")
      fields = in_pytorch.LENGTHS | in_pytorch.MODELS[name]
      run = saved_runs.write(place / "run", **fields)
      export_run.export(run, str(place / "exported"))
      folders[name] = place / "exported"
    return folders[name]

  return make
