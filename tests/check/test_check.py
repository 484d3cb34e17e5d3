"""The result of a check: its file, its verdict, and how it ends."""

import json
import math

import jax
import numpy as np
import pytest

from tests import own_process
from transformer_xl import errors
from transformer_xl.check import check
from transformer_xl.check import environment
from transformer_xl.check import finding
from transformer_xl.check import memory
from transformer_xl.check import numbers
from transformer_xl.check import small_run
from transformer_xl.check import speed
from transformer_xl.config import load

RIGHT = finding.Finding("attention", "xla", 3.0, 40.0, "key")
WRONG = finding.Finding("ring", "pallas", 41.0, 40.0, "values")
LOST = finding.Finding("softmax", "float32", float("nan"), 40.0, "losses")
UNKNOWN = finding.Finding("resume", "not compared: they differ", 68, math.inf)


def run(monkeypatch, folder, findings):
  """Runs a check that finds this, and returns its file."""
  monkeypatch.setattr(numbers, "run", lambda *_, **__: findings)
  monkeypatch.setattr(memory, "run", lambda *_, **__: [])
  monkeypatch.setattr(small_run, "run", lambda *_, **__: [RIGHT])
  monkeypatch.setattr(speed, "run", lambda **_: [])
  config = load.from_config_dict(load.default())
  try:
    check.run(config, str(folder))
  finally:
    text = (folder / "results" / "check.json").read_text()
  return json.loads(text)


def test_a_right_machine_has_a_verdict_and_a_file(monkeypatch, tmp_path):
  result = run(monkeypatch, tmp_path, [RIGHT])
  assert result["passed"]
  assert result["verdict"] == "1 x cpu computed all 2 cases correctly."
  assert result["findings"][0]["case"] == "xla"
  assert result["environment"]["versions"]["jax"] == jax.__version__
  assert result["environment"]["num_devices"] == jax.device_count()


def test_what_was_not_compared_is_said(monkeypatch, tmp_path, caplog):
  result = run(monkeypatch, tmp_path, [RIGHT, UNKNOWN])
  assert result["passed"]
  assert result["verdict"] == (
    "1 x cpu computed 2 of 3 cases correctly; not compared: resume."
  )
  assert "resume: not compared: they differ" in caplog.text
  assert "resume: 1 cases, 0 wrong" not in caplog.text
  compared = [one["is_compared"] for one in result["findings"]]
  assert compared == [True, False, True]
  with pytest.raises(errors.WrongResultError, match="not compared: resume"):
    run(monkeypatch, tmp_path, [WRONG, UNKNOWN])


def test_a_wrong_machine_is_told_in_one_line(monkeypatch, tmp_path):
  with pytest.raises(errors.WrongResultError, match=r"2 of 4 .*ring, softmax"):
    run(monkeypatch, tmp_path, [RIGHT, WRONG, LOST])
  result = json.loads((tmp_path / "results" / "check.json").read_text())
  assert not result["passed"]
  assert [one["passed"] for one in result["findings"]] == [
    *(True, False, False, True)
  ]
  assert result["findings"][2]["error"] is None  # JSON has no NaN.


@pytest.mark.parametrize(
  ("found", "raised"),
  [(RIGHT, KeyboardInterrupt), (WRONG, errors.WrongResultError)],
)
def test_what_was_found_is_written_and_only_right_devices_are_timed(
  monkeypatch, tmp_path, found, raised
):
  def stop(*, short):
    raise KeyboardInterrupt

  monkeypatch.setattr(numbers, "run", lambda *_, **__: [found])
  monkeypatch.setattr(memory, "run", lambda *_, **__: [])
  monkeypatch.setattr(small_run, "run", lambda *_, **__: [RIGHT])
  monkeypatch.setattr(speed, "run", stop)
  with pytest.raises(raised):
    check.run(load.from_config_dict(load.default()), str(tmp_path))
  result = json.loads((tmp_path / "results" / "check.json").read_text())
  assert result["passed"] == found.passed
  assert len(result["findings"]) == 2
  assert result["speed"] == []


def test_the_worst_array_is_named_and_nan_is_worst():
  expected = {"a": np.array([1.0, 2.0]), "b": np.array([4.0])}
  eps = float(np.finfo(np.float32).eps)
  found = {"a": np.array([1.0, 2.0 + 8 * eps]), "b": np.array([4.0 + 8 * eps])}
  one = finding.compare(
    found, expected, part="x", case="y", limit=5, dtype="float32"
  )
  assert one.worst == "a"
  assert one.error == pytest.approx(4)
  assert one.passed
  found["b"] = np.array([np.nan])
  one = finding.compare(
    found, expected, part="x", case="y", limit=5, dtype="float32"
  )
  assert one.worst == "b"
  assert not one.passed


def test_a_case_that_fails_hides_no_other():
  def fail():
    raise RuntimeError("Mosaic failed to\n compile")

  (failed,) = finding.attempt("attention", "pallas", fail)
  assert not failed.passed
  assert failed.worst == "RuntimeError: Mosaic failed to compile"
  assert finding.attempt("ring", "xla", lambda: [RIGHT]) == [RIGHT]


def test_the_format_of_products_is_seen(monkeypatch):
  assert environment.format_of_products() == "float32"
  matmul = jax.numpy.matmul

  def in_bfloat16(left, right):
    left = left.astype("bfloat16")
    right = right.astype("bfloat16")
    return matmul(left, right, preferred_element_type="float32")

  monkeypatch.setattr(environment.jnp, "matmul", in_bfloat16)
  assert environment.format_of_products() == "bfloat16 (7 bits)"


@pytest.mark.rest
@pytest.mark.slow
def test_the_short_form_finds_this_machine_right(tmp_path):
  config = load.from_config_dict(load.default())
  result = check.run(config, str(tmp_path))
  assert result["passed"]
  assert result["is_short"]
  parts = {one["part"] for one in result["findings"]}
  assert parts >= {"attention", "memory", "training", "generation", "resume"}
  timed = {one["part"] for one in result["speed"]}
  assert timed == {"product", "memory", "update", "segment", "token"}
  assert all(one["seconds"] > 0 for one in result["speed"])


@pytest.mark.rest
@pytest.mark.slow
def test_two_processes_check_together(tmp_path):
  found = own_process.result("check.by_two", tmp_path)
  assert found["wrong"] == []
  assert found["meshes"] == ["mesh of data 2", "mesh of fsdp 2"]
  # Only the second process saw a wrong number, and both say so.
  assert found["seen by the other"] == [False, False]
