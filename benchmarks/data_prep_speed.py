"""Speed and peak memory of data preparation on a synthetic corpus.

    python -m benchmarks.data_prep_speed --megabytes=100

Prints one JSON line per tokenizer: time and peak resident memory of the whole
command in its own process, including the start of Python.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
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


def measure(path: pathlib.Path, data_dir: str, tokenizer: str) -> dict:
  """Runs the command once and returns its time and memory."""
  command = [
    sys.executable,
    "-m",
    "data_prep.main",
    "--dataset=text",
    f"--source={path}",
    f"--data_dir={data_dir}",
    f"--name={tokenizer}",
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
    pathlib.Path(data_dir, tokenizer, "meta.json").read_text("utf-8")
  )
  num_tokens = sum(split["num_tokens"] for split in meta["splits"].values())
  megabytes = path.stat().st_size / 1e6
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


def main(argv: list[str]) -> None:
  del argv  # Flags only.
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "corpus.txt")
    write_corpus(path, num_bytes=_MEGABYTES.value * 10**6)
    for tokenizer in _TOKENIZERS.value:
      print(json.dumps(measure(path, folder, tokenizer)), flush=True)


if __name__ == "__main__":
  app.run(main)
