"""Every check can fail: each mutant is caught by the one meant for it.

That the model without the mistake passes the same check, on the same options,
is in `test_implementations` and `test_oracle`.
"""

import pytest

from tests import kinds
from tests.conformance import adapters
from tests.conformance import mutants
from tests.conformance import test_oracle
from transformer_xl.conformance import kit
from transformer_xl.conformance import subject
from transformer_xl.conformance.checks import cuts
from transformer_xl.conformance.checks import gradients
from transformer_xl.conformance.checks import lengths
from transformer_xl.conformance.checks import outputs
from transformer_xl.conformance.checks import resets

CAUGHT = (
  (mutants.RemembersAfterReset, resets.forgotten_documents_never_come_back),
  (mutants.LosesTheNewestState, cuts.segments_give_what_one_pass_gives),
  (mutants.KeepsOneSegment, cuts.segments_give_what_one_pass_gives),
  (
    mutants.AttendsEmptyMemory,
    lengths.memory_longer_than_the_text_changes_nothing,
  ),
  (
    mutants.StopsGradients,
    gradients.the_gradient_through_memory_is_that_of_one_pass,
  ),
  (mutants.KeepsGradients, gradients.no_gradient_passes_into_memory),
  (mutants.ForgetsToNormalise, outputs.probabilities_sum_to_one),
)
CAUGHT_INSIDE = (
  (mutants.window_too_long, cuts.with_same_length_the_cuts_do_not_matter),
  (mutants.window_too_long, cuts.same_length_limits_the_window),
)
CAUGHT_BY_ORACLE = (
  mutants.window_too_long,
  mutants.distances_start_at_one,
  mutants.clamp_one_late,
  mutants.interleave_sines_and_cosines,
  mutants.shift_one_column_less,
)


def _name(value):
  return getattr(value, "function", value).__name__


def _fails(check, build) -> bool:
  """Whether a check compares outputs and finds a difference."""
  findings = list(check.function(subject.Subject(build)))
  row = kit.of_findings(check.name, findings)
  return row.failed and row.difference > row.tolerance


@pytest.mark.some(3)
@pytest.mark.parametrize(("kind", "check"), CAUGHT, ids=_name)
def test_spoilt_step_is_caught(kind, check):
  assert _fails(check, adapters.package(kind))


@pytest.mark.parametrize(("mutate", "check"), CAUGHT_INSIDE, ids=_name)
def test_spoilt_model_is_caught(mutate, check, monkeypatch):
  mutate(monkeypatch)
  assert _fails(check, adapters.package())


def _differ_from_oracle() -> float:
  adapter = adapters.Package(
    mem_len=3, same_length=True, clamp_len=2, attention="xla"
  )
  return test_oracle.worst_difference(adapter, [4] * 4)


@pytest.fixture(scope="module")
def sound():
  return _differ_from_oracle()


@pytest.mark.some(3)
@pytest.mark.parametrize("mutate", CAUGHT_BY_ORACLE, ids=_name)
def test_spoilt_model_differs_from_the_oracle(mutate, sound, monkeypatch):
  mutate(monkeypatch)
  spoilt = _differ_from_oracle()
  assert sound < test_oracle.ROUNDING
  assert spoilt > 1000 * test_oracle.ROUNDING


@pytest.mark.parametrize(
  ("mutate", "encoding"),
  [
    (mutants.rotate_neighbours, kinds.encoding(rotates=True)),
    (mutants.scale_penalties, kinds.sloping()),
  ],
)
def test_spoilt_encoding_differs_from_the_oracle(mutate, encoding, monkeypatch):
  mutate(monkeypatch)
  adapter = adapters.Package(mem_len=3, same_length=True, encoding=encoding)
  assert (
    test_oracle.worst_difference(adapter, [4] * 4) > 1000 * test_oracle.ROUNDING
  )
