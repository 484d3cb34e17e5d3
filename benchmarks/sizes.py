"""Time and memory of commands on inputs of a size, and of ten times the size.

    python -m benchmarks.sizes

Every row is a command of its own, on generated files in a temporary folder.
Prints a table: seconds and the peak of memory at sizes n and 10 n, and growth:
the seconds of an added part from n to 10 n, divided by those of one from n / 10
to n. 1 is linear, whatever a command takes without input.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

# A model that takes a moment; only what grows with the input counts here.
MODEL = (
  *("--config.model.num_layers=1", "--config.model.model_dim=16"),
  *("--config.model.num_heads=2", "--config.model.head_dim=8"),
  *("--config.model.ff_dim=16", "--config.train.batch_size=2"),
  *("--config.train.num_steps=2", "--config.train.warmup_steps=1"),
  *("--config.train.eval_every_steps=0", "--config.train.log_every_steps=1"),
  *("--config.train.finish_with=()", "--config.eval.checkpoint=latest"),
)
Command = list[str]


class Row(NamedTuple):
  """A command and its input.

  Attributes:
    title: what is measured, with {} for the size.
    size: the smaller size.
    write: writes an input of a size into a folder, and returns the command.
  """

  title: str
  size: int
  write: Callable[[pathlib.Path, int], Command]


class Cost(NamedTuple):
  """What one command took."""

  seconds: float
  mib: float


def _transformer_xl(*arguments: str) -> Command:
  return [sys.executable, "-m", "transformer_xl.main", *arguments]


def _words(count: int, seed: int = 0) -> str:
  """Text of so many words, in lines of ten; the usual ones are short."""
  draw = random.Random(seed)
  letters = "abcdefghijklmnopqrstuvwxyz"
  lines = []
  for start in range(0, count, 10):
    words = [
      "".join(draw.choices(letters, k=draw.choice((1, 2, 2, 3, 5))))
      for _ in range(min(10, count - start))
    ]
    lines.append(" ".join(words))
  return "\n".join(lines) + "\n"


def _prepare(folder: pathlib.Path, source: str, *options: str) -> Command:
  splits = folder / "source"
  splits.mkdir()
  (splits / "train.txt").write_text(source, "utf-8")
  (splits / "valid.txt").write_text(source[:2000], "utf-8")
  module = "transformer_xl.data_prep.main"
  return [
    *(sys.executable, "-m", module, "--dataset=text", "--name=words"),
    *(f"--source={splits}", f"--data_dir={folder / 'data'}", *options),
  ]


def _prepare_words(folder: pathlib.Path, size: int) -> Command:
  return _prepare(folder, _words(size), "--tokenizer=word")


def _prepare_unspaced(folder: pathlib.Path, size: int) -> Command:
  text = _words(size).replace(" ", "").replace("\n", "")[:size]
  options = ("--tokenizer=subwords", "--max_size=400")
  return _prepare(folder, text, *options)


def _trained(folder: pathlib.Path) -> Command:
  """Trains the model; the arguments of commands that read its run."""
  subprocess.run(_prepare_words(folder, 2000), check=True, capture_output=True)
  config = f"--config=own_text:{folder}/data/words"
  command = _transformer_xl(config, *MODEL, f"--workdir={folder}/run")
  subprocess.run(command, check=True, capture_output=True)
  return [f"--config=saved:{folder}/run"]


def _score_lines(folder: pathlib.Path, size: int) -> Command:
  run = _trained(folder)
  path = folder / "lines.txt"
  path.write_text(_words(10 * size, seed=1), "utf-8")
  return _transformer_xl("--mode=score", *run, f"--config.score.file={path}")


def _metrics(folder: pathlib.Path, steps: Iterable[int]) -> None:
  """Writes the metrics of a run that would have logged these steps."""
  path = folder / "run" / "metrics.jsonl"
  *_, last = path.read_text("utf-8").splitlines()
  record = json.loads(last)
  with path.open("w", encoding="utf-8") as file:
    for step in steps:
      file.write(json.dumps(record | {"step": step}) + "\n")


def _report(folder: pathlib.Path, size: int) -> Command:
  run = _trained(folder)
  _metrics(folder, range(1, size + 1))
  return _transformer_xl("--mode=report", *run)


def _resume(folder: pathlib.Path, size: int) -> Command:
  run = _trained(folder)
  _metrics(folder, (1 for _ in range(size)))  # Later ones would be dropped.
  options = ("--config.train.num_steps=3", f"--workdir={folder}/run")
  return _transformer_xl(*run, *options)


ROWS = {
  "prepare": Row("prepare {} words", 200_000, _prepare_words),
  "unspaced": Row(
    "subwords of {} characters without a space", 50_000, _prepare_unspaced
  ),
  "score": Row("score {} lines of ten words", 5_000, _score_lines),
  "report": Row("report of {} lines of metrics.jsonl", 50_000, _report),
  "resume": Row("resume after {} lines of metrics.jsonl", 50_000, _resume),
}


def main() -> None:
  """Measures the rows, and prints the table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--rows", default=",".join(ROWS))
  options = parser.parse_args()
  print("| command | size | ten times | growth |")
  print("|---|---|---|---|")
  for name in options.rows.split(","):
    row = ROWS[name]
    tenth, once, tenfold = (
      _measured(row, size) for size in (row.size // 10, row.size, 10 * row.size)
    )
    # By straight lines through two sizes each.
    first = (once.seconds - tenth.seconds) / (0.9 * row.size)
    then = (tenfold.seconds - once.seconds) / (9 * row.size)
    is_measured = min(first, then) * row.size > 0.1
    growth = f"{then / first:.1f}" if is_measured else "not measurable"
    title = row.title.format(f"{row.size:,}")
    print(
      f"| {title} | {once.seconds:.1f} s, {once.mib:.0f} MiB | "
      f"{tenfold.seconds:.1f} s, {tenfold.mib:.0f} MiB | {growth} |",
      flush=True,
    )


def _measured(row: Row, size: int) -> Cost:
  """The command of a row, on an input of this size."""
  with tempfile.TemporaryDirectory() as folder:
    command = row.write(pathlib.Path(folder), size)
    start = time.perf_counter()
    watched = [sys.executable, "-c", _WATCH, *command]
    done = subprocess.run(
      watched, check=True, stdout=subprocess.PIPE, text=True
    )
    seconds = time.perf_counter() - start
  return Cost(seconds, float(done.stdout.splitlines()[-1]))


# Runs a command, and prints the peak of its memory alone in MiB.
_WATCH = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


if __name__ == "__main__":
  main()
