"""docs/tour.ipynb runs from its first cell to its last."""

import json
import os
import pathlib
import re
import sys

import nbclient
import nbformat
import pytest

from transformer_xl.config import registry

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "tour.ipynb"
STEPS = 40  # Training steps, which take seconds; the notebook has 400.


def outputs(notebook):
  """The outputs of every cell with code."""
  return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def has_errors(found):
  return any(
    output.output_type == "error" or "error: " in output.get("text", "")
    for cell in found
    for output in cell
  )


def test_the_notebook_is_kept_with_its_outputs():
  found = outputs(nbformat.read(NOTEBOOK, 4))
  assert all(found[1:])  # The first cell installs, and only in Colab.
  assert not has_errors(found)
  pictures = [one for cell in found for one in cell if "data" in one]
  assert ["image/png" in one.data for one in pictures] == [True] * 3
  text = json.dumps(found)
  assert len(text) < 200_000
  assert not re.search(r"(^|[\s\"'=])/\w+/", text)  # A path of some machine.


@pytest.mark.slow
@pytest.mark.rest
@pytest.mark.filterwarnings("ignore")  # Jupyter warns about its own parts.
def test_the_notebook_runs(tmp_path, monkeypatch):
  binaries = os.path.dirname(sys.executable)
  for name, value in {
    "PATH": f"{binaries}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "TOUR_FOLDER": str(tmp_path),
    "TOUR_STEPS": str(STEPS),
  }.items():
    monkeypatch.setenv(name, value)
  # A model of the usual size runs longer than it compiles.
  monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")
  notebook = nbformat.read(NOTEBOOK, 4)
  nbclient.NotebookClient(
    notebook,
    kernel_name="python3",
    resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    timeout=600,
  ).execute()
  found = outputs(notebook)
  assert all(found[1:])
  assert not has_errors(found)
  runs = {path.parent.name for path in tmp_path.glob("*/metrics.jsonl")}
  assert len(runs & {*registry.mixers}) == 2
