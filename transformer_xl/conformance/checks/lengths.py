"""Memory of length 0, and longer than the text."""

import numpy as np

from transformer_xl.conformance import finding
from transformer_xl.conformance.checks import check
from transformer_xl.conformance.checks import cuts
from transformer_xl.conformance.subject import LENGTH
from transformer_xl.conformance.subject import SEGMENT
from transformer_xl.conformance.subject import SEGMENTS
from transformer_xl.conformance.subject import Subject
from transformer_xl.conformance.subject import read


@check.when(check.lengths)
def without_memory_segments_are_independent(subject: Subject) -> check.Findings:
  """Each gives what it gives alone."""
  one = subject.at(0)
  text = subject.text()
  parts = np.split(text, len(SEGMENTS), axis=1)
  alone = [read(one, part, [SEGMENT]) for part in parts]
  # Not to the bit: a ring has them in other slots.
  yield finding.close(
    read(one, text, SEGMENTS),
    np.concatenate(alone, axis=1),
    "memory of 0",
    reason="a segment depends on the one before it",
  )


@check.when(check.lengths, check.reaches)
def without_memory_a_segment_is_read(subject: Subject) -> check.Findings:
  """A token sees those before it in its segment."""
  one = subject.at(0)
  text = subject.text()
  before = read(one, text, SEGMENTS)
  sure = subject.facts.sure_reach
  for start in range(0, LENGTH, SEGMENT):
    after = read(one, subject.changed(text, start), SEGMENTS)
    reach = SEGMENT - 1 if sure is None else min(SEGMENT - 1, sure)
    yield finding.differ(
      after[:, start + reach],
      before[:, start + reach],
      f"memory of 0, another token at position {start}: position "
      f"{start + reach}",
      reason="the output is the same",
    )


@check.when(check.same_length, check.attends)
def without_memory_same_length_is_off(subject: Subject) -> check.Findings:
  """A token would see itself alone; it sees its segment."""
  text = subject.text()
  on = read(subject.at(0, same_length=True), text, SEGMENTS)
  off = read(subject.at(0), text, SEGMENTS)
  yield finding.close(on, off, "memory of 0")


@check.when(check.lengths, check.parts)
def without_memory_parts_complete_a_segment(subject: Subject) -> check.Findings:
  """Whichever steps a segment is read in; the next one starts afresh."""
  yield from cuts.parts_are_the_segment(subject, mem_len=0)


@check.when(check.lengths, check.masks_empty)
def memory_longer_than_the_text_changes_nothing(
  subject: Subject,
) -> check.Findings:
  """Its empty part is not seen."""
  text = subject.text()
  enough = read(subject.at(LENGTH), text, SEGMENTS)
  too_much = read(subject.at(LENGTH + 8), text, SEGMENTS)
  case = f"memory of {LENGTH + 8} beside {LENGTH}"
  yield finding.close(too_much, enough, case)


@check.when(check.lengths, check.reaches)
def memory_makes_a_difference(subject: Subject) -> check.Findings:
  """Else the equalities would say nothing about memory."""
  text = subject.text()
  without = read(subject.at(0), text, SEGMENTS)
  with_memory = read(subject.at(LENGTH), text, SEGMENTS)
  yield finding.differ(
    without[:, SEGMENT:],
    with_memory[:, SEGMENT:],
    f"memory of 0 beside {LENGTH}",
    reason="the outputs are the same",
  )
