"""Where a document starts, nothing before it counts."""

import itertools

import numpy as np

from transformer_xl.conformance import finding
from transformer_xl.conformance.checks import check
from transformer_xl.conformance.subject import LENGTH
from transformer_xl.conformance.subject import SEGMENT
from transformer_xl.conformance.subject import SEGMENTS
from transformer_xl.conformance.subject import Subject
from transformer_xl.conformance.subject import read


@check.when(check.resets)
def a_reset_of_a_lane_is_a_fresh_start(subject: Subject) -> check.Findings:
  """The other lane keeps its memory; later segments forget as well."""
  one = subject.at(LENGTH)
  text = subject.text()
  kept = read(one, text, SEGMENTS)
  for start in range(SEGMENT, LENGTH, SEGMENT):
    resets = np.zeros(text.shape[:2], bool)
    resets[1, start] = True
    actual = read(one, text, SEGMENTS, resets)
    fresh = read(one, text[:, start:], SEGMENTS[start // SEGMENT :])
    case = f"lane 1 reset at position {start}"
    yield finding.close(
      actual[1:, start:],
      fresh[1:],
      case,
      reason="the outputs are not those of a fresh start",
      first=(1, start),
    )
    yield finding.same(
      actual[:1], kept[:1], case, reason="the outputs of lane 0 change"
    )
    yield finding.same(
      actual[1:, :start],
      kept[1:, :start],
      case,
      reason="an output before the reset changes",
      first=(1, 0),
    )
    if start == SEGMENT and not check.reaches(subject):
      yield finding.differ(
        kept[1:, start:],
        fresh[1:],
        f"segments {SEGMENTS} without a reset",
        reason="the outputs are those of a fresh start",
      )


@check.when(
  check.resets_inside,
  check.masks_empty,
  check.no_cuts,
  check.equal_lengths,
)
def a_reset_inside_a_segment_is_a_fresh_start(
  subject: Subject,
) -> check.Findings:
  """At every place, however the text after it is cut."""
  for start in range(1, LENGTH - SEGMENT + 1):
    cuts = [SEGMENT] * ((LENGTH - start) // SEGMENT)
    yield from _reset_inside(subject, start, cuts)


def _rest_says_it(subject: Subject) -> str:
  facts = subject.facts
  if facts.own_positions:
    return "positions count from the start of each segment"
  if facts.compresses:
    return "states are compressed at the end of a segment"
  if facts.reads_parts:
    return "a part of a segment is not a segment"
  if not (facts.unequal or facts.writes):
    return "`a reset inside a segment is a fresh start` says it"
  return ""


@check.when(check.resets_inside, check.masks_empty, _rest_says_it)
def a_reset_inside_a_segment_leaves_its_rest(
  subject: Subject,
) -> check.Findings:
  """The same where it matters how a text is cut: then the cuts are equal."""
  for start in range(1, LENGTH):
    cuts = [SEGMENT - start % SEGMENT]
    cuts += [SEGMENT] * ((LENGTH - start) // SEGMENT)
    cuts = cuts[: _count_within(start, cuts)]
    yield from _reset_inside(subject, start, cuts)


def _count_within(start: int, cuts: list[int]) -> int:
  """How many of the segments from `start` on are in the text."""
  ends = itertools.accumulate(cuts, initial=start)
  return sum(end <= LENGTH for end in ends) - 1


def _reset_inside(
  subject: Subject, start: int, cuts: list[int]
) -> check.Findings:
  """A document that starts inside a segment, beside the same from the start.

  Tokens before it, and the other lane, are as without the reset.
  """
  one = subject.at(LENGTH)
  text = subject.text()
  resets = np.zeros(text.shape[:2], bool)
  resets[0, start] = True
  kept = read(one, text, SEGMENTS)
  actual = read(one, text, SEGMENTS, resets)
  document = slice(start, start + sum(cuts))
  fresh = read(one, text[:, document], cuts)
  case = f"lane 0 reset at position {start}"
  yield finding.close(
    actual[:1, document],
    fresh[:1],
    case,
    reason="the outputs are not those of a fresh start",
    first=(0, start),
  )
  yield finding.close(
    actual[:1, :start],
    kept[:1, :start],
    case,
    reason="an output before the reset changes",
  )
  yield finding.same(
    actual[1:],
    kept[1:],
    case,
    reason="the outputs of lane 1 change",
    first=(1, 0),
  )


@check.when(check.resets_inside, check.masks_empty)
def forgotten_documents_never_come_back(subject: Subject) -> check.Findings:
  """However long the memory: four segments and four documents of it."""
  one = subject.at(LENGTH + 8)
  text = subject.text()
  resets = np.zeros(text.shape[:2], bool)
  starts = (0, 4, 5, 2 * SEGMENT, LENGTH)
  resets[:, list(starts[:-1])] = True
  before = read(one, text, SEGMENTS, resets)
  for begin, end in itertools.pairwise(starts):
    changed = subject.changed(text, slice(begin, end))
    after = read(one, changed, SEGMENTS, resets)
    case = f"another document at positions {begin} to {end - 1}"
    reason = "an output of another document changes"
    yield finding.differ(
      after[:, begin:end],
      before[:, begin:end],
      case,
      reason="its outputs are the same",
    )
    yield finding.same(after[:, :begin], before[:, :begin], case, reason=reason)
    yield finding.same(
      after[:, end:], before[:, end:], case, reason=reason, first=(0, end)
    )
