"""One training run at a time in a folder."""

import subprocess
import sys

import pytest

from tests import corpus
from tests.training.runs import steps
from transformer_xl import errors
from transformer_xl.training import loop
from transformer_xl.workdir import lock


def test_two_runs_in_one_workdir_are_refused(data_dir, tmp_path):
  """Else the second starts anew while the first still saves."""
  config = corpus.config(data_dir, **{"train.num_steps": 4})
  workdir = tmp_path / "run"
  with lock.locked(str(workdir)):
    with pytest.raises(errors.UserError, match="another process trains in"):
      loop.train(config, str(workdir))
    assert [path.name for path in workdir.iterdir()] == [".lock"]
  assert not list(workdir.iterdir())
  assert loop.train(config, str(workdir))
  assert steps(workdir) == [4]


def test_a_killed_run_keeps_nobody_out(tmp_path):
  held = (
    "import sys; from transformer_xl.workdir import lock\n"
    "with lock.locked(sys.argv[1]):\n"
    "  print('held', flush=True); sys.stdin.read()"
  )
  with subprocess.Popen(
    [sys.executable, "-c", held, str(tmp_path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == "held\n"
    with pytest.raises(errors.UserError), lock.locked(str(tmp_path)):
      pass
    process.kill()
  with lock.locked(str(tmp_path)):
    pass
