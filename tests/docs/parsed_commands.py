"""Parses command lines as their modules do, and stops before any work.

python -m tests.parsed_commands < COMMANDS > RESULTS, both JSON: a command is
its words after `python -m`; its result has `error` (empty if it would start)
and `flags`, the names that its module knows. Each runs in a fork of one process
that has imported everything but the modules with flags, whose names clash;
those of `main`, which are most, run last and find it imported.
"""

import argparse
import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from typing import Any, NoReturn

from absl import app
from absl import flags

from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import rules

# What the modules with flags take longest to import.
LIBRARIES = (
  "transformer_xl.data_prep.describe",
  "transformer_xl.data_prep.preparation",
  "transformer_xl.importers.export_run",
  "transformer_xl.importers.import_run",
  "transformer_xl.planning.plan",
  "transformer_xl.training.loop",
)


MAIN = "transformer_xl.main"


def parse(commands: list[list[str]]) -> list[dict[str, Any]]:
  """What came of command lines."""
  for name in LIBRARIES:
    importlib.import_module(name)
  load.default()  # Imports what registers mixers, encodings and so on.
  others = [None if words[0] == MAIN else parsed(words) for words in commands]
  importlib.import_module(MAIN)
  return [
    other or parsed(words)
    for words, other in zip(commands, others, strict=True)
  ]


def parsed(words: list[str]) -> dict[str, Any]:
  """What came of one command line."""
  with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
    child = os.fork()
    if child == 0:
      os.dup2(out.fileno(), sys.stdout.fileno())
      os.dup2(err.fileno(), sys.stderr.fileno())
      _become(words)
    _, status = os.waitpid(child, 0)
    out.seek(0)
    err.seek(0)
    text = err.read().decode()
    names = out.read().decode().split()
  return {"error": text or "no flags" if status else "", "flags": names}


def _become(words: list[str]) -> NoReturn:
  sys.argv = [words[0].replace(".", "/") + ".py", *words[1:]]
  app.run = _parse
  argparse.ArgumentParser.parse_args = _parse_argparse  # type: ignore
  status = 1  # A module that parses nothing.
  try:
    if words[0] in sys.modules:
      sys.modules[words[0]].run()
    runpy.run_module(words[0], run_name="__main__", alter_sys=False)
  except SystemExit as error:
    status = int(error.code or 0)
  except (errors.UserError, flags.Error) as error:
    print(error, file=sys.stderr)
  except BaseException:
    traceback.print_exc()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


def _parse(main, argv=None, flags_parser=flags.FLAGS) -> NoReturn:
  """Instead of `app.run`: flags, and the configuration where there is one."""
  del main, argv
  flags_parser(sys.argv)
  if "config" in flags.FLAGS:
    config = load.from_config_dict(flags.FLAGS["config"].value)
    rules.check_command(config, flags.FLAGS["mode"].value)
  print(*flags.FLAGS)
  sys.exit(0)


def _parse_argparse(
  parser: argparse.ArgumentParser, words: list[str] | None = None
) -> NoReturn:
  parser.parse_known_args(words)[1] and parser.error("unknown arguments")
  parsers = [parser]
  for action in parser._actions:
    if isinstance(action, argparse._SubParsersAction):
      parsers += action.choices.values()
  for each in parsers:
    print(*(name.lstrip("-") for name in each._option_string_actions))
  sys.exit(0)


if __name__ == "__main__":
  print(json.dumps(parse(json.load(sys.stdin))))
