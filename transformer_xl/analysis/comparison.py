"""One program for all comparisons of variants that are trained.

`run` makes and checks all configurations (`checked_plans`), trains each variant
with each learning rate and seed and measures it (trials.py), chooses the
learning rates, compares the rows, and writes them with a table and a picture. A
preset says what is particular: the study of own variants (study.py), or the
paper's ablation (ablation.py). Recall (recall.py) compares runs that exist, so
it needs a measurement, a table and a picture only.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from matplotlib import figure as figure_lib

from transformer_xl import errors
from transformer_xl.analysis import costs
from transformer_xl.analysis import plotting
from transformer_xl.analysis import trials
from transformer_xl.analysis import variants
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.planning import topology as topology_lib
from transformer_xl.workdir import metrics_log

# The head of a column: `planned_bytes` of a row.
PLANNED = "memory of an update, MiB by plan"


class TriedRate(NamedTuple):
  """The validation loss with one learning rate; infinite if it diverged."""

  learning_rate: float
  nll: float  # Mean over seeds, in nats per token.
  nll_by_seed: list[float]


class Row(NamedTuple):
  """A variant as it was trained and measured; losses in nats per token."""

  name: str
  changes: Mapping[str, object]  # Values of the variant, by path.
  config: schema.ExperimentConfig  # With these values and the learning rate.
  learning_rate: float
  learning_rates: list[TriedRate]  # Empty if there was no choice.
  num_parameters: int
  checkpoint_step: int
  tokens: int  # Number of tokens that training reads.
  planned_bytes: int  # Device memory of an update, as planned by XLA.
  length: int  # Of memory or attention, at which the row is compared.
  nll: float  # At that length, the mean over seeds.
  spread: float  # Range of the seeds' losses at that length.
  nll_by_length: dict[int, float]  # Means over seeds.
  nll_by_seed: dict[int, list[float]]  # By length.
  # At `length`, a list for each seed with a number for each bin, as in
  # `trials.Measurement`; empty where nothing but losses is measured.
  bins_by_seed: list[list[float]]
  # Of the code, the device and the day, when the first seed was measured.
  commit: str | None
  device: str
  date: str
  seconds_per_token: costs.Seconds | None = None  # If the model was timed.
  # Seconds of training, divided by those of the first row.
  relative_seconds: float | None = None
  # On a TPU that is not there, if a slice was named.
  planned_seconds_per_token: costs.Seconds | None = None
  # Loss less that of the first row, if it was trained on as many tokens.
  at_equal_tokens: float | None = None
  # Loss less what the first row's variant reaches in the same time, if known.
  at_equal_time: float | None = None
  is_noise: bool = False  # At equal tokens: within the spread of either row.


class Preset(NamedTuple):
  """What is particular about one comparison."""

  mode: str  # Names the result's files; its rules hold for every variant.
  is_timed: bool  # All variants have to fit into memory together.
  # The first one is what the others are compared with.
  variants: Sequence[variants.Variant]
  # Lengths of memory or attention to measure at, on the `eval.split` of what it
  # gets. Asked before training, it refuses what could not be measured.
  lengths: Callable[[schema.ExperimentConfig], Sequence[int]]
  # Measures a trained model at these lengths.
  measure: trials.Measure
  # The length at which a variant with these losses is compared.
  choose_length: Callable[[schema.TrainConfig, trials.Losses], int]
  # Further fields of the JSON file, and of a row in it.
  about: metrics_log.Json
  fields: Callable[[Row], metrics_log.Json]
  # The cells of each row, by the heads of their columns; and the picture.
  table: Callable[[Sequence[Row]], list[dict[str, str]]]
  draw: Callable[[Sequence[Row]], figure_lib.Figure]


class Plan(NamedTuple):
  """What is to be done for one variant.

  lengths: at which it is measured, by split.
  """

  variant: variants.Variant
  config: schema.ExperimentConfig
  trials_by_rate: dict[float, list[variants.Trial]]
  lengths: dict[str, Sequence[int]]


def run(
  config: schema.ExperimentConfig,
  workdir: str,
  preset: Preset,
  *,
  topology: str | None = None,
) -> metrics_log.Json:
  """Trains, measures and compares variants.

  The files are written after each variant. With a `topology`, as in
  `--mode=plan`, the time of each variant is also planned for one of its chips.

  Returns:
    The content of `results/MODE.json`.

  Raises:
    UserError: a variant cannot be trained or measured. This is found out before
      the first update, as far as it can be.
    StoppedError: a signal stopped training; the same command resumes there.
  """
  chip = None
  if topology is not None:
    chip = topology_lib.slice_devices(topology)[0]
  plans = checked_plans(config, workdir, preset)
  logging.info(
    "Variants are compared on the %s split (analysis.split).",
    config.analysis.split,
  )
  result: metrics_log.Json = {
    "made_by": plotting.made_by(),
    "dataset": config.data.name,
    "split": config.analysis.split,
    "device": jax.devices()[0].device_kind,
    "seeds": [*config.analysis.seeds] or [config.seed],
    "config": dataclasses.asdict(config),
    **preset.about,
    "rows": [],
  }

  # Training and measurement.
  rows: list[Row] = []
  for plan in plans:
    rows.append(_measured_row(plan, preset))
    _write(result, with_differences(rows), workdir, preset)

  # Time, which shows only where all variants take turns.
  if preset.is_timed:
    logging.info("Timing the variants, which take turns.")
    timed = [
      costs.what_is_timed(row.config, rows[0].config, row.length)
      for row in rows
    ]
    seconds = costs.seconds_per_token(dict.fromkeys(timed))
    first = seconds[timed[0]]
    rows = [
      row._replace(
        seconds_per_token=seconds[each],
        relative_seconds=seconds[each].training / first.training,
      )
      for row, each in zip(rows, timed, strict=True)
    ]
    _write(result, with_differences(rows), workdir, preset)

  if chip is not None:
    logging.info("Planning the variants for one %s.", chip.device_kind)
    result["planned_for"] = chip.device_kind
    rows = [
      row._replace(
        planned_seconds_per_token=costs.planned_seconds(
          row.name, row.config, row.length, chip
        )
      )
      for row in rows
    ]
    _write(result, with_differences(rows), workdir, preset)
  return result


def checked_plans(
  config: schema.ExperimentConfig, workdir: str, preset: Preset
) -> list[Plan]:
  """What is to be done for each variant.

  Raises:
    UserError: a variant cannot be trained or measured, as far as that is known
      before the first update.
  """
  names = [variant.name for variant in preset.variants]
  if len({*names}) < len(names):
    raise errors.UserError(
      f"--mode={preset.mode} compares variants by name, and two have one name: "
      f"{', '.join(names)}; name each once."
    )
  plans = []
  for variant in preset.variants:
    rates = config.analysis.learning_rates
    if rates and "train.learning_rate" in variant.changes:
      raise errors.UserError(
        f"the variant {variant.name!r} sets train.learning_rate, and "
        f"analysis.learning_rates={rates} tries several for each variant; "
        "leave one of them out."
      )
    changed = variants.configure(config, variant.changes)
    by_rate = variants.trials(changed, variant.name, workdir)
    plans.append(Plan(variant, changed, by_rate, lengths={}))

  # Configurations come first, so the plainest mistake is the one that is named.
  for plan in plans:
    variants.check(plan.config, mode=preset.mode)
    for split in variants.measured_splits(plan.config.analysis):
      on_split = load.replaced(plan.config, {"eval.split": split})
      plan.lengths[split] = preset.lengths(on_split)
    for seeds in plan.trials_by_rate.values():
      for trial in seeds:
        trials.check(trial)

  return plans


def _measured_row(plan: Plan, preset: Preset) -> Row:
  """Trains and measures a variant, with the learning rate that suits it."""
  rate = next(iter(plan.trials_by_rate))
  measured: list[trials.Measured] = []
  tried: list[TriedRate] = []
  if len(plan.trials_by_rate) > 1:
    # Only the best one is tested, so the test split chooses nothing.
    on_valid = {}
    for each in plan.trials_by_rate:
      on_valid[each] = _measured_seeds(plan, each, "valid", preset)
      tried.append(_tried_rate(plan, each, on_valid[each], preset))
    rate = _best_rate(plan, tried)
    if plan.config.eval.split == "valid":
      measured = on_valid[rate]
  if not measured:
    measured = _measured_seeds(plan, rate, plan.config.eval.split, preset)

  config = plan.trials_by_rate[rate][0].config
  by_seed = _losses_by_seed(measured)
  means = _means(by_seed)
  length = preset.choose_length(config.train, means)
  per_update = segment_lengths.tokens_per_update(config.train)
  return Row(
    name=plan.variant.name,
    changes=plan.variant.changes,
    config=config,
    learning_rate=rate,
    learning_rates=tried,
    num_parameters=measured[0].num_parameters,
    checkpoint_step=measured[0].checkpoint_step,
    tokens=round(config.train.num_steps * per_update),
    planned_bytes=costs.planned_bytes(config),
    length=length,
    nll=means[length],
    spread=max(by_seed[length]) - min(by_seed[length]),
    nll_by_length=means,
    nll_by_seed=by_seed,
    bins_by_seed=[each.bins[length] for each in measured if each.bins],
    commit=measured[0].commit,
    device=measured[0].device,
    date=measured[0].date,
  )


def _tried_rate(
  plan: Plan, rate: float, measured: list[trials.Measured], preset: Preset
) -> TriedRate:
  """The validation losses of one learning rate, which it logs."""
  if measured:
    by_seed = _losses_by_seed(measured)
    length = preset.choose_length(plan.config.train, _means(by_seed))
    losses = by_seed[length]
  else:
    losses = [math.inf]  # One of the seeds diverged.
  tried = TriedRate(rate, statistics.fmean(losses), losses)
  logging.info(
    "%s, learning rate %g: validation loss %.4f.",
    plan.variant.name,
    rate,
    tried.nll,
  )
  return tried


def _best_rate(plan: Plan, tried: Sequence[TriedRate]) -> float:
  """The learning rate of the lowest validation loss.

  Raises:
    UserError: training diverged at every rate.
  """
  best = min(tried, key=lambda one: one.nll)
  if best.nll == math.inf:
    raise errors.UserError(
      f"{plan.variant.name!r} diverges at every learning rate of "
      f"analysis.learning_rates={[*plan.trials_by_rate]}; add lower ones."
    )
  return best.learning_rate


def _measured_seeds(
  plan: Plan, rate: float, split: str, preset: Preset
) -> list[trials.Measured]:
  """Trains and measures the seeds of one learning rate.

  Returns:
    A measurement for each seed; none at all if one of them diverged while there
    are other rates.
  """
  result = []
  for trial in plan.trials_by_rate[rate]:
    measured = trials.measure(
      trial,
      split=split,
      lengths=plan.lengths[split],
      measure_model=preset.measure,
      may_diverge=len(plan.trials_by_rate) > 1,
    )
    if not measured.losses:
      return []
    result.append(measured)
  return result


def _losses_by_seed(
  measured: list[trials.Measured],
) -> dict[int, list[float]]:
  """The losses of all seeds by length."""
  return {
    length: [each.losses[length] for each in measured]
    for length in measured[0].losses
  }


def _means(by_seed: Mapping[int, Sequence[float]]) -> trials.Losses:
  """The mean over seeds, by length."""
  return {length: statistics.fmean(each) for length, each in by_seed.items()}


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
    is_noise = False
    if row.tokens == first.tokens:
      at_equal_tokens = row.nll - first.nll
      is_noise = abs(at_equal_tokens) <= max(row.spread, first.spread)

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
        is_noise=is_noise,
      )
    )
  return result


def _write(
  result: metrics_log.Json, rows: Sequence[Row], workdir: str, preset: Preset
) -> None:
  """Puts rows into the result, and writes it with its table and picture."""
  result["rows"] = []
  for row in rows:
    values = row._asdict()
    del values["config"]
    for name in ("seconds_per_token", "planned_seconds_per_token"):
      if values[name] is not None:
        values[name] = values[name]._asdict()
    values |= preset.fields(row)
    values["learning_rates"] = [one._asdict() for one in row.learning_rates]
    result["rows"].append(values)
  plotting.write(
    workdir,
    preset.mode,
    result,
    {preset.mode: preset.draw(rows)},
    table=preset.table(rows),
  )
