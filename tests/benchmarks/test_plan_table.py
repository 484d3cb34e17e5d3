"""Plans of the benchmark, and their tables."""

import importlib
import json

import pytest

from benchmarks import plan_markdown
from benchmarks import plan_table
from transformer_xl.config import load
from transformer_xl.config import registry


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
    "date": "2026-11-21",
    "is_current": True,
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
    name, _, argument = row.experiment.partition(":")
    module = importlib.import_module(f"transformer_xl.experiments.{name}")
    config = module.get_config(*filter(None, [argument]))
    changes = plan_table.changes(row, devices)
    config.update_from_flattened_dict(changes)
    load.from_config_dict(config)  # Raises if the mesh does not divide widths.
    assert devices % changes["mesh.fsdp"] == 0
    assert changes["eval.batch_size"] % devices == 0


BEST = "enwik8_large"  # It has a row on every kind of chip.


@pytest.fixture
def plans(tmp_path, monkeypatch):
  """The file of plans, with three of today's code and one of older code."""
  path = tmp_path / "plans.jsonl"
  monkeypatch.setattr(plan_table, "PLANS", path)
  installed = {"jax": "1", "libtpu": "2"}
  monkeypatch.setattr(plan_table, "versions", lambda: installed)
  code = plan_table.code_hash(BEST)
  lines = [
    line(experiment=BEST, **installed, code=code),
    line(experiment=BEST, **installed, code=code, topology="v5p:2x2x2"),
    line(experiment=BEST, jax="0", libtpu="2", code=code, topology="v6e:2x4"),
    line(experiment=BEST, **installed, code="1234", topology="v5e:16x16"),
  ]
  for each in lines:
    del each["is_current"]
  path.write_text("".join(json.dumps(each) + "\n" for each in lines))
  return path


def test_plans_of_older_code_or_other_versions_are_made_again(plans):
  missing = list(plan_table.missing(BEST))
  assert plan_table.Row("train", BEST, "v5e:2x4") not in missing
  assert plan_table.Row("train", BEST, "v5p:2x2x2") not in missing
  assert plan_table.Row("train", BEST, "v6e:2x4") in missing
  assert plan_table.Row("train", BEST, "v5e:16x16") in missing
  assert {row.experiment for row in missing} == {BEST}
  marks = {each["topology"]: each["is_current"] for each in plan_table.stored()}
  assert marks == {
    "v5e:2x4": True,
    "v5p:2x2x2": True,
    "v6e:2x4": True,
    "v5e:16x16": False,
  }


def test_a_new_plan_replaces_the_older_one_of_its_row(plans):
  new = json.loads(plans.read_text().splitlines()[3])
  new["code"] = plan_table.code_hash(BEST)
  plan_table.store(new)
  lines = [json.loads(each) for each in plans.read_text().splitlines()]
  assert len(lines) == 4
  assert lines[-1] == new
  assert plan_table.Row("train", BEST, "v5e:16x16") not in [
    *plan_table.missing(BEST)
  ]


def test_a_program_that_has_not_changed_keeps_its_plan(plans, monkeypatch):
  lines = [json.loads(each) for each in plans.read_text().splitlines()]
  for each in lines:
    each["program_hash"] = "5678"
  plans.write_text("".join(json.dumps(each) + "\n" for each in lines))
  new = {"plan": "new"}
  monkeypatch.setattr(plan_table, "planned", lambda row: new)
  for index, (program, expected) in enumerate(
    [
      ("5678", lines[0]),
      ("5678", lines[1]),
      ("5678", new),  # Planned with another version of jax.
      ("5678", lines[3]),  # Planned by older code.
      ("9", new),
    ]
  ):
    monkeypatch.setattr(plan_table, "program_hash", lambda _, p=program: p)
    row = plan_table.row_of(lines[index % len(lines)])
    assert plan_table.line_for(row) == expected | {
      "code": plan_table.code_hash(BEST),
      "program_hash": program,
    }


def test_code_is_that_of_the_model_and_of_the_experiment(tmp_path, monkeypatch):
  monkeypatch.setattr(plan_table, "ROOT", tmp_path)
  source = tmp_path / "transformer_xl" / "model" / "kernels" / "attention.py"
  source.parent.mkdir(parents=True)
  hashes = []
  for experiment, text in (("ptb", "1"), ("ptb", "2"), ("enwik8_base", "2")):
    source.write_text(text)
    hashes.append(plan_table.code_hash.__wrapped__(experiment))
  assert len(set(hashes)) == 3


