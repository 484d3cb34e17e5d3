"""What programs read first: AGENTS.md, and the site's llms.txt."""

import importlib
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs/site"))


def test_agents_get_one_screen_whose_files_exist():
  text = (ROOT / "AGENTS.md").read_text("utf-8")
  assert len(text.splitlines()) <= 60
  named = re.findall(r"`([\w./]+(?:/|\.md|\.py))`", text)
  assert len(named) > 15
  for name in named:
    assert any((ROOT / base / name).exists() for base in ("", "transformer_xl"))
  targets = (ROOT / "Makefile").read_text("utf-8")
  for target in re.findall(r"^    make ([\w-]+)", text, re.MULTILINE):
    assert f"\n{target}:" in targets


def test_llms_txt_has_every_page_with_a_sentence():
  lines = importlib.import_module("llms").text().splitlines()
  assert lines[0].startswith("# ")
  assert lines[2].startswith("> ")
  entries = [line for line in lines if line.startswith("- ")]
  found = []
  for entry in entries:
    title, target, summary = re.fullmatch(
      r"- \[(.+?)\]\((.+?)\.html\): (.+)", entry
    ).groups()
    assert title
    assert re.match(r"\w.{9,}", summary), entry
    assert "](" not in summary
    found.append(target)
  pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
  there = {str(page.relative_to(ROOT).with_suffix("")) for page in pages}
  assert there <= {*found}


def test_the_lock_pins_what_both_versions_of_cuda_need():
  project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
  extras = project["project"]["optional-dependencies"]
  pins = (ROOT / "requirements.lock").read_text("utf-8")
  makefile = (ROOT / "Makefile").read_text("utf-8")
  for extra, package in (
    ("cuda", "jax-cuda12-plugin"),
    ("cuda13", "jax-cuda13-plugin"),
  ):
    assert extra in extras
    assert f"--extra {extra} " in makefile
    assert f"\n{package}==" in pins
