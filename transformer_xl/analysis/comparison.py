"""One program for all comparisons of variants that are trained.

`run` makes and checks all configurations (`checked_plans`), has each variant
trained with learning rates and seeds (plans.py) by one or several workers
(workers.py), compares the rows, and writes them with a table and a picture. A
preset says what is particular: the study of own variants (study.py), or the
paper's ablation (ablation.py). Recall (recall.py) compares runs that exist, so
it needs a measurement, a table and a picture only.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from absl import logging
from matplotlib import figure as figure_lib

from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl import storage
from transformer_xl.analysis import costs
from transformer_xl.analysis import plans as plans_lib
from transformer_xl.analysis import plotting
from transformer_xl.analysis import rate_search
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import trials
from transformer_xl.analysis import variants
from transformer_xl.analysis import workers
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.planning import topology as topology_lib
from transformer_xl.workdir import metrics_log

# What a row has of its times and of other rows.
_COMPARED = (
  *("seconds_per_token", "relative_seconds", "planned_seconds_per_token"),
  *("at_equal_tokens", "at_equal_time", "is_told_apart", "seconds"),
)


class Preset(NamedTuple):
  """What is particular about one comparison."""

  mode: str  # Names the result's files; its rules hold for every variant.
  is_timed: bool  # All variants have to fit into memory together.
  # The first one is what the others are compared with.
  variants: Sequence[variants.Variant]
  # Lengths of memory or attention to measure at, on the `eval.split` of what it
  # gets. Asked before training, it refuses what could not be measured.
  lengths: Callable[[schema.Scoring, schema.TrainConfig], Sequence[int]]
  # Measures a trained model at these lengths.
  measure: trials.Measure
  # The length at which a variant with these losses is compared.
  choose_length: Callable[[schema.TrainConfig, trials.Losses], int]
  # Further fields of the JSON file, and of a row in it.
  about: metrics_log.Json
  fields: Callable[[rows_lib.Row], metrics_log.Json]
  # The cells of each row, by the heads of their columns; and the picture.
  table: Callable[[Sequence[rows_lib.Row]], list[dict[str, str]]]
  draw: Callable[[Sequence[rows_lib.Row]], figure_lib.Figure]


def run(
  config: schema.ExperimentConfig,
  workdir: str,
  preset: Preset,
  *,
  topology: str | None = None,
) -> metrics_log.Json:
  """Trains, measures and compares variants, beside other workers.

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
    "written_by": _written_by(),
    "seeds": [*variants.seeds(config.analysis, own=config.seed)],
    "config": dataclasses.asdict(config),
    **preset.about,
    "rows": [],
  }
  worker = workers.Worker(plans, preset.measure)
  planned_bytes = functools.cache(costs.planned_bytes)
  lock = f".{preset.mode}.lock"  # Of the files, of which one worker writes.

  def finished_rows() -> list[rows_lib.Row]:
    rows = []
    for plan in plans:
      progress = worker.progress(plan)
      if progress.measured:
        seconds = sum(worker.seconds(plan))
        rows.append(rows_lib.row_of(plan, progress, planned_bytes, seconds))
    return rows

  def write_finished() -> None:
    _require_rates(plans[:1], worker)
    with worker.holding(workdir, lock) as is_ours:
      rows = finished_rows() if is_ours else []
      # All others are compared with the first one.
      if rows and rows[0].name == plans[0].variant.name:
        _write(result, rows_lib.with_differences(rows), workdir, preset)

  # Training and measurement.
  worker.run(write_finished)
  _require_rates(plans[:1], worker)

  with worker.waiting_for(workdir, lock):
    rows = finished_rows()
    _warn_of_edges(rows)
    before = _written_before(result, rows, workdir, preset)
    _write(result, rows_lib.with_differences(rows), workdir, preset)

    if preset.is_timed:
      rows = _timed(rows, before)
      _write(result, rows_lib.with_differences(rows), workdir, preset)

    if chip is not None:
      result["planned_for"] = chip.device_kind
      rows = _planned(rows, chip)
      _write(result, rows_lib.with_differences(rows), workdir, preset)
  _require_rates(plans, worker)  # Last, so that the others are written.
  return result


def _warn_of_edges(rows: Sequence[rows_lib.Row]) -> None:
  """Names the variants for which a better rate may lie beyond those tried."""
  for row in rows:
    if row.edge:
      logging.warning(
        "%s: the best learning rate is %s.", row.name, rows_lib.rate_cell(row)
      )


def _require_rates(
  plans: Sequence[plans_lib.Plan], worker: workers.Worker
) -> None:
  """Raises a UserError for a variant that no learning rate suits."""
  for plan in plans:
    losses = worker.progress(plan).losses
    if losses and rate_search.diverges(losses):
      raise errors.UserError(
        f"{plan.variant.name!r} diverges at every learning rate of "
        f"{sorted(losses)}; name lower ones in analysis.learning_rates."
      )


