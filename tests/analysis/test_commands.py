"""The analyses from the command line."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


# Run in a separate process: importing the command line defines its flags, and
# the importers' commands define --workdir, too.
_MODES = """
import importlib
from transformer_xl import main
from transformer_xl.config import training_fields
for module, function in main.MODES.values():
  module = importlib.import_module(f"transformer_xl.{module}")
  assert callable(getattr(module, function))
  later = module.__name__.rpartition(".")[2] not in ("loop", "plan")
  assert callable(getattr(module, "check", None)) == later
assert {*main.MODES} == {*training_fields.FINISHES, "train", "plan"}
print(*main.MODES)
"""


def test_every_mode_has_its_module():
  done = subprocess.run(
    [sys.executable, "-c", _MODES], cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  assert {"recl", "attention", "eval_speed"} <= set(done.stdout.split())


def test_the_ablation_is_a_command_and_a_mistake_one_line(tmp_path):
  done = subprocess.run(
    [
      sys.executable,
      "-m",
      "transformer_xl.main",
      "--mode=ablation",
      "--config=experiments/ablation_ptb.py",
      f"--workdir={tmp_path}/run",
      "--config.analysis.rows=('recurrent-shaw',)",
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 2
  (line,) = [x for x in done.stderr.splitlines() if x.startswith("error")]
  assert "'recurrent-shaw', which is not a row" in line
  assert "Traceback" not in done.stderr
