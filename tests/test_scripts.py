"""The console scripts start as `python -m` does, from any directory."""

import os
import subprocess
import sys
import tomllib

import pytest

from tests import test_interrupts
from tests import test_main

SCRIPTS = tomllib.loads((test_main.ROOT / "pyproject.toml").read_text())[
  "project"
]["scripts"]
INSTALLED = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


@pytest.fixture
def scripts(tmp_path):
  """The folder of the scripts, as pip installs them."""
  folder = tmp_path / "bin"
  folder.mkdir()
  for name, entry in SCRIPTS.items():
    module, function = entry.split(":")
    text = INSTALLED.format(
      python=sys.executable, module=module, function=function
    )
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
  return folder


def called(folder, *words):
  """What a script says that is started elsewhere."""
  elsewhere = folder.parent / "elsewhere"
  elsewhere.mkdir(exist_ok=True)
  finished = subprocess.run(
    words,
    capture_output=True,
    cwd=elsewhere,
    env=os.environ
    | {
      "JAX_PLATFORMS": "cpu",
      "PATH": f"{folder}:{os.environ['PATH']}",
      "PYTHONPATH": str(test_main.ROOT),
    },
    text=True,
  )
  assert finished.returncode == 0, finished.stderr
  return finished.stdout


def test_help_names_the_script_and_the_values_of_an_experiment(scripts):
  text = called(scripts, "transformer-xl", "--help")
  assert "    transformer-xl --mode=eval \\\n" in text
  text = called(scripts, "transformer-xl", "--config=quickstart", "--help=data")
  assert "Fields with the values of quickstart" in text
  assert "  config.data.prepare = True  (default: False)" in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_ctrl_c_during_the_imports_is_one_line(scripts, tmp_path, name):
  (tmp_path / "numpy.py").write_text(test_interrupts.SLOW_MODULE)
  path = os.pathsep.join([str(tmp_path), str(test_main.ROOT)])
  lines = test_interrupts.interrupted(
    [str(scripts / name)],
    PYTHONPATH=path,
    XLA_FLAGS="",  # They are read by a process of their own, which would sleep.
  )
  assert lines == [test_interrupts.LAST]
