"""The site has every page, and its pages of the API name what there is.

`make site` builds it and follows every link; this needs no Sphinx.
"""

import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
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
