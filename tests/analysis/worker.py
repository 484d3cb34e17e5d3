"""Workers of a study whose training is only a pause; test_workers.py judges.

python -m tests.analysis.worker imports everything, which takes longest. Then it
answers lines of JSON: to [FOLDER, NAME, COUNT, SECONDS, LEFT] with the number
of a process, which is a new worker, and to such a number with its status at the
end.

A worker waits until COUNT workers have started, trains each trial of the data
in FOLDER for so many seconds, and takes over what nobody has renewed for LEFT
seconds. It writes FOLDER/NAME.json, the result, a line for each trial that it
has begun to FOLDER/NAME.trials, and what it logs to FOLDER/NAME.log.
"""

import json
import os
import pathlib
import signal
import sys
import time
import traceback

from matplotlib import figure

from tests import corpus
from tests.analysis import runs
from transformer_xl.analysis import costs
from transformer_xl.analysis import study
from transformer_xl.analysis import trials
from transformer_xl.analysis import workers
from transformer_xl.workdir import lease

MOST_SECONDS = 300
SETTINGS = runs.COMPARED | {
  "analysis.variants": ("base: ", "long: train.mem_len=16"),
  "analysis.learning_rates": (0.01, 0.03, 0.09),
  "analysis.max_learning_rates": 5,
  "analysis.seeds": (0, 1, 2),
}


class Model:
  """A trained model, of which only the configuration is known."""

  params = ()
  step = 4

  def __init__(self, config, folder):
    del folder
    self.config = config


def measure(model, lengths):
  """A loss that is lowest at a learning rate of its own for each variant."""
  train = model.config.train
  best = 0.2 if train.mem_len == 16 else 0.028
  loss = 2.0 + abs(train.learning_rate - best) + model.config.seed / 100
  return trials.Measurement(dict.fromkeys(lengths, loss), bins={})


def work(
  folder: pathlib.Path, name: str, count: int, seconds: float, left: float
) -> None:
  begun = (folder / f"{name}.trials").open("w")
  while len([*folder.glob("*.trials")]) < count:
    time.sleep(0.02)

  def train(config, trial):
    print(trial, file=begun, flush=True)
    time.sleep(seconds)

  lease.RENEWED_AFTER_SECONDS = 0.1
  lease.LEFT_AFTER_SECONDS = left
  workers._LOOKS_AFTER_SECONDS = 0.05
  trials.loop.train = train
  made_by = trials.provenance() | {"commit": "of no changes"}
  trials.provenance = lambda: made_by
  trials.evaluate.load = Model
  study.measure = measure
  figure.Figure.savefig = runs.save_no_picture
  costs.planned_bytes = lambda *_: 7
  costs.seconds_per_token = lambda timed: dict.fromkeys(
    timed, costs.Seconds(time.perf_counter(), 1.0, 2.0)
  )
  config = corpus.config(str(folder / "data"), **SETTINGS)
  result = study.run(config, str(folder / "study"))
  (folder / f"{name}.json").write_text(json.dumps(result))


def start(folder: str, name: str, *options: float) -> int:
  """The number of a new process, which works and ends."""
  child = os.fork()
  if child:
    return child
  signal.alarm(MOST_SECONDS)  # Ends it if it hangs.
  status = 1
  log = os.open(f"{folder}/{name}.log", os.O_CREAT | os.O_WRONLY)
  os.dup2(log, sys.stdout.fileno())
  os.dup2(log, sys.stderr.fileno())
  try:
    work(pathlib.Path(folder), name, *options)
    status = 0
  except BaseException:
    traceback.print_exc()
  sys.stderr.flush()
  os._exit(status)


def main() -> None:
  for line in sys.stdin:
    match json.loads(line):
      case int(child):
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
      case arguments:
        print(start(*arguments), flush=True)


if __name__ == "__main__":
  main()
