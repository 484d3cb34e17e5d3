"""How a text is cut into segments and steps, which must not matter."""

from transformer_xl.conformance import finding
from transformer_xl.conformance.checks import check
from transformer_xl.conformance.subject import LENGTH
from transformer_xl.conformance.subject import SEGMENT
from transformer_xl.conformance.subject import SEGMENTS
from transformer_xl.conformance.subject import Subject
from transformer_xl.conformance.subject import read

WINDOW = 5  # Positions of memory, where windows are checked.


@check.when(check.masks_empty, check.no_cuts, check.equal_lengths)
def segments_give_what_one_pass_gives(subject: Subject) -> check.Findings:
  """With memory as long as the text."""
  one = subject.at(LENGTH)
  text = subject.text()
  whole = read(one, text, [LENGTH])
  yield finding.close(read(one, text, SEGMENTS), whole, check.cut(SEGMENTS))


@check.when(check.masks_empty, check.no_cuts, check.equal_lengths)
def parts_give_what_segments_give(subject: Subject) -> check.Findings:
  """Single tokens, and steps of other lengths."""
  one = subject.at(LENGTH)
  text = subject.text()
  whole = read(one, text, SEGMENTS)
  for cuts in ([1] * LENGTH, [1, SEGMENT, SEGMENT, 1, 1, SEGMENT]):
    yield finding.close(read(one, text, cuts), whole, check.cut(cuts))


@check.when(check.same_length, check.no_cuts)
def with_same_length_the_cuts_do_not_matter(subject: Subject) -> check.Findings:
  """Though memory is shorter than the text."""
  one = subject.at(WINDOW, same_length=True)
  text = subject.text()
  whole = read(one, text, [LENGTH])
  mixed = [1, SEGMENT, SEGMENT, 1, 1, SEGMENT]
  for cuts in (SEGMENTS, [1] * LENGTH, mixed):
    yield finding.close(read(one, text, cuts), whole, check.cut(cuts))


@check.when(check.same_length, check.attends, check.tokens_in_window)
def same_length_limits_the_window(subject: Subject) -> check.Findings:
  """Two layers reach twice as far as one window, and no further."""
  one = subject.at(WINDOW, same_length=True)
  text = subject.text()
  before = read(one, text, SEGMENTS)
  after = read(one, subject.changed(text, 0), SEGMENTS)
  farthest = 2 * WINDOW
  case = f"another token at position 0, windows of {WINDOW}"
  yield finding.same(
    after[:, farthest + 1 :],
    before[:, farthest + 1 :],
    case,
    reason="an output beyond two windows changes",
    first=(0, farthest + 1),
  )
  yield finding.differ(
    after[:, 4], before[:, 4], case, reason="the output within one is the same"
  )


@check.when(check.writes, check.parts, check.equal_lengths)
def parts_complete_a_segment(subject: Subject) -> check.Findings:
  """What is done once a segment is done once."""
  yield from parts_are_the_segment(subject, mem_len=LENGTH)


def parts_are_the_segment(subject: Subject, *, mem_len: int) -> check.Findings:
  """Steps that complete a segment give what the whole segment gives."""
  one = subject.at(mem_len)
  text = subject.text()
  whole = read(one, text, SEGMENTS)
  for cuts in ([1] * LENGTH, [SEGMENT - 1, 1] * 4):
    yield finding.close(read(one, text, cuts), whole, check.cut(cuts))
