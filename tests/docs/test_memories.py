"""Rows of docs/measurements/memories.md: each says how it was measured.

That the page has them: tests/benchmarks/test_memory_tables.py.
"""

import json
import math
import pathlib
import re

import pytest

from benchmarks import memory_tables
from transformer_xl.analysis import costs
from transformer_xl.config import registry
from transformer_xl.experiments import memory_text

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "measurements" / "memories").glob("*.json"))
TEXTS = {*memory_text.TEXTS}
TASKS = [path for path in FILES if path.stem not in TEXTS]
ON_TEXT = [path for path in FILES if path.stem in TEXTS]
NEEDED = {
  *("name", "config", "card", "commit", "device", "date", "num_parameters"),
  *("state_bytes", "forward_flops_per_token", "seconds_per_token"),
  *("checkpoint_step", "bins_by_seed", "planned_seconds_per_token"),
}


def problems(row, result):
  """What a row lacks that others need to believe and to repeat it."""
  missing = sorted(NEEDED - {name for name in row if row[name] is not None})
  if missing:
    yield f"without {', '.join(missing)}"
    return
  if not re.fullmatch("[0-9a-f]{40}", row["commit"]):
    yield "measured by code that is not committed"
  config = row["config"]
  fields = {
    f"{group}.{name}"
    for group in ("model", "data", "train", "eval")
    for name in config[group]
  }
  if not {"model.layers", "data.name", "train.num_steps"} <= fields:
    yield "with a configuration that is not whole"
  elif config["data"]["name"] != row["card"]["dataset"]:
    yield "with the card of another dataset"
  elif row["card"]["mem_len"] not in config["eval"]["mem_len"]:
    yield "with the card of another memory"
  elif row["checkpoint_step"] != config["train"]["num_steps"]:
    yield "of a model that was not trained to the end"
  lengths = {len(seed) for seed in row["bins_by_seed"]}
  if lengths != {len(result.get("distances") or result["positions"])}:
    yield "without a number in every bin"


def test_there_are_rows():
  assert len(TASKS) >= 2
  assert ON_TEXT


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_say_how_they_were_measured(path):
  result = json.loads(path.read_text("utf-8"))
  assert result["dataset"] == path.stem
  assert result["planned_for"] == "TPU v5 lite"  # As the page says.
  assert path.stem in {*registry.tasks, *TEXTS}
  for row in result["rows"]:
    assert [*problems(row, result)] == [], row["name"]
  names = [row["name"] for row in result["rows"]]
  assert len({*names}) == len(names) > 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_best_learning_rate_is_at_an_edge_without_a_word(path):
  """Tables say a word where a row has an edge."""
  result = json.loads(path.read_text("utf-8"))
  for row in result["rows"]:
    losses = {
      # Training may have diverged.
      one["learning_rate"]: math.inf if one["nll"] is None else one["nll"]
      for one in row["learning_rates"]
    }
    best = row["learning_rate"]
    if not losses:
      assert row["edge"] == ""
      continue
    assert losses[best] == min(losses.values())
    if min(losses) < best < max(losses):
      assert row["edge"] == ""
      continue
    assert row["edge"] == ("lowest" if best == min(losses) else "highest")
    most = row["config"]["analysis"].get("max_learning_rates", 0)
    assert len(losses) >= most  # Else another one should have been tried.


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_rows_whose_rates_were_extended_have_five_seeds_and_their_hours(path):
  result = json.loads(path.read_text("utf-8"))
  for row in result["rows"]:
    if row["config"]["analysis"].get("max_learning_rates", 0):
      assert len(row["bins_by_seed"]) >= 5, row["name"]
      assert row["seconds"] > 0


@pytest.mark.parametrize(
  ("change", "problem"),
  [
    ({"commit": None}, "without commit"),
    ({"card": None, "device": None}, "without card, device"),
    ({"commit": f"{'a' * 40}-dirty"}, "code that is not committed"),
    ({"config": {"model": {}, "data": {}, "train": {}, "eval": {}}}, "whole"),
    ({"card": {"dataset": "other", "mem_len": 8}}, "another dataset"),
    ({"card": {"mem_len": 77}}, "another memory"),
    ({"checkpoint_step": 1}, "not trained to the end"),
    ({"bins_by_seed": [[1.0]]}, "in every bin"),
    ({"planned_seconds_per_token": None}, "without planned_seconds_per_token"),
  ],
)
def test_a_row_that_lacks_something_is_refused(change, problem):
  result = json.loads(FILES[0].read_text("utf-8"))
  row = result["rows"][0]
  if change.get("card"):
    change = {"card": row["card"] | change["card"]}
  (found,) = problems(row | change, result)
  assert problem in found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_have_the_costs_that_a_study_counts_today(path):
  for values in memory_tables.read(path)["rows"]:
    row = memory_tables.row_of(values)
    counted = row.config.model, row.config.eval, row.length
    flops = costs.forward_flops_per_token(*counted)
    assert values["forward_flops_per_token"] == flops, row.name
    assert values["state_bytes"] == costs.state_bytes(*counted), row.name
