"""What a release states in several files agrees."""

import pathlib
import re
import tomllib

import yaml

ROOT = pathlib.Path(__file__).parents[2]


def test_the_version_is_the_newest_of_the_changes():
  project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
  version = project["project"]["version"]
  citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
  changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
  newest = re.search(r"^## (\S+) \((.*)\)$", changes, re.MULTILINE)
  assert newest.group(1) == version == citation["version"]
  date = citation["date-released"]
  assert newest.group(2) == f"{date.day} {date:%B %Y}"


def test_workflows_and_hooks_call_what_there_is():
  makefile = (ROOT / "Makefile").read_text("utf-8")
  targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
  workflow = yaml.safe_load(
    (ROOT / ".github/workflows/tests.yml").read_text("utf-8")
  )
  called = set()
  for job in workflow["jobs"].values():
    matrix = job.get("strategy", {}).get("matrix", {})
    for step in job["steps"]:
      target = step.get("run", "").removeprefix("make ")
      if target == "${{ matrix.target }}":
        called |= set(matrix["target"])
      elif target:
        called.add(target)
  assert called
  assert called <= targets
  # Continuous integration tests nothing that the workflow does not.
  ci = (ROOT / ".ci/run").read_text("utf-8")
  in_ci = set(re.findall(r"^run make ([\w-]+)$", ci, re.MULTILINE))
  assert in_ci
  assert in_ci <= called


def test_hooks_are_those_of_make_check():
  hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
  makefile = (ROOT / "Makefile").read_text("utf-8")
  check = makefile.partition("\ncheck:")[2].partition("\n\n")[0]
  for hook in hooks["repos"][0]["hooks"]:
    program = hook["entry"].removeprefix(".venv/bin/").split(" --")[0]
    assert f"$(BIN)/{program}" in check
