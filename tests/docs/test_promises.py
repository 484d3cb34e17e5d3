"""Every promise of the pages has a test: the table is `promises.txt`."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = (
  *("README.md", "SECURITY.md", "CONTRIBUTING.md"),
  *(
    f"docs/{path.name}"
    for path in sorted((ROOT / "docs").glob("*.md"))
    if path.name != "specification.md"
  ),
)
# Words of sentences about bad input, faults and equality.
SOUNDS = re.compile(
  r"\brefuse[sd]?\b|\bone line\b|bit for bit|\bnever\b|\ban error\b"
  r"|\ba warning\b|\bis rejected\b|\bnothing is (lost|deleted|written)\b",
  re.IGNORECASE,
)
NONE = "(no promise)"


def _read() -> dict[str, dict[str, list[str]]]:
  """The tests of each quoted part of a sentence, by page."""
  table: dict[str, dict[str, list[str]]] = {}
  text = (pathlib.Path(__file__).parent / "promises.txt").read_text("utf-8")
  _, _, lines = text.partition("\n\n")
  for line in lines.partition("\n\n")[2].splitlines():
    indent = len(line) - len(line.lstrip())
    if indent == 0:
      page = table.setdefault(line, {})
    elif indent == 2:
      tests = page.setdefault(line.strip(), [])
    else:
      tests.append(line.strip())
  return table


TABLE = _read()


@functools.cache
def sentences(page: str) -> tuple[str, ...]:
  """The sentences and rows of a page, without its code."""
  text = (ROOT / page).read_text("utf-8")
  text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
  text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
  blocks = re.split(r"\n\s*\n|\n(?=[-|#]|\d+\. )", text)
  return tuple(
    sentence
    for block in blocks
    for sentence in re.split(
      r"(?<=[.!?:;]) (?=[A-Z`\[*])", " ".join(block.split())
    )
    if sentence
  )


@functools.cache
def functions(path: str) -> frozenset[str]:
  """The names of the functions in a file of tests."""
  tree = ast.parse((ROOT / path).read_text("utf-8"))
  return frozenset(
    node.name for node in tree.body if isinstance(node, ast.FunctionDef)
  )


@pytest.mark.parametrize("page", TABLE)
def test_what_the_table_quotes_is_on_its_page(page):
  assert page in PAGES
  for quoted in TABLE[page]:
    assert any(quoted in sentence for sentence in sentences(page)), quoted


@pytest.mark.parametrize("page", TABLE)
def test_promises_have_tests(page):
  for quoted, tests in TABLE[page].items():
    assert tests, quoted
    for test in tests:
      path, _, name = test.partition("::")
      if test != NONE:
        assert name.startswith("test_"), test
        assert name in functions(path), test


@pytest.mark.parametrize("page", PAGES)
def test_sentences_that_promise_are_in_the_table(page):
  missing = [
    sentence
    for sentence in sentences(page)
    if SOUNDS.search(sentence)
    and not any(quoted in sentence for quoted in TABLE.get(page, ()))
  ]
  assert not missing, f"not in promises.txt: {missing}"
