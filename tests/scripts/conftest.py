"""A cloud in a folder, with `gcloud` for it on PATH."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.scripts import stand_in

ROOT = pathlib.Path(__file__).parents[2]
GCLOUD = """#!/bin/sh
exec {python} -S -E {program} {folder} "$@"
"""
# What installs leave behind: a Python that runs `program`.
UV = """#!/bin/bash
echo "$*" >> "$HOME/uv"
[ "$1" != venv ] && exit
mkdir -p .venv/bin
cp {folder}/bin/program .venv/bin/python
"""


def pytest_addoption(parser):
  parser.addoption(
    "--tpu-transcript",
    action="store_true",
    help="Write the session of real training into docs/measurements/.",
  )


@pytest.fixture
def cloud(tmp_path):
  """A cloud without requests, and a checkout whose commits can be installed."""
  made = stand_in.Cloud(tmp_path / "cloud")
  made.write()
  commands = tmp_path / "commands"
  text = GCLOUD.format(
    python=sys.executable, program=stand_in.__file__, folder=made.folder
  )
  write_program(commands / "gcloud", text)
  write_program(made.folder / "bin" / "uv", UV.format(folder=made.folder))
  checkout(tmp_path / "checkout")
  yield made
  made.destroy(made_workers(made))


def made_workers(cloud):
  with cloud.state() as state:
    return state["num_workers"]


def write_program(path, text):
  path.parent.mkdir(exist_ok=True)
  path.write_text(text)
  path.chmod(0o755)


def checkout(folder):
  """A repository with one commit."""
  folder.mkdir()
  (folder / "requirements.lock").write_text("")
  author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
  for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "1"]):
    subprocess.run(["git", *words], cwd=folder, check=True)


def start(cloud, *words):
  """Starts `python -m scripts.tpu.main` on the cloud."""
  folder = cloud.folder.parent
  named = any(word in ("cost", "--help") for word in words)
  return subprocess.Popen(
    [
      *(sys.executable, "-m", "scripts.tpu.main"),
      *words[:1],
      *([] if named else ["xl", "--interval=0.1"]),
      *words[1:],
    ],
    cwd=folder / "checkout",
    env=os.environ
    | {
      "PATH": f"{folder / 'commands'}:{os.environ['PATH']}",
      "PYTHONPATH": str(ROOT),
    },
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    # A background job of a shell ignores Ctrl-C, and so would this.
    preexec_fn=_hear_ctrl_c,
  )


def _hear_ctrl_c():
  signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process, *, status=0):
  """What it says, line by line."""
  text, _ = process.communicate(timeout=300)
  assert process.returncode == status, text
  return text.splitlines()
