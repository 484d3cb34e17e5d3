"""What the outputs are, beside other ways to compute them."""

import numpy as np

from transformer_xl.conformance import finding
from transformer_xl.conformance.checks import check
from transformer_xl.conformance.subject import LANES
from transformer_xl.conformance.subject import LENGTH
from transformer_xl.conformance.subject import SEGMENTS
from transformer_xl.conformance.subject import Subject
from transformer_xl.conformance.subject import read

# Two programs in bfloat16 round at other places; a memory that learns makes
# more of it than others.
BFLOAT16 = 0.1


@check.when(check.log_probs)
def probabilities_sum_to_one(subject: Subject) -> check.Findings:
  """At every position."""
  one = subject.at(LENGTH)
  log_probs = read(one, subject.text(), SEGMENTS)
  shape = (LANES, LENGTH, subject.facts.vocab_size)
  yield finding.holds(
    log_probs.shape == shape,
    f"{list(log_probs.shape)} for {list(shape)}",
    reason="the outputs have another shape",
  )
  sums = np.exp(log_probs.astype(np.float64)).sum(axis=-1, keepdims=True)
  yield finding.close(
    sums,
    np.ones_like(sums),
    "the sum over the vocabulary",
    reason="probabilities do not sum to one",
    tolerance=1e-5,
  )


@check.when(check.offers("others"))
def other_ways_of_reading_give_the_same(subject: Subject) -> check.Findings:
  """Training and reading with fixed parameters, say."""
  one = subject.at(LENGTH)
  text = subject.text()
  actual = read(one, text, SEGMENTS)
  for name, (other, params) in one.others().items():
    expected = read(other, text, SEGMENTS, params=params)
    yield finding.close(actual, expected, f"beside {name}")
  if not subject.offers("in_bfloat16"):
    return
  half = one.in_bfloat16()
  actual = read(half, text, SEGMENTS)
  for name, (other, params) in half.others().items():
    yield finding.close(
      actual,
      read(other, text, SEGMENTS, params=params),
      f"in bfloat16, beside {name}",
      tolerance=BFLOAT16,
    )


@check.when(check.offers("reference"))
def outputs_are_those_of_its_own_equations(subject: Subject) -> check.Findings:
  """In float64, with resets and without."""
  one = subject.at(LENGTH)
  text = subject.text()
  params = one.init(0)
  resets = np.zeros(text.shape[:2], bool)
  cases = ["no reset"]
  if not check.resets_inside(subject):
    cases.append("lane 0 reset at position 6, lane 1 at 4")
  for case in cases:
    expected = one.reference(params, text, resets)
    actual = read(one, text, SEGMENTS, resets)
    yield finding.close(actual, expected, case)
    resets[0, 6] = resets[1, 4] = True  # Where a segment starts, and inside.
