"""Applies every check to an implementation, and says what came out."""

import importlib.metadata
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax

from transformer_xl import errors
from transformer_xl.config import extensions
from transformer_xl.config import registry
from transformer_xl.conformance import finding
from transformer_xl.conformance import registered
from transformer_xl.conformance.checks import check as check_lib
from transformer_xl.conformance.checks import cuts
from transformer_xl.conformance.checks import gradients
from transformer_xl.conformance.checks import long_texts
from transformer_xl.conformance.checks import numbers
from transformer_xl.conformance.checks import outputs
from transformer_xl.conformance.checks import sight
from transformer_xl.conformance.checks import table
from transformer_xl.conformance.finding import Finding
from transformer_xl.conformance.implementation import Build
from transformer_xl.conformance.implementation import Implementation
from transformer_xl.conformance.subject import Subject

PASSED = "passed"
FAILED = "FAILED"
NOT_APPLICABLE = "not applicable"
# These are of parameters and of training: what reads with fixed parameters has
# none of its own.
_OF_TRAINING = (
  numbers.parameters_are_float32,
  numbers.large_numbers_stay_finite,
  numbers.far_positions_score_as_near_ones,
  gradients.the_gradient_is_that_of_differences,
)
# The only variant in which gradients pass through memory; the rest of it is the
# program of training.
_SEVERAL = "training over several segments"
_HYBRID = "reading a hybrid"
# In the other variants norms are before layers.
_NORMS_AFTER = "training with norms after layers"
_OF_NORMS = (
  sight.a_later_token_changes_no_earlier_output,
  cuts.segments_give_what_one_pass_gives,
)
_OF_GRADIENTS = (
  gradients.the_gradient_through_memory_is_that_of_one_pass,
  gradients.the_gradient_through_memory_is_that_of_differences,
)


class Row(NamedTuple):
  """What one check came to.

  Attributes:
    name: the sentence that it checks.
    outcome: "passed", "FAILED" or "not applicable".
    reason: what is wrong, or why it does not apply; "" if it passed.
    case: the smallest one that failed; "" if none did.
    difference: the largest, in proportion to the largest number expected; NaN
      where there are no numbers.
    tolerance: what the difference may be, or should be at least where outputs
      have to differ; NaN where there are no numbers.
  """

  name: str
  outcome: str
  reason: str = ""
  case: str = ""
  difference: float = math.nan
  tolerance: float = math.nan

  @property
  def failed(self) -> bool:
    """Whether the check found something wrong."""
    return self.outcome == FAILED


def run(implementation: str | Build | Implementation) -> list[Row]:
  """Checks an implementation; see `implementation.py` for what that is.

  Args:
    implementation: an object with the methods `init`, `fresh` and `step`, a
      function `build(mem_len=..., same_length=...)` that returns one, or the
      name of a mixer or an encoding that is registered.

  Returns:
    One row for each check of the kit.

  Raises:
    UserError: no mixer or encoding has the name, or methods are missing.
  """
  return list(rows(implementation))


def show(
  implementation: Build | Implementation, library: str, layer: str
) -> list[Row]:
  """Checks a layer of an installed library, and prints rows as they are made.

  The first line names library, version and layer.
  """
  version = importlib.metadata.version(library)
  print(f"{library} {version}: {layer}", flush=True)
  result = []
  for one in rows(implementation):
    print(told(one), flush=True)
    result.append(one)
  return result


def rows(implementation: str | Build | Implementation) -> Iterator[Row]:
  """The rows of `run`, one after another."""
  if not isinstance(implementation, str):
    subject = Subject(implementation)
    yield from (row(check, subject) for check in table.ALL)
  else:
    yield from rows_of(subjects(implementation))


def rows_of(
  variants: Mapping[str, Subject],
  checks: Sequence[check_lib.Check] = table.ALL,
  *,
  slack: float = 1.0,
) -> Iterator[Row]:
  """A row for each check, of the variants of a model that it is for.

  `slack` is how many times the tolerances are for rounding.
  """
  for check in checks:
    found = []
    for name, subject in variants.items():
      if _is_for(check, name):
        found.append((name, row(check, subject, slack=slack)))
    yield _merged(check, found)


