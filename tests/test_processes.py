"""Several processes train as one: same losses, one stop, one checkpoint."""

import json
import pathlib
import signal
import socket

import pytest

from tests import corpus
from tests import test_resume as runs

STEPS = 2000  # So many that the signal goes around before they are done.
SIGNALLED = 40
UPDATES = {
  "model.dropout_rate": 0.1,
  "train.num_steps": STEPS,
  "train.optimizer": "sgd",  # Adam magnifies rounding near gradients of 0.
  "train.log_every_steps": 20,
  "train.eval_every_steps": STEPS // 2,
  "checkpoint.every_steps": 200,
}


def free_port():
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    return listener.getsockname()[1]


def start_both(workdir, flags):
  shared = ["--num_processes=2", f"--coordinator=localhost:{free_port()}"]
  return [
    runs.start(workdir, [*flags, *shared, f"--process_id={index}"])
    for index in range(2)
  ]


@pytest.mark.slow
def test_two_processes_stop_together_and_one_goes_on_where_they_were(tmp_path):
  data_dir = corpus.write(tmp_path / "data")
  flags = corpus.config_flags(data_dir, **UPDATES)
  alone, together = tmp_path / "alone", tmp_path / "together"
  runs.finish(runs.start(alone, flags), alone)
  first, second = start_both(together, flags)
  runs.wait_for_step(together, SIGNALLED, first)
  second.send_signal(signal.SIGTERM)  # One host is taken away, both stop.
  runs.finish(first, together)
  runs.finish(second, together)
  log = pathlib.Path(f"{together}.log").read_text()
  assert "process 0 of 2" in log
  assert "process 1 of 2" in log
  stopped = max(
    map(int, (p.name for p in (together / "checkpoints").iterdir()))
  )
  assert SIGNALLED <= stopped < STEPS
  runs.finish(runs.start(together, flags), together)
  assert (
    f"Resuming after step {stopped}."
    in pathlib.Path(f"{together}.log").read_text()
  )
  compare(runs.lines(alone), runs.lines(together))


def compare(alone, together):
  """Sums are added in another order, in float32, over up to 2000 updates."""
  assert len(alone) == len(together) == STEPS // 20 + 2
  for one, two in zip(alone, together, strict=True):
    assert one.keys() == two.keys(), json.dumps([one, two])
    assert one.pop("split", None) == two.pop("split", None)
    assert two == pytest.approx(one, rel=1e-5)
