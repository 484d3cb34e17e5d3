"""What a token sees: its past, its lane, and nothing else."""

from collections.abc import Iterator

import jax
import numpy as np

from transformer_xl.conformance import finding
from transformer_xl.conformance.checks import check
from transformer_xl.conformance.implementation import Array
from transformer_xl.conformance.subject import LENGTH
from transformer_xl.conformance.subject import SEGMENTS
from transformer_xl.conformance.subject import Subject
from transformer_xl.conformance.subject import read

NEARLY = 16  # Models whose parameters differ by a hundredth.


@check.when()
def a_later_token_changes_no_earlier_output(subject: Subject) -> check.Findings:
  """Nor across segments: each token is changed in turn."""
  for position, after, before in _with_each_token_changed(subject):
    found = finding.same(
      after[:, :position],
      before[:, :position],
      f"another token at position {position}",
      reason="an output before it changes",
    )
    # A Fourier transform of the segment mixes the rounding of all tokens.
    if 0 < found.difference < finding.CLOSE:
      found = found._replace(is_right=not _is_seen(subject, position))
    yield found


def _is_seen(subject: Subject, position: int) -> bool:
  """Whether earlier outputs depend on a token by more than their rounding.

  What is seen of the token is nearly the same with parameters that differ
  slightly. Rounding is another one each time, so that its mean is near 0.
  """
  one = subject.at(LENGTH)
  text = subject.text()
  generator = np.random.default_rng(3)

  def nearly(leaf: Array) -> Array:
    is_counted = "float" not in str(leaf.dtype)
    return leaf if is_counted else leaf * (1 + 0.01 * generator.normal())

  changes = []
  for _ in range(NEARLY):
    params = jax.tree.map(nearly, one.init(0))
    after = read(one, subject.changed(text, position), SEGMENTS, params=params)
    before = read(one, text, SEGMENTS, params=params)
    change = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    changes.append(change[:, :position])
  of_mean = np.square(np.mean(changes, axis=0)).mean()
  return bool(of_mean > 0.5 * np.square(changes).mean())


@check.when(check.reaches)
def every_token_reaches_later_outputs(subject: Subject) -> check.Findings:
  """Else the equalities would say nothing."""
  sure = subject.facts.sure_reach
  for position, after, before in _with_each_token_changed(subject):
    end = LENGTH if sure is None else min(LENGTH, position + sure + 1)
    for later in range(position, end):
      yield finding.differ(
        after[:, later],
        before[:, later],
        f"another token at position {position}: position {later}",
        reason="the output is the same",
        # One program reads both texts, so rounding alone makes no difference.
        least=finding.SEEN,
      )


def _with_each_token_changed(
  subject: Subject,
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Each position, outputs with another token there, and those before."""
  one = subject.at(LENGTH)
  text = subject.text()
  before = read(one, text, SEGMENTS)
  for position in range(LENGTH):
    yield position, read(one, subject.changed(text, position), SEGMENTS), before


@check.when()
def lanes_do_not_see_each_other(subject: Subject) -> check.Findings:
  """One lane has another text, or they change places."""
  one = subject.at(LENGTH)
  text = subject.text()
  before = read(one, text, SEGMENTS)
  other = text.copy()
  other[1] = subject.changed(text, slice(None))[1]
  after = read(one, other, SEGMENTS)
  yield finding.same(
    after[:1],
    before[:1],
    "another text in lane 1",
    reason="the outputs of lane 0 change",
  )
  yield finding.differ(
    after[1],
    before[1],
    "another text in lane 1",
    reason="the outputs of lane 1 are the same",
  )
  swapped = read(one, text[::-1], SEGMENTS)[::-1]
  yield finding.close(swapped, before, "lanes 0 and 1 in each other's place")
