"""How long a new process takes to its first result, cold and warm.

    python -m benchmarks.first_results

Trains the model of `--config=quickstart` for two updates in a temporary folder.
Then new processes, which take turns, load it and score a sentence, load it and
generate, or write text with `--mode=generate`. Each of the three has a compile
cache of its own, which is empty at first. Prints a table: seconds of the first,
and the median of the others; of `--mode=generate` until the first text after
the prompt.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT = "def "
SCORE = """
import sys
import transformer_xl
transformer_xl.load(sys.argv[1]).score(["def first(self, other):"])
"""
GENERATE = """
import sys
import transformer_xl
transformer_xl.load(sys.argv[1]).generate(sys.argv[2], num_tokens=64)
"""


def main() -> None:
  """Measures the rows, and prints the table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--rounds", type=int, default=5)
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    workdir = _trained(folder)
    command = [
      *(sys.executable, "-m", "transformer_xl.main", "--mode=generate"),
      *(f"--config=saved:{workdir}", f"--config.generate.prompt={PROMPT}"),
    ]
    rows = {
      "load, and score a sentence": [sys.executable, "-c", SCORE, workdir],
      "load, and generate 64 tokens": [
        sys.executable,
        "-c",
        GENERATE,
        workdir,
        PROMPT,
      ],
      "`--mode=generate`, first text": command,
    }
    rounds = [
      {
        title: _seconds(words, cache=f"{folder}/{index}")
        for index, (title, words) in enumerate(rows.items())
      }
      for _ in range(1 + options.rounds)
    ]
  cold, *warm = rounds
  print("| a new process | cold, s | warm, s |")
  print("|---|---|---|")
  for title in rows:
    median = statistics.median(seconds[title] for seconds in warm)
    print(f"| {title} | {cold[title]:.1f} | {median:.1f} |")


def _trained(folder: str) -> str:
  """The workdir of a run of two updates."""
  workdir = str(pathlib.Path(folder, "run"))
  command = [
    *(sys.executable, "-m", "transformer_xl.main", "--config=quickstart"),
    *(f"--workdir={workdir}", f"--config.data.dir={folder}/data"),
    *("--config.train.num_steps=2", "--config.train.finish_with=()"),
  ]
  subprocess.run(command, check=True, capture_output=True)
  return workdir


def _seconds(command: list[str], cache: str) -> float:
  """Until the process ends, or writes text after the prompt."""
  start = time.perf_counter()
  with (
    tempfile.TemporaryFile() as log,
    subprocess.Popen(
      command,
      env=os.environ | {"XDG_CACHE_HOME": cache},
      stdout=subprocess.PIPE,
      stderr=log,
    ) as process,
  ):
    assert process.stdout is not None
    text = b""
    seconds = 0.0
    while part := os.read(process.stdout.fileno(), 4096):
      text += part
      if not seconds and len(text) > len(PROMPT):
        seconds = time.perf_counter() - start
    if process.wait():
      log.seek(0)
      raise SystemExit(log.read().decode())
  return seconds or time.perf_counter() - start


if __name__ == "__main__":
  main()