def subjects(
  name: str, *, encoding: str | None = None
) -> Mapping[str, Subject]:
  """The variants of models that try what is registered under a name.

  Args:
    name: of a mixer or an encoding.
    encoding: of the models of a mixer; None for that of the default.

  Raises:
    UserError: nothing is.
  """
  if name not in registry.mixers and name not in registry.encodings:
    raise errors.UserError(
      f"there is no mixer and no encoding {name!r}; the mixers are "
      f"{', '.join(registry.mixers)}, and the encodings "
      f"{', '.join(registry.encodings)}"
    )
  result = {
    variant: Subject(build)
    for variant, build in registered.variants(name, encoding).items()
  }
  if name in registry.mixers:
    alone = registered.Alone(name)
    if alone.has_reference:
      result["the mixer alone"] = Subject(alone)
  return result


def _is_for(check: check_lib.Check, variant: str) -> bool:
  """Whether a check is for a variant of a model."""
  if check in _OF_GRADIENTS or variant == _SEVERAL:
    return check in _OF_GRADIENTS and variant == _SEVERAL
  if variant == _NORMS_AFTER:
    return check in _OF_NORMS
  if variant == "the mixer alone":
    return check is outputs.outputs_are_those_of_its_own_equations
  if check is long_texts.a_long_text_may_be_cut_anywhere:
    # Its programs take long to compile, and its layers are those of the others.
    return variant != _HYBRID
  return variant == "training" or check not in _OF_TRAINING


def row(check: check_lib.Check, subject: Subject, *, slack: float = 1.0) -> Row:
  """What one check says of a subject; `slack` as in `rows_of`."""
  why_not = check.why_not(subject)
  if why_not:
    return Row(check.name, NOT_APPLICABLE, why_not)
  try:
    # The tolerances are those of float32, to which a TPU or a GPU does not
    # multiply by default.
    with jax.default_matmul_precision("highest"):
      found = [finding.eased(one, slack) for one in check.function(subject)]
    return of_findings(check.name, found)
  except errors.UserError:
    raise
  except Exception as error:  # A step that does not run has failed the check.
    said = extensions.reason(error)
    return Row(check.name, FAILED, f"it fails: {said[:300]}")


def of_findings(name: str, findings: list[Finding]) -> Row:
  """The first case that is wrong, and the largest difference of the like."""
  wrong = [one for one in findings if not one.is_right]
  if wrong:
    first = wrong[0]
    alike = [one.difference for one in wrong if one.reason == first.reason]
    return Row(
      name,
      FAILED,
      first.reason,
      first.case,
      max(alike),
      first.tolerance,
    )
  # Of differences that have to be small, the one that is nearest to its bound.
  small = [one for one in findings if one.difference <= one.tolerance]
  if not small:
    return Row(name, PASSED)
  worst = max(small, key=lambda one: one.difference / (one.tolerance or 1.0))
  return Row(name, PASSED, "", "", worst.difference, worst.tolerance)


def _merged(check: check_lib.Check, found: list[tuple[str, Row]]) -> Row:
  """One row of those of several variants."""
  for variant, one in found:
    if one.failed:
      case = f"{variant}, {one.case}" if one.case else variant
      return one._replace(case=case)
  passed = [one for _, one in found if one.outcome == PASSED]
  if passed:
    with_numbers = [one for one in passed if not math.isnan(one.difference)]
    return max(
      with_numbers or passed, key=lambda one: one.difference, default=passed[0]
    )
  reason = found[0][1].reason if found else "no variant of a model is for it"
  return Row(check.name, NOT_APPLICABLE, reason)


def told(one: Row) -> str:
  """A row as a line for people."""
  numbers = ""
  if not math.isnan(one.difference):
    numbers = f"{one.difference:.1e} ({one.tolerance:.1e})"
  words = "; ".join(filter(None, (one.case, one.reason)))
  text = " ".join(filter(None, (numbers, words)))
  return f"{one.outcome:<14}  {one.name:<50}  {text}".rstrip()
