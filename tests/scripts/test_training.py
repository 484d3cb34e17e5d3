"""Real training on two workers of the stand-in, preempted twice."""

import datetime
import json
import os
import pathlib
import sys

import pytest

from tests import corpus
from tests.scripts import conftest
from tests.scripts import test_session

PAGE = conftest.ROOT / "docs/measurements/tpu_operations.md"
START, END = "<!-- session: start -->", "<!-- session: end -->"
STEPS = 1200
UPDATES = {
  "train.num_steps": STEPS,
  "train.optimizer": "sgd",  # Adam magnifies rounding near gradients of 0.
  "train.log_every_steps": 50,
  "train.eval_every_steps": STEPS // 2,
  "checkpoint.every_steps": 100,
}
SETTINGS = (
  *("JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_COMPILATION_CACHE_DIR"),
  *("JAX_PLATFORMS", "XLA_FLAGS"),
)
# On a slice, processes find each other without flags.
PROGRAM = """#!/bin/bash
cd {root}
export {settings}
exec {python} "$@" --coordinator=localhost:$(cat {port}) --num_processes=2 \\
  --process_id=$TPU_WORKER_ID
"""
ASKED = ("--type=v5litepod-8", "--tier=spot", "--hours=1", "--yes")
FAULTS = [
  ["queued-resources create", "quota"],
  ["tpu-vm ssh", "refused"],
  ["tpu-vm ssh", "dropped", "setsid"],
]

pytestmark = [pytest.mark.rest, pytest.mark.slow]


def install_program(cloud):
  environment = os.environ | {
    "JAX_COMPILATION_CACHE_DIR": str(conftest.ROOT / ".jax_cache"),
    "JAX_PLATFORMS": "cpu",
  }
  text = PROGRAM.format(
    root=conftest.ROOT,
    python=sys.executable,
    port=cloud.folder / "port",
    settings=" ".join(
      f"{name}='{environment[name]}'"
      for name in SETTINGS
      if name in environment
    ),
  )
  conftest.write_program(cloud.folder / "bin" / "program", text)


def records(workdir):
  path = workdir / "metrics.jsonl"
  if not path.exists():
    return []
  lines = path.read_text().splitlines(keepends=True)
  return [json.loads(line) for line in lines if line.endswith("\n")]


def test_two_preemptions_leave_one_run(cloud, tmp_path, request):
  bucket = tmp_path / "bucket"
  data_dir = corpus.write(bucket / "data")
  workdir = bucket / "run"
  flags = corpus.config_flags(data_dir, **UPDATES)
  install_program(cloud)
  with cloud.state() as state:
    state["faults"] = list(FAULTS)
  command = ("--config=experiments/base.py", f"--workdir={workdir}", *flags)
  process = conftest.start(cloud, "run", *ASKED, "--", *command)
  try:
    for step, grace in ((300, 30.0), (700, 0.0)):
      test_session.wait_for(
        process,
        lambda step=step: any(r["step"] >= step for r in records(workdir)),
      )
      cloud.preempt("xl", grace=grace)
    lines = conftest.finish(process)
  finally:
    process.kill()
  found = [r for r in records(workdir) if "loss" in r]
  assert [r["step"] for r in found] == list(range(50, STEPS + 1, 50))
  evaluated = [r["step"] for r in records(workdir) if "split" in r]
  assert evaluated == [STEPS // 2, STEPS]
  sessions = json.loads((workdir / "config.json").read_text())["sessions"]
  assert len(sessions) >= 3
  assert sessions[1]["step"] >= 300  # SIGTERM left time for a checkpoint.
  assert sessions[-1]["step"] >= 600
  with cloud.state() as state:
    assert state["requests"] == {}
  if request.config.getoption("tpu_transcript", False):
    write_page(lines, command, sessions, tmp_path)


def write_page(lines, command, sessions, folder):
  shown = "\n".join(f"    {line}".rstrip() for line in lines)
  shown_fields = [*UPDATES, "data.dir"]
  words = [
    *command[:2],
    *(w for w in command if w[9:].partition("=")[0] in shown_fields),
  ]
  joined = " \\\n      ".join(words)
  text = f"""{START}

Written on {datetime.date.today()}. The command, without the sizes:

    python -m scripts.tpu.main run xl {" ".join(ASKED)} \\
      --interval=0.1 -- \\
      {joined}

It prints, with the log of worker 0:

{shown}

`config.json` has the sessions, each with the step that it started from:

    {json.dumps([session["step"] for session in sessions])}

{END}"""
  for path, name in (
    (f"{folder}/bucket", "BUCKET"),
    (f"{folder}", "FOLDER"),
    (f"{conftest.ROOT}/", ""),
  ):
    text = text.replace(path, name)
  page = pathlib.Path(PAGE)
  before, rest = page.read_text("utf-8").split(START)
  page.write_text(before + text + rest.split(END)[1], "utf-8")
