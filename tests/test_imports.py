"""What importing the package does, in a process of its own, and does not."""

import json
import os
import subprocess
import sys

import pytest

from tests import own_process

IMPORTS = """
import copy
import json
import logging
import os
import sys
import time

def outside():
  environment = [name for name in os.environ if name.startswith("GCSFS")]
  return environment, logging.getLogger("gcsfs").level

def libraries():
  import fsspec
  import matplotlib
  return copy.deepcopy((dict(matplotlib.rcParams), fsspec.config.conf))

first = outside()
start = time.perf_counter()
import transformer_xl
seconds = time.perf_counter() - start
early = [*({"jax", "fsspec", "matplotlib"} & sys.modules.keys())]
before = libraries()

sys.modules["jax.experimental.pallas"] = None
import transformer_xl.analysis.recl
import transformer_xl.pretrained
import transformer_xl.text.generate
are_kept = (outside(), libraries()) == (first, before)

from transformer_xl.experiments import vanilla
vanilla.get_config("ptb_small")
import jax
# JAX refuses this once it has looked for devices.
jax.config.update("jax_num_cpu_devices", 3)
print(json.dumps({"seconds": seconds, "early": early, "are_kept": are_kept}))
"""


@pytest.fixture(scope="module")
def result():
  """What the imports did; no devices are there to be used, nor is pallas."""
  names = [name for name in os.environ if not name.startswith("GCSFS")]
  return subprocess.run(
    [sys.executable, "-c", IMPORTS],
    capture_output=True,
    cwd=own_process.ROOT,
    env={name: os.environ[name] for name in names}
    | {"JAX_PLATFORMS": "none_of_them"},
    text=True,
  )


def test_an_import_and_a_twin_need_neither_a_device_nor_pallas(result):
  """Else processes could not join each other, and a CPU not start."""
  assert result.returncode == 0, result.stderr


def test_the_package_alone_is_imported_quickly(result):
  said = json.loads(result.stdout)
  assert said["seconds"] < 2
  assert said["early"] == []


def test_an_import_changes_no_settings_of_other_libraries(result):
  assert json.loads(result.stdout)["are_kept"]
