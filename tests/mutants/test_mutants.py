"""The harness tells which mutants survive, where that is known."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.mutants import mutations
from tests.mutants import table

ROOT = pathlib.Path(__file__).parents[2]
PLANTED = """
def clip(value, limit: int | None):
  '''At most 3, say.'''
  assert limit is None or limit > 0, 7
  if limit is not None and value > limit:
    return limit
  while value == 5:
    value = value + 1
  return value
"""
TEST = """
import planted

def test_clip():
  assert planted.clip(3, 2) == 2
  assert planted.clip(5, None) == 6

def test_nothing():
  raise AssertionError("This one was not chosen.")
"""
TRY_ALL = """
import json, pathlib
from tests.mutants import mutations, trial

path = pathlib.Path("planted.py").resolve()
tests = ["test_planted.py::test_clip"]
result = {"none": trial.run(tests).status}
for mutant in mutations.mutants(path.read_text()):
  outcome = trial.run(tests, replaced=path, source=mutant.source, seconds=2)
  result[mutant.name] = outcome.status
print(json.dumps(result))
"""


@pytest.mark.rest
def test_survivors_are_what_no_test_sees(tmp_path):
  (tmp_path / "planted.py").write_text(PLANTED)
  (tmp_path / "test_planted.py").write_text(TEST)
  done = subprocess.run(
    [sys.executable, "-c", TRY_ALL],
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    check=True,
  )
  result = json.loads(done.stdout)
  assert result.pop("none") == "passed"
  # A value at the limit is the limit on both sides; no test tries another.
  assert [name for name in result if result[name] == "passed"] == [
    "5:28  value > limit  ->  value >= limit",
  ]
  # Adding nothing never ends.
  assert [name for name in result if result[name] == "timeout"] == [
    "8:21  1  ->  0",
  ]
  assert len(result) == 9
  assert (tmp_path / "planted.py").read_text() == PLANTED


@pytest.mark.parametrize(
  ("before", "after"),
  [
    ("a < b", {"a <= b"}),
    ("a and b", {"a or b"}),
    ("not a", {"a"}),
    ("-1", {"0", "-2"}),
    ("2", {"1", "3"}),
    ("jnp.where(a, b, c)", {"jnp.where(a, c, b)"}),
    ("jnp.minimum(a, b)", {"jnp.maximum(a, b)"}),
    ("jax.lax.stop_gradient(a)", {"a"}),
    ("a if b else c", {"not b"}),
    ("logging.info(1)", set()),
    ("'text'", set()),
  ],
)
def test_each_mistake_is_made(before, after):
  found = mutations.mutants(f"def f():\n  return (\n{before}\n)\n")
  assert {mutant.change.partition("  ->  ")[2] for mutant in found} == after
  assert all(mutant.line == 3 for mutant in found)


def test_equal_changes_in_a_line_have_names_of_their_own():
  found = mutations.mutants("def f():\n  return g(1, 1)\n")
  assert {
    mutant.name: mutant.source.split("return ")[1] for mutant in found
  } == {
    "2:12  1  ->  0": "g((0), 1)\n",
    "2:12  1  ->  2": "g((2), 1)\n",
    "2:15  1  ->  0": "g(1, (0))\n",
    "2:15  1  ->  2": "g(1, (2))\n",
  }


def test_types_and_messages_stay():
  source = """
Number = int | None
@functools.lru_cache(maxsize=8)
def f(a: int | None = None) -> "list[1]":
  '''1 + 1'''
  assert a != 1
  if a:
    raise ValueError(f"{a + 1}")
"""
  changes = [mutant.change for mutant in mutations.mutants(source)]
  assert changes == ["a  ->  not a"]


def test_modules_and_tests_of_the_table_exist():
  for module, names in table.TESTS.items():
    assert (ROOT / "transformer_xl" / f"{module}.py").is_file()
    for name in names:
      path, _, test = name.partition("::")
      assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text("utf-8")
