"""The tables of docs/measurements/memories.md, and rows added to them."""

import copy
import math

import jax
import pytest

from benchmarks import memory_tables
from transformer_xl import errors
from transformer_xl.analysis import costs

FILES = sorted(memory_tables.ROWS.glob("*.json"))
ON_TEXT = memory_tables.ROWS / "wikitext2.json"
HYBRIDS = [
  row["name"]
  for row in memory_tables.read(ON_TEXT)["rows"]
  if len(row["config"]["model"]["layers"]) > 1
]
# The second of two rows of one model, which was trained for longer.
LONGER = HYBRIDS[1]


@pytest.fixture
def stored():
  return memory_tables.read(ON_TEXT)


def names(result):
  return [row["name"] for row in result["rows"]]


def without(result, name):
  """A copy of the result without a row."""
  result = copy.deepcopy(result)
  result["rows"] = [row for row in result["rows"] if row["name"] != name]
  return result


def alone(result, name):
  """The study that has a row of the result and no other; a copy."""
  result = copy.deepcopy(result)
  (row,) = [row for row in result["rows"] if row["name"] == name]
  result["rows"] = [row]
  return result


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_page_has_the_table_of_the_rows(path):
  page = memory_tables.PAGE.read_text("utf-8")
  table = memory_tables.table(memory_tables.read(path))
  picture = f"memories/{path.stem}.png"
  assert memory_tables.with_table(page, picture, table) == page
  other = memory_tables.with_table(page, picture, "| one |\n")
  assert "| one |\n\n![" in other
  assert len(other) < len(page)


def test_a_page_without_the_table_is_refused():
  with pytest.raises(errors.UserError, match=r"has 0 tables above new.png"):
    memory_tables.with_table("# Memories\n", "new.png", "| one |\n")


def test_a_longer_training_has_the_times_of_the_shorter(stored):
  """Its own were measured alone, on another day."""
  fewer = without(stored, LONGER)
  study = alone(stored, LONGER)
  (row,) = study["rows"]
  row["seconds_per_token"] = dict.fromkeys(row["seconds_per_token"], 1.0)
  row["relative_seconds"] = 1.0
  row["at_equal_time"] = 0.0
  row["config"]["data"]["dir"] = "/home/data"
  result = memory_tables.merged(fewer, study)
  assert names(result) == names(stored)
  added = result["rows"][names(stored).index(LONGER)]
  assert added.pop("seeds") == stored["seeds"]
  assert result == stored


def test_the_row_of_another_model_keeps_its_times(stored):
  models = [row["config"]["model"] for row in stored["rows"]]
  last = next(
    row["name"]
    for row in stored["rows"]
    if models.count(row["config"]["model"]) == 1
  )
  fewer = without(stored, last)
  study = alone(stored, last)
  study["rows"][0]["relative_seconds"] = 1.25
  result = memory_tables.merged(fewer, study)
  assert names(result) == [*names(fewer), last]
  assert result["rows"][-1]["relative_seconds"] == 1.25
  # More tokens of the first variant in that time, and a lower loss.
  before = stored["rows"][names(stored).index(last)]
  assert result["rows"][-1]["at_equal_time"] > before["at_equal_time"]


def test_a_row_of_the_same_name_is_replaced(stored):
  study = alone(stored, LONGER)
  study["rows"][0]["nll"] -= 1.0
  result = memory_tables.merged(stored, study)
  assert names(result) == names(stored)
  index = names(stored).index(LONGER)
  changed = result["rows"].pop(index)
  assert changed["seeds"] == [0]
  assert changed["nll"] == pytest.approx(stored["rows"].pop(index)["nll"] - 1)
  assert result["rows"] == stored["rows"]


def test_a_study_of_all_rows_says_what_is_true_of_all(stored):
  study = copy.deepcopy(stored)
  for row in study["rows"]:
    row["seeds"] = row.get("seeds", stored["seeds"])
  study["seeds"] = [0, 1, 2]
  study["config"]["data"]["dir"] = "/home/data"
  study["config"]["train"]["num_steps"] += 1
  study["rows"][-1]["commit"] = "of the study"
  study |= {"made_by": "another command", "device": "TPU v5 lite"}
  del study["planned_for"]
  result = memory_tables.merged(stored, study)
  assert result["seeds"] == [0, 1, 2]
  assert result["timed_with"]["commit"] == "of the study"
  assert result["made_by"] == "another command"
  assert result["device"] == "TPU v5 lite"
  assert "planned_for" not in result
  assert result["config"]["data"]["dir"] == stored["config"]["data"]["dir"]
  assert result["config"]["train"] == study["config"]["train"]

  partly = memory_tables.merged(stored, alone(study, LONGER))
  assert partly["seeds"] == stored["seeds"]
  assert partly["config"] == stored["config"]
  assert partly["timed_with"] == stored["timed_with"]

  for row in study["rows"]:
    row["seeds"] = [7, 8]
  joined = memory_tables.merged(stored, study)
  assert joined["seeds"] == stored["seeds"]
  assert joined["timed_with"] == stored["timed_with"]


