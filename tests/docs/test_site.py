"""The site has every page, and its pages of the API name what there is.

`make site` builds it and follows every link; this needs no Sphinx.
"""

import importlib
import pathlib
import re
import sys

import pytest

from transformer_xl.config import schema

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs/site"))
API = sorted((ROOT / "docs/api").glob("*.md"))


def test_the_navigation_has_every_page():
  index = (ROOT / "index.md").read_text("utf-8")
  named = re.findall(r"^((?:docs|deploy)/[\w/]+)$", index, re.MULTILINE)
  pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
  pages.append(ROOT / "deploy/README.md")
  there = [str(page.relative_to(ROOT).with_suffix("")) for page in pages]
  assert sorted(named) == sorted(there)


@pytest.mark.parametrize("page", API, ids=[page.stem for page in API])
def test_what_the_api_documents_exists(page):
  names = re.findall(r"autoapi\w+:: ([\w.]+)", page.read_text("utf-8"))
  assert names
  for name in names:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute), name


def test_the_tables_of_fields_have_every_field_with_its_default():
  tables = importlib.import_module("fields").tables()
  rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", tables, re.MULTILINE)
  declared = schema.all_fields()
  assert sorted(name for name, _ in rows) == sorted(
    path.rpartition(".")[2] for path in declared
  )
  train = tables[tables.index("## config.train\n") :]
  batch_size = declared["train.batch_size"]
  assert (
    f"| `batch_size` | `{batch_size.default}` | at least 1 | "
    f"{batch_size.remark} |"
  ) in train
  assert "| `decay_steps` | that of `num_steps` | at least 1 | " in train
  assert re.search(r"\| `encoding` \| `'relative'` \| `\w+`, `", tables)
  cells = {line.replace("\\|", "").count("|") for line in tables.splitlines()}
  assert cells == {0, 5}


def test_questions_are_one_short_page_and_each_has_an_answer():
  lines = (ROOT / "docs/questions.md").read_text("utf-8").splitlines()
  assert len(lines) <= 80
  rows = [line.split(" | ") for line in lines if line.startswith("| ")]
  questions = [row for row in rows if row[0] != "| question"]
  assert len(questions) > 30
  for question, answer in questions:
    assert "](" in answer or "`" in answer or question == "| Windows, macOS"
