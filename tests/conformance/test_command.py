"""The command: a row a check, and a status that says whether one failed."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests import commands
from tests import kinds

NAME = kinds.mixer(attends=False)
ROOT = pathlib.Path(__file__).parents[2]
EXTENSION = """
from transformer_xl.config import registry
from tests.conformance import examples

for name in ("ema", "ema_leaks"):
  registry.mixers.register(name)(examples.MIXERS[name])
"""


def run(*words):
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
  return subprocess.run(
    [sys.executable, "-m", "transformer_xl.conformance", *words],
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )


MISTAKES = (
  ((), "give the name of one mixer or encoding"),
  ((f"{NAME}x",), f"'{NAME}x'; did you mean {NAME}?"),
  (("ema", "--extensions=nowhere.py"), "there is no such file"),
)


def test_a_mistake_ends_in_one_line():
  command = {"module": "transformer_xl.conformance.__main__", "apart": True}
  cases = [command | {"arguments": words} for words, _ in MISTAKES]
  (results,) = commands.finished([cases], ("transformer_xl.conformance.kit",))
  for (_, said), ended in zip(MISTAKES, results, strict=True):
    assert ended["status"] == 2
    assert said in ended["stderr"]
    assert ended["stderr"].count("\n") == 1
    assert ended["stdout"] == ""


@pytest.mark.slow
@pytest.mark.rest
@pytest.mark.parametrize(("name", "status"), [("ema", 0), ("ema_leaks", 1)])
def test_a_file_of_ones_own_is_tried_on_two_devices(name, status, tmp_path):
  path = tmp_path / "my_memory.py"
  path.write_text(EXTENSION)
  ended = run(name, f"--extensions={path}")
  assert ended.returncode == status, ended.stderr
  *rows, last = ended.stdout.splitlines()
  by_outcome = {row.split("  ")[0] for row in rows}
  assert "passed" in by_outcome
  assert any(row.startswith("passed          two devices") for row in rows)
  assert ("FAILED" in by_outcome) == bool(status)
  if status:
    assert "a reset of a lane is a fresh start" in ended.stderr
  else:
    assert last.startswith("ema passed ")
