r"""Seconds until the loss that a minimal PyTorch trainer ends with, and ours.

    .venv-parity/bin/python -m benchmarks.time_to_loss --trainer=nanoGPT \
      --text=input.txt --workdir=runs/time_to_loss

`--trainer` is a checkout of https://github.com/karpathy/nanoGPT, which trains
as its README says for a CPU: 4 layers of 128 on characters, 2,000 updates.
Ours is the quickstart's recipe with as many layers of the same width and half
as long segments, on the same training and validation characters, for
`--num_steps` updates, in bfloat16 where the processor multiplies it. Both run
on the same cores, in turns. Seconds are those of updates, and those of the
whole process with its start, its compilation and its last validation.
"""

import json
import os
import pickle
import re
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
from absl import app
from absl import flags

from transformer_xl.data import token_file
from transformer_xl.data_prep import preparation
from transformer_xl.workdir import goodput

_NAME = "time_to_loss"  # Of the dataset.
_STEPS = 2000  # As many updates as in the trainer's README.
# The rest of its command. Validation comes once more, before the first update.
_README = (
  *("--device=cpu", "--compile=False", "--block_size=64", "--batch_size=12"),
  *("--n_layer=4", "--n_head=4", "--n_embd=128", "--dropout=0.0"),
  *(f"--max_iters={_STEPS}", f"--lr_decay_iters={_STEPS}", "--log_interval=1"),
)


def define_flags() -> None:
  """Defines the flags of `main`."""
  flags.DEFINE_string("trainer", None, "Checkout of nanoGPT.", required=True)
  flags.DEFINE_string("text", None, "Text file to train on.", required=True)
  flags.DEFINE_string("workdir", None, "Folder of all runs.", required=True)
  flags.DEFINE_integer("num_steps", 400, "Our updates.")
  flags.DEFINE_integer("mem_len", 256, "Our memory in validation.")
  flags.DEFINE_integer("rounds", 3, "Number of rounds.")
  flags.DEFINE_list("cores", ["0", "1"], "Cores to run on.")


def main(argv: list[str]) -> None:
  del argv
  chosen = flags.FLAGS
  os.sched_setaffinity(0, map(int, chosen.cores))
  workdir = os.path.abspath(chosen.workdir)
  if os.path.isdir(workdir) and os.listdir(workdir):
    sys.exit(
      f"{workdir} has files, and what is finished there would take no time; "
      "name a new --workdir."
    )
  data = os.path.join(workdir, "data")
  preparation.prepare(
    dataset="text",
    data_dir=data,
    name=_NAME,
    source=chosen.text,
    tokenizer="character",
    valid_fraction=0.1,
    test_fraction=0.0,
  )
  copy = os.path.join(workdir, "trainer_data")
  write_for_trainer(os.path.join(data, _NAME), copy)
  rounds = []
  for index in range(chosen.rounds):
    each = {
      "trainer": _trained_by_trainer(copy, os.path.join(workdir, "trainer")),
      "ours": _trained_by_us(data, os.path.join(workdir, f"ours_{index}")),
    }
    print(json.dumps(each), flush=True)
    rounds.append(each)
  settings = {
    "benchmark": _NAME,
    "cores": len(chosen.cores),
    "num_steps": chosen.num_steps,
    "mem_len": chosen.mem_len,
  }
  print(json.dumps(settings | summary(rounds)))


def write_for_trainer(folder: str, copy: str) -> None:
  """Writes a dataset's splits to another folder, as the trainer reads them."""
  os.makedirs(copy, exist_ok=True)
  for split, name in (("train", "train"), ("valid", "val")):
    tokens = token_file.open_split(folder, split).tokens
    np.asarray(tokens, np.uint16).tofile(os.path.join(copy, f"{name}.bin"))
  vocab_size = token_file.read_meta(folder)["vocabulary"]["size"]
  with open(os.path.join(copy, "meta.pkl"), "wb") as file:
    pickle.dump({"vocab_size": vocab_size}, file)


def _trained_by_trainer(data: str, folder: str) -> dict[str, Any]:
  output, seconds = _timed(
    [
      *("train.py", "config/train_shakespeare_char.py", *_README),
      f"--eval_interval={_STEPS}",
      # A name that is a path replaces the folder of the checkout's own data.
      f"--dataset={data}",
      f"--out_dir={folder}",
    ],
    folder=flags.FLAGS.trainer,
  )
  return parsed(output) | {"wall_seconds": seconds}


def parsed(output: str) -> dict[str, float]:
  """Its last validation loss in nats, and the seconds of its updates.

  The first update and the last one are left out, since their times include a
  validation.
  """
  losses = re.findall(r"^step \d+: .* val loss ([\d.]+)", output, re.M)
  times = re.findall(r"^iter \d+: .* time ([\d.]+)ms", output, re.M)
  if len(losses) < 2 or len(times) <= _STEPS:
    raise RuntimeError(f"the trainer did not finish: {output[-2000:]}")
  return {
    "nll": float(losses[-1]),
    "update_seconds": sum(map(float, times[1:_STEPS])) / 1e3,
  }


def _trained_by_us(data: str, folder: str) -> dict[str, Any]:
  _, seconds = _timed(
    [
      *("-m", "transformer_xl.main", "--config=quickstart"),
      *(f"--workdir={folder}", f"--config.data.dir={data}"),
      *(f"--config.data.name={_NAME}", "--config.model.num_layers=4"),
      "--config.model.dtype=auto",
      "--config.train.segment_len=128",
      f"--config.train.num_steps={flags.FLAGS.num_steps}",
      "--config.train.finish_with=('eval',)",
      *(
        "--config.eval.split=valid",
        f"--config.eval.mem_len={flags.FLAGS.mem_len}",
      ),
    ],
    folder=None,
  )
  with open(os.path.join(folder, "results", "eval_valid.json")) as file:
    card = json.load(file)["cards"][-1]
  return {
    "nll": card["nll"],
    "num_parameters": card["num_parameters"],
    "update_seconds": goodput.read(folder)[-1].seconds[goodput.UPDATES],
    "wall_seconds": seconds,
  }


def _timed(arguments: list[str], folder: str | None) -> tuple[str, float]:
  """What a Python program prints, and its seconds."""
  start = time.perf_counter()
  done = subprocess.run(
    [sys.executable, *arguments],
    cwd=folder,
    env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"},
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return done.stdout, time.perf_counter() - start


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
  """Medians over the rounds, and whether ours ended as low in each."""
  medians = {
    side: {
      key: statistics.median(each[side][key] for each in rounds)
      for key in rounds[0][side]
    }
    for side in rounds[0]
  }
  share = {
    key: statistics.median(
      each["ours"][key] / each["trainer"][key] for each in rounds
    )
    for key in ("update_seconds", "wall_seconds")
  }
  return {
    **medians,
    "share_of_its_time": share,
    "reached": all(
      each["ours"]["nll"] <= each["trainer"]["nll"] for each in rounds
    ),
  }


if __name__ == "__main__":
  define_flags()
  app.run(main)