def test_mixers_that_a_model_lacks_are_no_code_of_it(tmp_path, monkeypatch):
  names = [*registry.mixers, "mixer", "recurrent"]
  files = [f"transformer_xl/model/mixers/{name}.py" for name in names]
  for file in files:
    assert (plan_table.ROOT / file).exists()
  monkeypatch.setattr(plan_table, "ROOT", tmp_path)
  (tmp_path / files[0]).parent.mkdir(parents=True)
  before = plan_table.code_hash.__wrapped__("ptb")
  changes = set()
  for name, file in zip(names, files, strict=True):
    (tmp_path / file).write_text("1")
    if plan_table.code_hash.__wrapped__("ptb") != before:
      changes.add(name)
    (tmp_path / file).unlink()
  assert changes == {"attention", "mixer", "recurrent"}


def test_prose_is_no_code(tmp_path, monkeypatch):
  monkeypatch.setattr(plan_table, "ROOT", tmp_path)
  source = tmp_path / "transformer_xl" / "mesh.py"
  source.parent.mkdir()
  plain = 'def one():\n  return "# 1"\n'
  told = (
    '"""Says one."""\n\n# Why.\ndef one():\n  """One\n\n  text."""\n'
    '  return "# 1"  # As text.\n'
  )
  hashes = []
  for text in (plain, told, plain.replace("# 1", "# 2")):
    source.write_text(text)
    hashes.append(plan_table.code_hash.__wrapped__("ptb"))
  assert hashes[0] == hashes[1]
  assert hashes[1] != hashes[2]


def test_the_page_says_which_plans_are_of_older_code():
  page = plan_table.PAGE.read_text("utf-8")
  _, _, rest = page.partition(plan_markdown.BEGIN)
  written, _, _ = rest.partition(plan_markdown.END)
  text = plan_markdown.tables(plan_table.stored())
  assert written.strip() == text.strip(), (
    "docs/measurements/tpu.md is not what plans.jsonl and the code give: run "
    "`python -m benchmarks.plan_table --only_mark`"
  )


def test_tables_are_replaced(tmp_path):
  page = tmp_path / "page.md"
  page.write_text(
    f"Before.\n{plan_markdown.BEGIN}old\n{plan_markdown.END}After."
  )
  lines = [
    line(),
    line(topology="v5e:4x4", num_chips=16, is_current=False),
    line(program="eval", plan=line()["plan"] | {"mem_len": 64})
    | {"changes": {"eval.batch_size": 8}},
  ]
  for _ in range(2):
    plan_markdown.write(page, plan_markdown.tables(lines))
  text = page.read_text()
  assert text.startswith("Before.\n")
  assert text.endswith("After.")
  assert "old\n" not in text
  # 36 M tokens at 1000 per second and chip are 10 chip-hours.
  row = "| 1.00 of 16.00 | 100 | 200 | 1.0 | 1,000 | 0.25 | 1.50 | 1.2 | 10 |"
  assert f"| ptb | v5e:2x4 | 32 {row} 2026-11-21 |\n" in text
  assert text.count(" | 2026-11-21, older code |\n") == 1
  assert (
    "| ptb | v5e:2x4 | 64 | 8 | 1.00 of 16.00 | 1,000 | 0.25 | 2026-11-21 |\n"
    in text
  )


def test_policies_follow_their_baseline_in_one_table():
  policies = [line(remat=name) for name in ("dots", "full")]
  text = plan_markdown.tables([*policies, line()])
  cells = "| 1.00 of 16.00 | 100 | 1.50 | 2026-11-21 |"
  rows = [f"| ptb | v5e:2x4 | {name} {cells}" for name in ("none", "dots")]
  assert "\n".join(rows) in text
  assert text.count("| ptb | v5e:2x4 | 32 |") == 1


def test_a_plan_that_does_not_fit_is_marked():
  lines = [line(plan={"fits": False, "reason": "too much"})]
  assert "| 32 | does not fit | - |" in plan_markdown.tables(lines)
