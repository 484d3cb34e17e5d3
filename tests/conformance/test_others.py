"""The kit on layers of other libraries, by the adapters in examples/."""

import pathlib
import runpy
import sys

import pytest

from transformer_xl.conformance import kit
from transformer_xl.conformance.checks import gradients
from transformer_xl.conformance.checks import resets
from transformer_xl.conformance.checks import state

FOLDER = pathlib.Path(__file__).parents[2] / "examples/conformance"
ADAPTERS = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_an_adapter_has_at_most_40_lines(path):
  lines = path.read_text("utf-8").splitlines()
  assert len([line for line in lines if line]) <= 40


def test_the_lstm_of_flax_passes_what_applies_to_it(capsys):
  module = runpy.run_path(str(FOLDER / "flax_lstm.py"))
  rows = kit.show(module["Lstm"](), "flax", "nn.RNN")
  title, *lines = capsys.readouterr().out.splitlines()
  assert title == f"flax {sys.modules['flax'].__version__}: nn.RNN"
  assert lines == [kit.told(row) for row in rows]
  outcomes = {row.name: row.outcome for row in rows}
  assert kit.FAILED not in outcomes.values()
  for check in (
    resets.a_reset_of_a_lane_is_a_fresh_start,
    state.padding_is_not_remembered,
    gradients.the_gradient_through_memory_is_that_of_one_pass,
  ):
    assert outcomes[check.name] == kit.PASSED