def test_a_row_gains_the_seeds_that_are_new(stored):
  fewer = without(stored, LONGER)
  study = alone(stored, LONGER)
  again = copy.deepcopy(study) | {"seeds": [7]}
  (row,) = again["rows"]
  row["config"]["seed"] = 7
  row["nll_by_seed"] = {"128": [row["nll"] + 0.5]}
  row["bins_by_seed"] = [[nll + 0.5 for nll in row["bins_by_seed"][0]]]
  joined = memory_tables.merged(fewer | study, again)
  (both,) = joined["rows"]
  (first,) = study["rows"]
  assert both["seeds"] == [0, 7]
  assert both["nll"] == pytest.approx(first["nll"] + 0.25)
  assert both["high"] - both["low"] == pytest.approx(0.5)
  assert [len(each) for each in both["nll_by_seed"].values()] == [2]
  assert both["bins_by_seed"] == [*first["bins_by_seed"], *row["bins_by_seed"]]
  assert both["seconds_per_token"] == first["seconds_per_token"]
  ends = [f"{math.exp(both[name]):.4g}" for name in ("low", "high")]
  assert f"| {' to '.join(ends)} | 1 |" in memory_tables.table(joined)
  memory_tables.draw(joined)
  # The same seed again is the same row, measured anew.
  (replaced,) = memory_tables.merged(joined, again)["rows"]
  assert replaced["seeds"] == [7]


def test_another_configuration_under_the_name_of_a_row_is_refused(stored):
  fewer = without(stored, LONGER)
  study = alone(stored, LONGER)
  other = copy.deepcopy(study) | {"seeds": [7]}
  other["rows"][0]["config"]["train"]["num_steps"] = 15_000
  with pytest.raises(errors.UserError, match=r"with another configuration"):
    memory_tables.merged(fewer | study, other)


def test_a_study_of_another_text_is_refused(stored):
  study = stored | {"positions": [[1, 15]]}
  with pytest.raises(errors.UserError, match=r"other positions than wikitext2"):
    memory_tables.merged(stored, study)
  with pytest.raises(errors.UserError, match=r"other split than wikitext2"):
    memory_tables.merged(stored, stored | {"split": "valid"})


def test_only_what_has_no_planned_time_is_planned(stored, monkeypatch):
  for row in stored["rows"]:
    row["planned_seconds_per_token"] = row["seconds_per_token"]
  planned = []

  def planned_seconds(name, config, length, chip):
    del config, length, chip
    planned.append(name)
    return costs.Seconds(1.0, 2.0, 3.0)

  monkeypatch.setattr(costs, "planned_seconds", planned_seconds)
  stored["rows"][1]["planned_seconds_per_token"] = None
  rest = [row["planned_seconds_per_token"] for row in stored["rows"][2:]]
  memory_tables.plan(stored, jax.devices()[0])
  assert planned == [stored["rows"][1]["name"]]
  planned_row = stored["rows"][1]["planned_seconds_per_token"]
  assert planned_row == {"training": 1, "evaluation": 2, "generation": 3}
  assert rest == [
    row["planned_seconds_per_token"] for row in stored["rows"][2:]
  ]
  assert stored["planned_for"] == jax.devices()[0].device_kind


def test_times_are_measured_once_for_rows_that_take_as_long(
  stored, monkeypatch
):
  read = set()

  def seconds_per_token(timed):
    timed = list(timed)
    read.update(each.scoring.data.dir for each in timed)
    # The first takes a second, the next two, and so on.
    return {
      each: costs.Seconds(1.0 + index, 0.0, 0.0)
      for index, each in enumerate(timed)
    }

  monkeypatch.setattr(costs, "seconds_per_token", seconds_per_token)
  memory_tables.time(stored, "texts")
  assert read == {"texts"}
  rows = dict(zip(names(stored), stored["rows"], strict=True))
  first = rows["transformer_xl"]
  assert first["relative_seconds"] == 1.0
  longer = rows["transformer_xl_16000"]
  assert longer["seconds_per_token"] == first["seconds_per_token"]
  assert rows[LONGER]["relative_seconds"] > 1
  assert rows[LONGER]["at_equal_time"] is None  # Longer than all of the first.
  assert stored["timed_with"]["date"]
