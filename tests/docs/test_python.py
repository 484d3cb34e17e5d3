"""The page on Python runs from top to bottom, as a user would type it."""

import pathlib
import re

import jax.numpy as jnp
import pytest

from tests import saved_runs

PAGE = pathlib.Path(__file__).parents[2] / "docs/python.md"


@pytest.mark.rest
def test_the_examples_run_as_they_stand(tmp_path, monkeypatch, capsys):
  examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
  assert len(examples) == 11
  assert len([line for line in examples[0].splitlines() if line]) <= 5
  saved_runs.write(tmp_path / "runs/quickstart", kind="subword")
  monkeypatch.chdir(tmp_path)
  names: dict = {}
  for example in examples:
    capsys.readouterr()
    exec(example, names)
    shows = "print(" in example
    assert bool(capsys.readouterr().out) == shows
  length = len(names["found"].tokens)
  assert names["found"].weights.shape == (2, 2, length, length)
  log_probs = names["log_probs"]
  assert log_probs.shape == (2, 1, saved_runs.NUM_SUBWORDS)
  assert jnp.allclose(jnp.exp(log_probs).sum(-1), 1, atol=1e-5)
