"""A row of a comparison: a variant as it was trained and measured.

Rows are made from what their trials measured, are compared with the first of
them, and say what several tables show of them in words.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_xl.analysis import costs
from transformer_xl.analysis import over_seeds
from transformer_xl.analysis import plans as plans_lib
from transformer_xl.analysis import rate_search
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths

# The head of a column: `planned_bytes` of a row.
PLANNED = "memory of an update, MiB by plan"


class TriedRate(NamedTuple):
  """The validation loss with one learning rate; infinite if it diverged."""

  learning_rate: float
  nll: float  # With the first seed, in nats per token.


class Row(NamedTuple):
  """A variant as it was trained and measured; losses in nats per token."""

  name: str
  changes: Mapping[str, object]  # Values of the variant, by path.
  config: schema.ExperimentConfig  # With these values and the learning rate.
  learning_rate: float
  learning_rates: list[TriedRate]  # In order; empty if there was no choice.
  edge: str  # "lowest" or "highest" of these, if no worse one is beyond it.
  num_parameters: int
  checkpoint_step: int
  tokens: int  # Number of tokens that training reads.
  planned_bytes: int  # Device memory of an update, as planned by XLA.
  length: int  # Of memory or attention, at which the row is compared.
  nll: float  # At that length, the median over seeds.
  nll_by_length: dict[int, float]  # Medians over seeds.
  nll_by_seed: dict[int, list[float]]  # By length.
  # At `length`, a list for each seed with a number for each bin, as in
  # `trials.Measurement`; empty where nothing but losses is measured.
  bins_by_seed: list[list[float]]
  # Of the code, the device and the day, when the first seed was measured.
  commit: str | None
  device: str
  date: str
  # What all its trials took, those of other learning rates included, if known.
  seconds: float | None
  seconds_per_token: costs.Seconds | None = None  # If the model was timed.
  # Seconds of training, divided by those of the first row.
  relative_seconds: float | None = None
  # On a TPU that is not there, if a slice was named.
  planned_seconds_per_token: costs.Seconds | None = None
  # Loss less that of the first row, if it was trained on as many tokens.
  at_equal_tokens: float | None = None
  # Loss less what the first row's variant reaches in the same time, if known.
  at_equal_time: float | None = None
  # At equal tokens: the interval over seeds has nothing in common with that of
  # the first row, or there is one seed, which has none.
  is_told_apart: bool = True

  @property
  def over_seeds(self) -> over_seeds.OverSeeds:
    """The losses of the seeds at the length at which the row is compared."""
    return over_seeds.of(self.nll_by_seed[self.length])


def row_of(
  plan: plans_lib.Plan,
  progress: plans_lib.Progress,
  planned_bytes: Callable[
    [schema.Recipe, schema.DataConfig, schema.MeshConfig], int
  ],
  seconds: float,
) -> Row:
  """A variant whose trials are all measured."""
  measured = progress.measured
  assert progress.rate is not None
  config = plan.trial(progress.rate, plan.seeds[0]).config
  by_seed = {
    length: [each.losses[length] for each in measured]
    for length in measured[0].losses
  }
  medians = {
    length: statistics.median(each) for length, each in by_seed.items()
  }
  length = plan.choose_length(config.train, medians)
  per_update = segment_lengths.tokens_per_update(config.train)
  tried = sorted(progress.losses.items())
  edge = rate_search.edge(progress.losses)
  return Row(
    name=plan.variant.name,
    changes=plan.variant.changes,
    config=config,
    learning_rate=progress.rate,
    learning_rates=[TriedRate(*one) for one in tried],
    edge=edge,
    num_parameters=measured[0].num_parameters,
    checkpoint_step=measured[0].checkpoint_step,
    tokens=round(config.train.num_steps * per_update),
    planned_bytes=planned_bytes(config.recipe, config.data, config.mesh),
    length=length,
    nll=medians[length],
    nll_by_length=medians,
    nll_by_seed=by_seed,
    bins_by_seed=[each.bins[length] for each in measured if each.bins],
    commit=measured[0].commit,
    device=measured[0].device,
    date=measured[0].date,
    seconds=seconds,
  )


def rate_cell(row: Row) -> str:
  """The learning rate of a row, and what is not known of it, in words."""
  text = f"{row.learning_rate:g}"
  if len(row.learning_rates) < 2:
    return f"{text} (no other tried)"
  if not row.edge:
    return text
  text += f" ({row.edge} of {len(row.learning_rates)}"
  if not row.config.analysis.max_learning_rates:
    text += ", not extended"
  return f"{text})"


def seeds_cell(
  seeds: over_seeds.OverSeeds, shown: Callable[[float], str]
) -> str:
  """The interval over seeds, whose ends are shown in this way."""
  if len(seeds.by_seed) == 1:
    return "one seed"
  return f"{shown(seeds.low)} to {shown(seeds.high)}"


def rows_of_first_variant(rows: Sequence[Row]) -> list[Row]:
  """Rows that differ from the first one in `train.num_steps` at most."""

  def other_changes(row: Row) -> dict[str, object]:
    changes = {**row.changes}
    changes.pop("train.num_steps", None)
    return changes

  first = other_changes(rows[0])
  return [row for row in rows if other_changes(row) == first]


def why_not_at_equal_time(row: Row, rows: Sequence[Row]) -> str:
  """What a row lacks to be compared at equal time, in words; "" for nothing."""
  if row.relative_seconds is None:
    return "not timed yet"
  first = rows[0]
  tokens = [one.tokens for one in rows_of_first_variant(rows)]
  meanwhile = row.tokens * row.relative_seconds
  updates = first.config.train.num_steps * meanwhile / first.tokens
  if meanwhile < min(tokens):
    return f"needs {first.name} with {math.floor(updates):,} updates or fewer"
  if meanwhile > max(tokens):
    return f"needs {first.name} with {math.ceil(updates):,} updates or more"
  return ""


def with_differences(rows: Sequence[Row]) -> list[Row]:
  """Adds the differences to the first row, at equal tokens and at equal time.

  The rows of the first variant give its loss by tokens, which is interpolated
  in between.
  """
  first = rows[0]
  curve = {row.tokens: row.nll for row in rows_of_first_variant(rows)}
  tokens = sorted(curve)
  losses = [curve[count] for count in tokens]
  result = []
  for row in rows:
    at_equal_tokens = None
    is_told_apart = True
    if row.tokens == first.tokens:
      at_equal_tokens = row.nll - first.nll
      has_seeds = len(row.over_seeds.by_seed) > 1
      is_told_apart = not (
        has_seeds and over_seeds.overlap(row.over_seeds, first.over_seeds)
      )

    at_equal_time = None
    if row.relative_seconds is not None:
      meanwhile = row.tokens * row.relative_seconds
      if tokens[0] <= meanwhile <= tokens[-1]:
        # Losses fall about linearly with the logarithm of the tokens.
        reached = np.interp(np.log(meanwhile), np.log(tokens), losses)
        at_equal_time = row.nll - float(reached)
    result.append(
      row._replace(
        at_equal_tokens=at_equal_tokens,
        at_equal_time=at_equal_time,
        is_told_apart=is_told_apart,
      )
    )
  return result
