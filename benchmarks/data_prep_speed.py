"""Speed and peak memory of data preparation on a synthetic corpus.

    python -m benchmarks.data_prep_speed --megabytes=100

One JSON line for each tokenizer: time and peak resident memory of the whole
command in a process of its own, the start of Python included. With --records,
the same lines are read from the file, and from record files that a TFDS builder
has written with a record for each line.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow_datasets.public_api as tfds
from absl import app
from absl import flags

_MEGABYTES = flags.DEFINE_integer(
  "megabytes", 100, "Size of the corpus, in megabytes.", lower_bound=1
)
_TOKENIZERS = flags.DEFINE_list(
  "tokenizers",
  ["byte", "character", "word", "subword"],
  "Tokenizers to measure.",
)
_RECORDS = flags.DEFINE_bool(
  "records", False, "Compare text with the record files of a TFDS builder."
)

_NUM_WORDS = 300_000
_WORDS_PER_LINE = 20
_OPTIONS = {"subword": ["--max_size=8192"]}


def write_corpus(path: pathlib.Path, *, num_bytes: int) -> None:
  """Writes random words whose frequencies follow Zipf's law."""
  random = np.random.default_rng(0)
  lengths = random.integers(2, 12, _NUM_WORDS)
  letters = random.integers(ord("a"), ord("z") + 1, lengths.sum())
  joined = letters.astype(np.uint8).tobytes()
  ends = np.cumsum(lengths)
  words = [joined[end - n : end] for end, n in zip(ends, lengths, strict=True)]
  chances = 1 / np.arange(1, _NUM_WORDS + 1)
  bounds = np.cumsum(chances / chances.sum())
  with open(path, "wb") as file:
    while file.tell() < num_bytes:
      ids = np.searchsorted(bounds, random.random(_WORDS_PER_LINE * 1000))
      chosen = [words[min(i, _NUM_WORDS - 1)] for i in ids]
      for start in range(0, len(chosen), _WORDS_PER_LINE):
        line = chosen[start : start + _WORDS_PER_LINE]
        file.write(b" ".join(line) + b"\n")


def measure(
  path: pathlib.Path,
  data_dir: str,
  tokenizer: str,
  *,
  dataset: str = "text",
  num_bytes: int | None = None,
) -> dict:
  """Returns what one run of the command took."""
  command = [
    sys.executable,
    "-m",
    "data_prep.main",
    f"--dataset={dataset}",
    f"--source={path}",
    f"--data_dir={data_dir}",
    f"--name={dataset}_{tokenizer}",
    f"--tokenizer={tokenizer}",
    *_OPTIONS.get(tokenizer, []),
  ]
  start = time.perf_counter()
  process = subprocess.Popen(
    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  )
  # Usage of this child alone; getrusage gives the maximum over all children.
  _, status, usage = os.wait4(process.pid, 0)
  process.returncode = os.waitstatus_to_exitcode(status)
  seconds = time.perf_counter() - start
  if process.returncode:
    raise subprocess.CalledProcessError(process.returncode, command)
  meta = json.loads(
    pathlib.Path(data_dir, f"{dataset}_{tokenizer}", "meta.json").read_text()
  )
  num_tokens = sum(split["num_tokens"] for split in meta["splits"].values())
  megabytes = (num_bytes or path.stat().st_size) / 1e6
  return {
    "tokenizer": tokenizer,
    "megabytes": round(megabytes, 1),
    "num_tokens": num_tokens,
    "seconds": round(seconds, 2),
    # Smaller than the wall time if the machine was also doing other work.
    "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
    "megabytes_per_second": round(megabytes / seconds, 1),
    "tokens_per_second": round(num_tokens / seconds),
    "peak_mebibytes": round(usage.ru_maxrss / 1024),
  }


def measure_records(path: pathlib.Path, folder: str) -> None:
  """Prints what it takes with and without a TFDS builder's record files."""
  from data_prep.text import text_dataset_builder  # Imports TFDS.

  source = pathlib.Path(folder, "source")
  source.mkdir()
  lines = path.read_text("utf-8").splitlines(keepends=True)
  records = source / "records.jsonl"
  records.write_text("".join(json.dumps({"text": x}) + "\n" for x in lines))
  print(json.dumps(measure(path, folder, "word")), flush=True)
  start = time.perf_counter()
  builder = text_dataset_builder.Builder(
    data_dir=folder, file_format="array_record"
  )
  config = tfds.download.DownloadConfig(
    manual_dir=str(source), try_download_gcs=False
  )
  builder.download_and_prepare(download_config=config)
  seconds = round(time.perf_counter() - start, 2)
  built = {"num_records": len(lines), "seconds_to_build": seconds}
  num_bytes = path.stat().st_size
  place = pathlib.Path(builder.data_dir)
  read = measure(place, folder, "word", dataset="tfds", num_bytes=num_bytes)
  print(json.dumps(built | read), flush=True)


def main(argv: list[str]) -> None:
  del argv  # Flags only.
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "corpus.txt")
    write_corpus(path, num_bytes=_MEGABYTES.value * 10**6)
    if _RECORDS.value:
      measure_records(path, folder)
      return
    for tokenizer in _TOKENIZERS.value:
      print(json.dumps(measure(path, folder, tokenizer)), flush=True)


if __name__ == "__main__":
  app.run(main)
