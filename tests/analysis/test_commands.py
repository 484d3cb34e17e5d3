"""The analyses from the command line."""

import importlib
import shlex
import sys

from transformer_xl import main
from transformer_xl.analysis import plotting
from transformer_xl.config import schema
from transformer_xl.config import training_fields

UNCHECKED = ("loop", "plan", "export_run", "check")


def test_every_mode_has_its_module():
  groups = {name.partition(".")[0] for name in schema.all_fields()}
  for mode in main.MODES.values():
    module = importlib.import_module(f"transformer_xl.{mode.module}")
    assert callable(getattr(module, mode.function))
    is_checked_later = module.__name__.rpartition(".")[2] not in UNCHECKED
    assert callable(getattr(module, "check", None)) == is_checked_later
    assert mode.group in {"", *groups}
  alone = {"train", "plan", "export", "check", "paper"}
  assert {*main.MODES} == {*training_fields.FINISHES, *alone}
  assert {"recl", "attention", "eval_speed"} <= {*main.MODES}


def test_a_result_states_a_command_that_a_shell_understands(monkeypatch):
  given = ["--workdir=runs/my run", "--config.eval.mem_len=(0,128)"]
  monkeypatch.setattr(sys, "argv", ["main.py", *given])
  assert shlex.split(plotting.made_by())[-2:] == given
