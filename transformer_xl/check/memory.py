"""The public kit (`conformance`) on the device at hand.

It tries the mixers and the encoding of the configuration, by the rules that any
memory has to keep. Each process tries them on its own first device.
"""

import functools
import math

from absl import logging

from transformer_xl.check import finding
from transformer_xl.config import schema
from transformer_xl.conformance import finding as kit_finding
from transformer_xl.conformance import kit
from transformer_xl.conformance.checks import outputs
from transformer_xl.conformance.checks import resets
from transformer_xl.conformance.checks import sight
from transformer_xl.conformance.checks import state
from transformer_xl.conformance.checks import table

PART = "memory"
# An x86-64 processor comes near the kit's tolerances (docs/measurements/
# check.md), and another device rounds in another order. A mistake makes more
# than ten times as much of a difference.
_SLACK = 3.0
# These share one compiled step of each way of reading.
_SHORT = (
  sight.a_later_token_changes_no_earlier_output,
  sight.every_token_reaches_later_outputs,
  sight.lanes_do_not_see_each_other,
  resets.a_reset_of_a_lane_is_a_fresh_start,
  resets.a_reset_inside_a_segment_is_a_fresh_start,
  state.a_saved_memory_continues_alike,
  outputs.probabilities_sum_to_one,
  outputs.other_ways_of_reading_give_the_same,
  outputs.outputs_are_those_of_its_own_equations,
)


def run(config: schema.ModelConfig, *, short: bool) -> list[finding.Finding]:
  """Tries each mixer of a model with its encoding; quickly if `short`."""
  findings: list[finding.Finding] = []
  for name in dict.fromkeys(entry.partition(":")[0] for entry in config.layers):
    case = f"{name} with {config.encoding}"
    logging.info("Trying the memory of %s.", case)
    check = functools.partial(check_mixer, name, config.encoding, short=short)
    findings += finding.attempt(PART, case, check)
  return findings


def check_mixer(
  name: str, encoding: str, *, short: bool
) -> list[finding.Finding]:
  """A finding for each check of the kit that has a meaning for a mixer."""
  checks = _SHORT if short else table.ALL
  subjects = kit.subjects(name, encoding=encoding)
  rows = kit.rows_of(subjects, checks, slack=_SLACK)
  return [
    of_row(row, f"{name} with {encoding}")
    for row in rows
    if row.outcome != kit.NOT_APPLICABLE
  ]


def of_row(row: kit.Row, of: str) -> finding.Finding:
  """A row of the kit with its numbers in roundings of float32.

  What has no numbers, or should have differed by more, is 1 wrong where none
  may be.
  """
  case = f"{of}: {row.name}"
  worst = ": ".join(filter(None, (row.reason, row.case)))
  if row.failed and not row.difference > row.tolerance:
    return finding.Finding(PART, case, 1, 0, worst)
  if math.isnan(row.difference):
    return finding.Finding(PART, case, 0, 0)
  unit = kit_finding.FLOAT32
  return finding.Finding(
    PART, case, row.difference / unit, row.tolerance / unit, worst
  )
