"""The kit on this device: a finding for each row, wrong where it failed."""

import types

import jax
import numpy as np
import pytest

from tests import kinds
from tests.conformance import examples
from tests.conformance import test_kit
from transformer_xl.check import finding
from transformer_xl.check import memory
from transformer_xl.config import load
from transformer_xl.conformance import finding as kit_finding
from transformer_xl.conformance import kit
from transformer_xl.conformance import subject

CARRYING, ROTATING = kinds.recurrent(), kinds.encoding(rotates=True)


class Leaks(test_kit.Average):
  def step(self, params, inputs, memory, resets):
    return super().step(params, inputs, memory, np.zeros_like(resets))


@pytest.mark.parametrize(
  ("kind", "wrong"),
  [
    (test_kit.Average, set()),
    (Leaks, {test_kit.LANE.name, test_kit.INSIDE.name}),
  ],
)
def test_each_mixer_is_tried_once_with_the_encoding(kind, wrong, monkeypatch):
  tried = []

  def subjects(name, *, encoding):
    tried.append((name, encoding))
    return {"training": subject.Subject(kind())}

  monkeypatch.setattr(kit, "subjects", subjects)
  config = types.SimpleNamespace(
    layers=(CARRYING, "attention:8", CARRYING), encoding=ROTATING
  )
  found = memory.run(config, short=True)
  assert tried == [(CARRYING, ROTATING), ("attention", ROTATING)]
  expected = {
    f"{name} with {ROTATING}: {row}"
    for name in (CARRYING, "attention")
    for row in wrong
  }
  assert {one.case for one in found if not one.passed} == expected
  assert {one.part for one in found} == {"memory"}
  assert len(found) > 8
  for one in found:
    if not one.passed:
      assert one.limit == pytest.approx(300)
      assert one.error > 1000 * one.limit
      assert one.worst.startswith("the outputs are not those of a fresh start")


@pytest.mark.rest
@pytest.mark.slow
def test_a_leak_in_a_memory_of_ones_own_is_found():
  fields = {"model.layers": ("ema_leaks",), "model.encoding": "none"}
  with examples.registered():
    config = load.default()
    config.update_from_flattened_dict(fields)
    model = load.from_config_dict(config).model
    found = memory.run(model, short=True)
  wrong = (test_kit.LANE, test_kit.INSIDE, test_kit.EQUATIONS)
  assert {one.case for one in found if not one.passed} == {
    f"ema_leaks with none: {check.name}" for check in wrong
  }


@pytest.mark.parametrize(
  ("row", "error", "limit", "passed"),
  [
    (kit.Row("x", kit.PASSED), 0, 0, True),
    (kit.Row("x", kit.PASSED, "", "", 2.0**-21, 2.0**-19), 4, 16, True),
    (kit.Row("x", kit.FAILED, "r", "c", 2.0**-19, 2.0**-21), 16, 4, False),
    (kit.Row("x", kit.FAILED, "it fails"), 1, 0, False),
    # It should have differed by the tolerance at least.
    (kit.Row("x", kit.FAILED, "the same", "c", 0.0, 1e-4), 1, 0, False),
    (kit.Row("x", kit.FAILED, "r", "c", np.inf, 1e-4), np.inf, None, False),
  ],
)
def test_a_row_is_a_finding_in_roundings(row, error, limit, passed):
  found = memory.of_row(row, "a with b")
  assert found.error == error
  assert limit is None or found.limit == limit
  assert found.passed == passed
  assert found.case == "a with b: x"


def test_a_process_that_failed_counts_whatever_the_limits(monkeypatch):
  """Another finding of the same row may have another limit."""
  right = finding.Finding("memory", "x", 3.0, 30.0)
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  monkeypatch.setattr(
    finding.multihost_utils,
    "process_allgather",
    lambda mine: np.stack([mine, [[1.0, 0.0]], mine + 1]),
  )
  (one,) = finding.largest_of_processes([right])
  assert (one.error, one.limit) == (1.0, 0.0)
  assert not one.passed


def test_the_kit_multiplies_float32_exactly():
  """As its tolerances are, whatever the device does by default."""

  def see(subject):
    precision = jax.config.jax_default_matmul_precision
    yield kit_finding.holds(precision == "highest", "", reason=str(precision))

  check = kit.check_lib.when()(see)
  row = kit.row(check, subject.Subject(test_kit.Average()))
  assert row.outcome == kit.PASSED, row.reason
