"""Plans of the benchmark, and their tables."""

import importlib
import json

from benchmarks import plan_markdown
from benchmarks import plan_table
from transformer_xl.config import load


def line(**updates):
  plan = {
    "fits": True,
    "hbm_bytes_per_chip": 2**30,
    "hbm_capacity_bytes": 2**34,
    "estimated_step_seconds": 0.1,
    "estimated_step_seconds_at_most": 0.2,
    "estimated_mfu": 0.25,
    "estimated_tokens_per_second_per_chip": 1000.0,
    "executed_flops_per_step": 8e9,
    "executed_over_useful": 1.5,
    "collective_bytes": {"all-gather": 2e6, "all-to-all": 1e6},
    "collective_seconds": 0.001,
  }
  return {
    "program": "train",
    "experiment": "ptb",
    "topology": "v5e:2x4",
    "changes": {"train.batch_size": 32},
    "num_chips": 8,
    "published_tokens": 36_000_000,
    "plan": plan,
  } | updates


def test_every_row_is_a_configuration_that_its_slice_divides():
  rows = plan_table.rows()
  assert len(set(rows)) == len(rows)
  first = [plan_table.Row(*row) for row in plan_table.FIRST]
  assert rows[: len(first)] == first
  for row in rows:
    sides = row.topology.partition(":")[2].split("x")
    devices = 1
    for side in sides:
      devices *= int(side)
    values = importlib.import_module(f"experiments.{row.experiment}")
    config = values.get_config()
    changes = plan_table.changes(row, devices)
    config.update_from_flattened_dict(changes)
    load.from_config_dict(config)  # Raises if the mesh does not divide widths.
    assert devices % changes["mesh.fsdp"] == 0
    assert changes["eval.batch_size"] % devices == 0


def test_plans_of_the_installed_versions_are_not_repeated(monkeypatch):
  monkeypatch.setattr(
    plan_table, "versions", lambda: {"jax": "1", "libtpu": "2"}
  )
  monkeypatch.setattr(
    plan_table,
    "stored",
    lambda: [
      line(jax="1", libtpu="2"),
      line(jax="0", libtpu="2", topology="v6e:2x4"),
    ],
  )
  missing = list(plan_table.missing("ptb"))
  assert plan_table.Row("train", "ptb", "v5e:2x4") not in missing
  assert plan_table.Row("train", "ptb", "v6e:2x4") in missing
  assert {row.experiment for row in missing} == {"ptb"}


def test_tables_are_replaced(tmp_path):
  page = tmp_path / "page.md"
  page.write_text(
    f"Before.\n{plan_markdown.BEGIN}old\n{plan_markdown.END}After."
  )
  more = {**line()["plan"], "executed_flops_per_step": 16.16e9}
  lines = [line(), line(topology="v5e:4x4", num_chips=16, plan=more)]
  for _ in range(2):
    plan_markdown.write(str(page), plan_markdown.tables(lines))
  text = page.read_text()
  assert text.startswith("Before.\n")
  assert text.endswith("After.")
  assert "old" not in text
  # 36 M tokens at 1000 per second and chip are 10 chip-hours.
  row = "| 1.00 of 16.00 | 100 | 200 | 1.0 | 1,000 | 0.25 | 1.50 | 1.2 | 10 |"
  assert row in text
  assert (
    text.count("| v5e:4x4 | 1.0 | +1.00% | 3.0 | 2.0 | 0.0 | 0.0 | 1.0 |") == 1
  )


def test_the_summary_has_one_row_for_each_experiment():
  lines = [line(), line(remat="full"), line(topology="v5e:4x4", num_chips=16)]
  text = plan_markdown.summary(lines, {"ptb": "v5e:2x4"})
  row = "| ptb | v5e:2x4 | 32 | 1.00 of 16.00 | 1,000 | 0.25 | 1.2 | 10 |\n"
  assert text.endswith(f"| --- |\n{row}")
  assert text.count("\n") == 3


def test_policies_follow_their_baseline_in_one_table():
  policies = [line(remat=name) for name in ("dots", "full")]
  text = plan_markdown.tables([*policies, line()])
  cells = "| 1.00 of 16.00 | 100 | 1.50 |"
  rows = [f"| ptb | v5e:2x4 | {name} {cells}" for name in ("none", "dots")]
  assert "\n".join(rows) in text
  assert text.count("| ptb | v5e:2x4 | 32 |") == 1


def test_a_plan_that_does_not_fit_is_marked():
  lines = [line(plan={"fits": False, "reason": "too much"})]
  assert "| 32 | does not fit | - |" in plan_markdown.tables(lines)


def test_the_stored_plans_can_be_read():
  for stored in plan_table.stored():
    json.dumps(stored)
    assert stored["experiment"] in plan_table.LANES
