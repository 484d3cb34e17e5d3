"""The analyses from the command line."""

import importlib
import pathlib
import subprocess
import sys

import pytest

from transformer_xl import main

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("mode", main._ANALYSES)
def test_a_mode_has_its_module(mode):
  name = f"transformer_xl.analysis.{main._ANALYSES[mode]}"
  assert callable(importlib.import_module(name).run)


def test_the_ablation_is_a_command_and_a_mistake_one_line(tmp_path):
  done = subprocess.run(
    [
      sys.executable,
      "-m",
      "transformer_xl.analysis.ablation",
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
  assert "'recurrent-shaw', which is no row" in line
  assert "Traceback" not in done.stderr
