"""Texts long enough for what a short one hides.

A mixer may read a segment in chunks, often of 64 tokens, and hand a state from
one to the next. It may also keep well for a dozen tokens and no longer.
"""

import numpy as np

from transformer_xl.conformance import finding
from transformer_xl.conformance.checks import check
from transformer_xl.conformance.subject import Subject
from transformer_xl.conformance.subject import read

LONG = 130  # Two chunks of 64 tokens and two more tokens.
HALF = LONG // 2
AROUND_A_CHUNK = (63, 64, 65)
# What a memory that learns makes of rounding grows from token to token.
ROUNDING = 4 * finding.FAR


def _memory_is_long(subject: Subject) -> str:
  if subject.facts.has_attention:
    return check.lengths(subject)
  return ""


@check.when(
  check.masks_empty, check.no_cuts, check.equal_lengths, _memory_is_long
)
def a_long_text_may_be_cut_anywhere(subject: Subject) -> check.Findings:
  """In one pass, in two segments or in single tokens; also at a reset."""
  one = subject.at(LONG)
  text = subject.text(length=LONG)
  whole = read(one, text, [LONG])
  for cuts in ([HALF, HALF], [1] * LONG):
    yield finding.close(
      read(one, text, cuts), whole, check.cut(cuts), tolerance=ROUNDING
    )
  if check.resets_inside(subject):
    return
  for start in AROUND_A_CHUNK:
    resets = np.zeros(text.shape[:2], bool)
    resets[:, start] = True
    actual = read(one, text, [LONG], resets)
    document = slice(start, start + HALF)
    case = f"both lanes reset at position {start} of one pass"
    yield finding.close(
      actual[:, document],
      read(one, text[:, document], [HALF]),
      case,
      reason="the outputs are not those of a fresh start",
      tolerance=ROUNDING,
      first=(0, start),
    )
    yield finding.close(
      actual[:, :start],
      whole[:, :start],
      case,
      reason="an output before the reset changes",
      tolerance=ROUNDING,
    )
