"""The commands that a finished run names would start."""

import importlib
import pathlib
import re

import pytest

from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.experiments import vanilla
from transformer_xl.workdir import closing

ROOT = pathlib.Path(__file__).parents[2]
NAMES = [
  path.stem
  for path in sorted((ROOT / "experiments").glob("*.py"))
  # These need the name of a run, of a text or of another experiment.
  if path.stem
  not in ("__init__", "added_memory", "own_text", "paper", "saved", "vanilla")
]


@pytest.mark.parametrize("name", NAMES)
def test_a_longer_memory_is_offered_where_it_is_allowed(name):
  module = importlib.import_module(f"transformer_xl.experiments.{name}")
  config = load.from_config_dict(module.get_config())
  commands = closing.commands(config.scoring, "run", prompt="The").values()
  lengths = [re.findall(r"eval\.mem_len=(\d+)", text) for text in commands]
  lengths = [int(text) for found in lengths for text in found]
  try:
    load.changed(config, {"eval.mem_len": (2 * max(1, *config.eval.mem_len),)})
  except errors.UserError:
    assert not lengths
  else:
    assert lengths == [2 * max(1, *config.eval.mem_len)]


def test_a_longer_memory_is_not_offered_without_one():
  config = load.from_config_dict(vanilla.get_config("ptb_small"))
  commands = closing.commands(config.scoring, "run", prompt="The").values()
  assert "mem_len" not in " ".join(commands)
