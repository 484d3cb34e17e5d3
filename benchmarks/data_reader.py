"""Speed of reading training data alone, as one JSON line.

    python -m benchmarks.data_reader --data_dir=data --name=python_stdlib

Reads segments of a prepared training split as training does, and prints tokens
per second. With `--workdir` it also prints the speed of that training run.
"""

import json
import os
import statistics
import time

from absl import app
from absl import flags

from transformer_xl.data import streams
from transformer_xl.data import token_file

_DATA_DIR = flags.DEFINE_string("data_dir", "data", "Folder of the datasets.")
_NAME = flags.DEFINE_string("name", "python_stdlib", "Prepared dataset.")
_LANES = flags.DEFINE_integer("batch_size", 64, "Number of lanes.")
_SEGMENT = flags.DEFINE_integer("segment_len", 512, "Tokens per segment.")
_COUNT = flags.DEFINE_integer("segments", 8, "Segments per read.")
_REPEATS = flags.DEFINE_integer("repeats", 50, "Number of reads.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Training run to compare with.")


def main(argv: list[str]) -> None:
  del argv
  stream = streams.TrainStream(
    token_file.open_split(os.path.join(_DATA_DIR.value, _NAME.value), "train"),
    num_lanes=_LANES.value,
    segment_len=_SEGMENT.value,
    resets="documents",
    rotate=False,
    seed=0,
  )
  seconds = []
  for repeat in range(_REPEATS.value):
    start = time.perf_counter()
    stream.read(repeat * _COUNT.value, _COUNT.value, slice(None))
    seconds.append(time.perf_counter() - start)
  tokens = _COUNT.value * _LANES.value * _SEGMENT.value
  result = {
    "benchmark": "data_reader",
    "name": _NAME.value,
    "batch_size": _LANES.value,
    "segment_len": _SEGMENT.value,
    "tokens_per_second": round(tokens / statistics.median(seconds)),
  }
  if _WORKDIR.value:
    result["training_needs"] = _training_speed(_WORKDIR.value)
    result["times_the_need"] = round(
      result["tokens_per_second"] / result["training_needs"]
    )
  print(json.dumps(result))


def _training_speed(workdir: str) -> float:
  """The highest speed that a run logged, in tokens per second."""
  with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as file:
    records = [json.loads(line) for line in file]
  return max(record.get("tokens_per_second") or 0 for record in records)


if __name__ == "__main__":
  app.run(main)
