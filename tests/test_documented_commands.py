"""Commands on the pages name modules, files, fields and targets that exist."""

import importlib.util
import pathlib
import re

import pytest

from experiments import base

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
  *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
  *sorted((ROOT / "docs").glob("*.md")),
]


def lines(page):
  """Indented and fenced lines, with continued ones joined."""
  text = page.read_text("utf-8").replace("\\\n", " ")
  return [line.strip() for line in text.splitlines()]


def found(pattern, page):
  return [name for line in lines(page) for name in re.findall(pattern, line)]


def is_field(name):
  config = base.get_config()
  for part in name.split("."):
    if part not in config:
      return False
    config = config[part]
  return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_what_exists(page):
  for module in found(r"python -m ([\w.]+\w)", page):
    assert importlib.util.find_spec(module), module
  for path in found(r"--config=(experiments/\w+\.py)", page):
    assert (ROOT / path).exists(), path
  for name in found(r"--config\.([a-z][\w.]*\w)=", page):
    assert is_field(name), name
  makefile = (ROOT / "Makefile").read_text("utf-8")
  for target in found(r"`make ([a-z-]+)", page) + found(
    r"^make ([a-z-]+)", page
  ):
    assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_pages_have_commands():
  assert sum(len(found(r"python -m ([\w.]+)", page)) for page in PAGES) > 20
  assert not is_field("train.batch_sise")
