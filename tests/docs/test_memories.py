"""Rows of docs/measurements/memories.md: each says how it was measured."""

import json
import math
import pathlib
import re
import statistics

import numpy as np
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


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_the_page_has_every_row(path):
  """With the share of right answers, parameters and bytes of the file."""
  page = memory_tables.PAGE.read_text("utf-8")
  result = json.loads(path.read_text("utf-8"))
  counts = result["num_answers"]
  for row in result["rows"]:
    shares = [
      sum(share * count for share, count in zip(seed, counts, strict=True))
      / sum(counts)
      for seed in row["bins_by_seed"]
    ]
    percent = f"{100 * statistics.median(shares):.1f}"
    low, high = (f"{100 * end(shares):.1f}" for end in (min, max))
    solved = sum(share >= 0.9 for share in shares)
    cells = (
      f"| {row['name']} | {row['num_parameters']:,} | {row['state_bytes']:,} | "
    )
    lines = [line for line in page.splitlines() if line.startswith(cells)]
    found = f" | {percent} | {low} to {high} | {solved} of {len(shares)} | "
    assert any(found in line for line in lines), row["name"]


@pytest.mark.parametrize("path", ON_TEXT, ids=lambda path: path.stem)
def test_the_page_has_every_row_on_text(path):
  """With its perplexity of all tokens, and by position."""
  page = memory_tables.PAGE.read_text("utf-8")
  result = json.loads(path.read_text("utf-8"))
  for row in result["rows"]:
    by_position = np.median(row["bins_by_seed"], axis=0)
    numbers = " | ".join(f"{math.exp(nll):.4g}" for nll in by_position)
    cells = f"| {row['name']} | {row['num_parameters']:,} |"
    (line,) = [
      line
      for line in page.splitlines()
      if line.startswith(cells) and line.endswith(f" | {numbers} |")
    ]
    *_, perplexity, seeds, _ = line.removesuffix(f" | {numbers} |").split(" | ")
    assert perplexity == f"{math.exp(row['nll']):.4g}"
    if len(row["bins_by_seed"]) == 1:
      assert seeds == "one seed"
    else:
      ends = [f"{math.exp(row[name]):.4g}" for name in ("low", "high")]
      assert seeds == " to ".join(ends)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_best_learning_rate_is_at_an_edge_without_a_word(path):
  """Rows of two rates, or one, say that nobody has looked beyond them."""
  page = memory_tables.PAGE.read_text("utf-8")
  result = json.loads(path.read_text("utf-8"))
  for row in result["rows"]:
    losses = {
      # Training may have diverged.
      one["learning_rate"]: math.inf if one["nll"] is None else one["nll"]
      for one in row["learning_rates"]
    }
    best = row["learning_rate"]
    inside = losses and min(losses) < best < max(losses)
    most = row["config"]["analysis"].get("max_learning_rates", 0)
    words = ""
    if not losses:
      words = " (no other tried)"
    elif not inside:
      side = "lowest" if best == min(losses) else "highest"
      words = f" ({side} of {len(losses)}" + (
        ")" if most else ", not extended)"
      )
    if losses:
      assert losses[best] == min(losses.values())
    if losses and not inside:
      assert len(losses) >= most  # Else another one should have been tried.
    cells = f"| {row['name']} | {row['num_parameters']:,} |"
    lines = [line for line in page.splitlines() if line.startswith(cells)]
    assert any(f" | {best:g}{words} | " in line for line in lines), row["name"]


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
def test_rows_have_the_operations_that_a_study_counts_today(path):
  for values in memory_tables.read(path)["rows"]:
    row = memory_tables.row_of(values)
    counted = costs.forward_flops_per_token(
      row.config.model, row.config.eval, row.length
    )
    assert values["forward_flops_per_token"] == counted, row.name