def _timed(
  rows: Sequence[rows_lib.Row], before: Sequence[metrics_log.Json]
) -> list[rows_lib.Row]:
  """Rows with the times that they had before, or that are measured now.

  Differences show only where all variants take turns.
  """
  timed = [
    costs.what_is_timed(row.config, rows[0].config, row.length) for row in rows
  ]
  seconds = _times_before(before, timed)
  if seconds is not None:
    logging.info(
      "The times are those in the results, which the same code has measured on "
      "a machine of the same kind."
    )
  else:
    logging.info("Timing the variants, which take turns.")
    seconds = costs.seconds_per_token(dict.fromkeys(timed))
  first = seconds[timed[0]]
  return [
    row._replace(
      seconds_per_token=seconds[each],
      relative_seconds=seconds[each].training / first.training,
    )
    for row, each in zip(rows, timed, strict=True)
  ]


def _planned(
  rows: Sequence[rows_lib.Row], chip: jax.Device
) -> list[rows_lib.Row]:
  """Rows with the times that the compiler estimates for a chip."""
  logging.info("Planning the variants for one %s.", chip.device_kind)
  return [
    row._replace(
      planned_seconds_per_token=costs.planned_seconds(
        row.name, row.config, row.length, chip
      )
    )
    for row in rows
  ]


def _written_by() -> metrics_log.Json:
  """The code and the machine of this process, on which times depend."""
  now = trials.provenance()
  return {
    "commit": now["commit"],
    "device": now["device"],
    "num_devices": jax.device_count(),
    "processor": hardware.processor(),
    "num_cores": hardware.num_cores(),
  }


def _written_before(
  result: metrics_log.Json,
  rows: Sequence[rows_lib.Row],
  workdir: str,
  preset: Preset,
) -> list[metrics_log.Json]:
  """The same rows as they were written before; none if they are others.

  Another worker may have been first, or another command, with the same code on
  a machine of the same kind.
  """
  name = f"results/{preset.mode}.json"
  if jax.process_count() > 1:  # They need not see the same file.
    return []
  storage.refresh(workdir, name)
  try:
    path = os.path.join(storage.local(workdir), name)
    with open(path, encoding="utf-8") as file:
      before = json.load(file)
    is_same = _is_known(result["written_by"])
    is_same = is_same and before["written_by"] == result["written_by"]
    # As it is read back: the loss of a lost rate is null.
    written = metrics_log.to_json(
      {"rows": [_entry(row, preset) for row in rows]}
    )
    now = json.loads(written)["rows"]
    if is_same and [*map(_untimed, before["rows"])] == [*map(_untimed, now)]:
      return before["rows"]
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    pass  # There is none, or somebody has changed it: it is written again.
  return []


def _is_known(writer: metrics_log.Json) -> bool:
  """Whether a commit and a processor say what code ran, and where.

  All uncommitted changes of a commit have one name.
  """
  commit = writer["commit"]
  if not commit or not writer["processor"]:
    return False
  return not commit.endswith("-dirty")


def _untimed(entry: metrics_log.Json) -> metrics_log.Json:
  """A row as it is written, without times and differences between rows."""
  return {name: entry[name] for name in entry if name not in _COMPARED}


def _times_before(
  before: Sequence[metrics_log.Json], timed: Sequence[costs.Timed]
) -> dict[costs.Timed, costs.Seconds] | None:
  """The times of rows that were written; None if one is missing."""
  seconds = [entry["seconds_per_token"] for entry in before]
  if not seconds or None in seconds:
    return None
  known = [costs.Seconds(**each) for each in seconds]
  return dict(zip(timed, known, strict=True))


def checked_plans(
  config: schema.ExperimentConfig, workdir: str, preset: Preset
) -> list[plans_lib.Plan]:
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
    plan = plans_lib.Plan(
      variant,
      changed,
      workdir,
      start_rates=variants.start_rates(
        changed.analysis, own=changed.train.learning_rate
      ),
      seeds=variants.seeds(changed.analysis, own=changed.seed),
      lengths={},
      choose_length=preset.choose_length,
    )
    plans.append(plan)

  # Configurations come first, so the plainest mistake is the one that is named.
  checked = []
  for plan in plans:
    variants.check(plan.config, mode=preset.mode)
    lengths = {}
    for split in variants.measured_splits(plan.config.analysis):
      on_split = load.replaced(plan.config, {"eval.split": split})
      lengths[split] = preset.lengths(on_split.scoring, on_split.train)
    for rate in plan.start_rates:
      for seed in plan.seeds:
        trials.check(plan.trial(rate, seed))
    checked.append(plan._replace(lengths=lengths))
  return checked


def _write(
  result: metrics_log.Json,
  rows: Sequence[rows_lib.Row],
  workdir: str,
  preset: Preset,
) -> None:
  """Puts rows into the result, and writes it with its table and picture."""
  result["rows"] = [_entry(row, preset) for row in rows]
  plotting.write(
    workdir,
    preset.mode,
    result,
    {preset.mode: preset.draw(rows)},
    table=preset.table(rows),
  )


def _entry(row: rows_lib.Row, preset: Preset) -> metrics_log.Json:
  """A row of the JSON file."""
  values = row._asdict()
  del values["config"]
  for name in ("seconds_per_token", "planned_seconds_per_token"):
    if values[name] is not None:
      values[name] = values[name]._asdict()
  values |= {"low": row.over_seeds.low, "high": row.over_seeds.high}
  values |= preset.fields(row)
  values["learning_rates"] = [one._asdict() for one in row.learning_rates]
  return values
