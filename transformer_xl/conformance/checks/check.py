"""A check: a sentence about implementations, and when it has a meaning.

A check is a function of a subject that yields findings, from the smallest case
up. Its name is the sentence that it checks. Where two ways of computing the
same are compared, they round differently. Where the same compiled step must not
see a change at all, outputs are compared exactly.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax

from transformer_xl.conformance.finding import Finding
from transformer_xl.conformance.subject import Subject

Findings = Iterator[Finding]
# Says why a check has no meaning for a subject; "" if it has one.
WhyNot = Callable[[Subject], str]


class Check(NamedTuple):
  """One check."""

  function: Callable[[Subject], Findings]
  why_not: WhyNot

  @property
  def name(self) -> str:
    """The sentence that it checks."""
    return self.function.__name__.replace("_", " ")


def when(
  *conditions: WhyNot,
) -> Callable[[Callable[[Subject], Findings]], Check]:
  """A decorator of checks, which have a meaning under all conditions."""

  def add(function: Callable[[Subject], Findings]) -> Check:
    def why_not(subject: Subject) -> str:
      return next(filter(None, (one(subject) for one in conditions)), "")

    return Check(function, why_not)

  return add


# Conditions. Each says why it does not hold, or "" if it does.


def lengths(subject: Subject) -> str:
  if subject.has_lengths:
    return ""
  return "it was given with one length of memory"


def same_length(subject: Subject) -> str:
  if subject.has_lengths and not subject.has_same_length:
    return "it cannot limit all queries to equally many keys"
  return lengths(subject)


def masks_empty(subject: Subject) -> str:
  if subject.facts.masks_empty:
    return ""
  return "an empty memory is attended to as zeros"


def attends(subject: Subject) -> str:
  if subject.facts.has_attention:
    return ""
  return "a state reaches back as far as it likes, and has no window"


def no_cuts(subject: Subject) -> str:
  if subject.facts.own_positions:
    return "positions count from the start of each segment"
  if subject.facts.compresses:
    return "states are compressed at the end of a segment"
  if subject.facts.writes:
    return "something is written once a segment"
  return ""


def equal_lengths(subject: Subject) -> str:
  if subject.facts.unequal:
    return "layers with a limit see more of one pass"
  return ""


def tokens_in_window(subject: Subject) -> str:
  if subject.facts.writes:
    return "what is written reaches further than a window"
  if subject.facts.compresses:
    return "a slot is one position and several tokens"
  return ""


def resets(subject: Subject) -> str:
  if subject.facts.resets_at == "nowhere":
    return "a lane cannot be reset while another remembers"
  return ""


def resets_inside(subject: Subject) -> str:
  if subject.facts.resets_at == "segments":
    return "a document starts only where a segment does"
  return resets(subject)


def parts(subject: Subject) -> str:
  if subject.facts.reads_parts:
    return ""
  return "every step is a segment"


def writes(subject: Subject) -> str:
  if subject.facts.writes:
    return ""
  return "nothing is done once a segment"


def gradient_stops(subject: Subject) -> str:
  return gradient_is(subject, "stops")


def gradient_flows(subject: Subject) -> str:
  return gradient_is(subject, "flows")


def gradient_is(subject: Subject, wanted: str) -> str:
  found = subject.facts.gradient
  if found == wanted:
    return ""
  return {
    "stops": "no gradient passes into memory here",
    "flows": "gradients pass into memory here",
    "none": "parameters are fixed while it reads",
  }.get(found, "it does not say what gradient passes through memory")


def has_gradient(subject: Subject) -> str:
  if subject.facts.gradient in ("stops", "flows"):
    return ""
  return gradient_is(subject, "any")


def no_retrieval(subject: Subject) -> str:
  if subject.facts.retrieves:
    return "no gradient reaches what is retrieved"
  return ""


def reaches(subject: Subject) -> str:
  if subject.facts.sure_reach == 0:
    return "it forgets as it likes (sure_reach is 0)"
  return ""


def log_probs(subject: Subject) -> str:
  if subject.facts.gives_log_probs:
    return ""
  return "outputs are no log-probabilities"


def of_jax(subject: Subject) -> str:
  return "" if subject.is_of_jax else "its arrays are not of JAX"


def offers(name: str) -> WhyNot:
  def why_not(subject: Subject) -> str:
    return "" if subject.offers(name) else f"it has no method `{name}`"

  return why_not


def two_devices(subject: Subject) -> str:
  del subject
  return "" if len(jax.local_devices()) > 1 else "there is one device"


def cut(cuts: Sequence[int]) -> str:
  """Lengths of segments, for people."""
  if len(set(cuts)) == 1:
    return f"{len(cuts)} segments of {cuts[0]}"
  return f"segments of {', '.join(map(str, cuts))}"
