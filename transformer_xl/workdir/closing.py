"""What a command says last: what to type next, and where its files are."""

import os
import shlex
from collections.abc import Mapping

import jax
from absl import logging

from transformer_xl import command_line
from transformer_xl import storage
from transformer_xl.config import schema

OWN_TEXT = "--dataset=text --source=YOUR_TEXT --data_dir=data --name=mine"


def changes(workdir: str) -> dict[str, int]:
  """Returns when the files that people look at were changed, in nanoseconds."""
  folder = storage.local(workdir)
  results = os.path.join(folder, "results")
  names = ["report.html", "metrics.jsonl", "checkpoints"]
  if os.path.isdir(results):
    names += [f"results/{name}" for name in sorted(os.listdir(results))]
  paths = {name: os.path.join(folder, name) for name in names}
  return {
    name: os.stat(path).st_mtime_ns
    for name, path in paths.items()
    if os.path.exists(path)
  }


def log_files(workdir: str, before: dict[str, int]) -> None:
  """Says where everything is, and what has changed since `before`.

  Only the first process does.
  """
  if jax.process_index() != 0:
    return
  now = changes(workdir)
  written = [name for name in now if now[name] != before.get(name)]
  names = f": {', '.join(written)}" if written else ""
  logging.info("Everything is in %s%s.", workdir, names)
  if "report.html" in written:
    page = os.path.join(workdir, "report.html")
    logging.info("Open %s in a browser.", page)


def print_next(commands: Mapping[str, str]) -> None:
  """Prints what to type after training; only in the first process."""
  if jax.process_index() == 0:
    print("\nNext:")
    for purpose, command in commands.items():
      print(f"  {purpose}:\n    {command}")
    print(flush=True)


def commands(
  scoring: schema.Scoring, workdir: str, *, prompt: str
) -> dict[str, str]:
  """Commands for a trained model, by what they do.

  They begin as this program was started: with a console script, or with Python.

  Args:
    scoring: how the model is evaluated.
    workdir: of the run.
    prompt: what it is to continue.
  """
  program = command_line.words()
  extensions = command_line.given("extensions")
  saved = shlex.join([*extensions, f"--config=saved:{workdir}"])
  result = {}
  mem_len = max(scoring.eval.mem_len)
  if scoring.model.has_attention and mem_len:
    longer = 2 * mem_len
    result["evaluate with a longer memory"] = (
      f"{program} --mode=eval {saved} --config.eval.mem_len={longer}"
    )
  quoted = shlex.quote(prompt)
  result["continue a prompt"] = (
    f"{program} --mode=generate {saved} --config.generate.prompt={quoted}"
  )
  if scoring.data.name == "python_stdlib":
    prepare = f"{program}-data"
    if " -m " in program:
      prepare = program.replace(
        "-m transformer_xl", "-m transformer_xl.data_prep"
      )
    result["prepare your own text, to train on it"] = f"{prepare} {OWN_TEXT}"
  return result
