"""How each item of the paper is measured: by the analyses of this package.

Models are trained in WORKDIR/models/DATASET/VARIANT, so that items which
compare the same model share it, and a model that is finished is not trained
again.
"""

import os
import types
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from matplotlib import figure as figure_lib

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.analysis import ablation
from transformer_xl.analysis import attention_maps
from transformer_xl.analysis import comparison
from transformer_xl.analysis import eval_speed
from transformer_xl.analysis import recl
from transformer_xl.analysis import study
from transformer_xl.analysis import trials
from transformer_xl.analysis import variants
from transformer_xl.analysis.paper import published
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.model import nats
from transformer_xl.text import generate
from transformer_xl.workdir import metrics_log


class Request(NamedTuple):
  """An item to measure, with the experiment that says how.

  Attributes:
    item: of the paper.
    config: what is trained and how it is measured.
    workdir: where models and results are kept.
  """

  item: published.Item
  config: schema.ExperimentConfig
  workdir: str

  @property
  def models(self) -> str:
    """The folder that the models of the dataset are trained in.

    Rows of the ablation at equal memory have the names of others, and other
    segments.
    """
    name = self.config.data.name
    if self.config.analysis.equal_memory:
      name += "_equal_memory"
    return os.path.join(self.workdir, "models", name)


class Measured(NamedTuple):
  """A row as it was measured.

  Attributes:
    values: by column of the item; None where there is nothing to measure.
    low: the least of the seeds in the first column.
    high: the greatest of them.
    num_parameters: of the model; None for what has none of its own.
  """

  values: tuple[float | None, ...]
  low: float | None = None
  high: float | None = None
  num_parameters: int | None = None


class Found(NamedTuple):
  """What a method has found.

  Attributes:
    rows: by variant.
    details: what the analyses have written, as JSON.
    seeds: of the training runs.
    figures: pictures to draw, by the end of their names.
    pictures: files that exist, by the end of their names.
    texts: what stands side by side where there are no rows.
  """

  rows: dict[str, Measured]
  details: metrics_log.Json
  seeds: tuple[int, ...] = ()
  figures: Mapping[str, figure_lib.Figure] = types.MappingProxyType({})
  pictures: Mapping[str, str] = types.MappingProxyType({})
  texts: Mapping[str, str] = types.MappingProxyType({})


def check(request: Request) -> None:
  """Raises a UserError for what could not be trained or measured."""
  method = request.item.method
  if method == "speed":
    eval_speed.check(request.config, request.workdir)
  elif method in _PRESETS:
    preset = _PRESETS[method](request)
    comparison.checked_plans(request.config, request.models, preset)
  else:
    _trials(request)


def measure(request: Request) -> Found:
  """Trains what is missing and measures the item.

  Raises:
    UserError: something cannot be trained or measured.
    StoppedError: a signal stopped training; the same command resumes there.
  """
  return _METHODS[request.item.method](request)


def _study_preset(request: Request) -> comparison.Preset:
  """Variants as in `--mode=study`, which nobody has to time."""
  return study.preset(request.config)._replace(is_timed=False)


def _ablation_preset(request: Request) -> comparison.Preset:
  """The rows of `--mode=ablation`, and variants that have no such name."""
  preset = ablation.preset(request.config)
  others = [variants.parse(text) for text in request.config.analysis.variants]
  return preset._replace(variants=[*preset.variants, *others])


def _compared(request: Request, preset: comparison.Preset) -> metrics_log.Json:
  """Compares variants; what is found of some of them is kept in any case."""
  try:
    return comparison.run(request.config, request.models, preset)
  finally:
    storage.publish(request.models)


def _study(request: Request) -> Found:
  """Perplexity, or bits a character, of each variant."""
  unit = (
    nats.bits if request.item.columns == (published.BITS,) else nats.perplexity
  )
  preset = _study_preset(request)
  result = _compared(request, preset)
  rows = {}
  for row in result["rows"]:
    by_seed = [unit(nll) for nll in row["nll_by_seed"][row["length"]]]
    rows[row["name"]] = Measured(
      values=(unit(row["nll"]),),
      low=min(by_seed),
      high=max(by_seed),
      num_parameters=row["num_parameters"],
    )
  return Found(rows, result, _seeds(request))


def _ablation(request: Request) -> Found:
  """Perplexity at the attention length of training, and at the best one."""
  preset = _ablation_preset(request)
  result = _compared(request, preset)
  rows = {}
  for row in result["rows"]:
    by_seed = row["nll_by_seed"][row["init"]["attention_len"]]
    best = row["best"]
    rows[row["name"]] = Measured(
      values=(
        row["init"]["perplexity"],
        best["perplexity"],
        best["attention_len"],
      ),
      low=nats.perplexity(min(by_seed)),
      high=nats.perplexity(max(by_seed)),
      num_parameters=row["num_parameters"],
    )
  results = os.path.join(storage.local(request.models), "results")
  picture = os.path.join(results, "ablation.png")
  return Found(
    rows,
    result,
    _seeds(request),
    pictures={"attention": picture},
  )


def _recl(request: Request) -> Found:
  """Relative effective context lengths, within each group of the paper."""
  by_name = {
    os.path.basename(trial.folder): trial for trial in _trials(request)
  }
  counts = {name: _trained(trial) for name, trial in by_name.items()}
  rows = {}
  details = {}
  figures = {}
  for group in dict.fromkeys(row.group for row in request.item.rows):
    names = [
      row.variant
      for row in request.item.rows
      if row.group == group and row.variant in by_name
    ]
    if not names:
      continue
    first = by_name[names[0]]
    folders = tuple(by_name[name].folder for name in names)
    together = load.replaced(first.config, {"analysis.group": folders})
    result = recl.run(together, first.folder)
    storage.publish(first.folder)
    details[group] = result
    figures[group] = recl.draw(result)
    for index, name in enumerate(names):
      lengths = tuple(entry["recl"][index] for entry in result["recl"])
      rows[name] = Measured(lengths, num_parameters=counts[name])
  return Found(rows, details, _seeds(request)[:1], figures)


def _speed(request: Request) -> Found:
  """How much longer the vanilla model takes, by attention length."""
  result = eval_speed.run(request.config, request.workdir)
  rows = {}
  for row in result["lengths"]:
    times = row["times_faster_than_vanilla"]["hidden"]
    rows[str(row["attention_len"])] = Measured(
      (times,), num_parameters=result["num_parameters"]
    )
  return Found(rows, result, figures={"time": eval_speed.draw(result)})


def _attention(request: Request) -> Found:
  """Pictures of the heads of the one model that is trained."""
  (trial,) = _trials(request)
  _trained(trial)
  result = attention_maps.run(trial.config, trial.folder)
  storage.publish(trial.folder)
  results = os.path.join(storage.local(trial.folder), "results")
  pictures = {
    name: os.path.join(results, f"attention_{name}.png")
    for name in ("distance", "heads", "terms")
  }
  return Found({}, result, _seeds(request)[:1], pictures=pictures)


def _sample(request: Request) -> Found:
  """What the one model that is trained writes behind a seed of test text."""
  (trial,) = _trials(request)
  _trained(trial)
  result = generate.run(trial.config, trial.folder)
  texts = {
    "seed": result["prompt"],
    "sample": result["text"],
    "reference": result["reference"],
  }
  return Found({}, result, _seeds(request)[:1], texts=texts)


def _seeds(request: Request) -> tuple[int, ...]:
  """The seeds of a comparison; other items take the first."""
  return variants.seeds(request.config.analysis, own=request.config.seed)


def _trials(request: Request) -> list[variants.Trial]:
  """One training run for each variant: with the first seed.

  Raises:
    UserError: there are several learning rates, a variant is not one, it cannot
      be trained, or the analysis cannot read it.
  """
  analysis = request.config.analysis
  if variants.chooses_rate(analysis):
    raise errors.UserError(
      f"{analysis.paper} trains each model once, and "
      f"analysis.learning_rates={analysis.learning_rates} with "
      f"analysis.max_learning_rates={analysis.max_learning_rates} would try "
      "several rates: give one rate, or none for that of the experiment, and "
      "--config.analysis.max_learning_rates=0."
    )
  chosen = []
  for variant in _variants(analysis, request.config.train):
    changed = variants.configure(request.config, variant.changes)
    variants.check(changed, mode=_MODES[request.item.method])
    (rate,) = variants.start_rates(analysis, own=changed.train.learning_rate)
    trial = variants.trial(
      changed,
      variant.name,
      request.models,
      rate=rate,
      seed=_seeds(request)[0],
    )
    trials.check(trial)
    chosen.append(trial)
  return chosen


def _variants(
  analysis: schema.AnalysisConfig, train: schema.TrainConfig
) -> Iterable[variants.Variant]:
  """The rows of the ablation, and the variants of the study.

  Raises:
    UserError: there are none.
  """
  if not analysis.rows and not analysis.variants:
    raise errors.UserError(
      "--mode=paper needs models to train; name an item of the paper, as in "
      "--config=paper:table6:small."
    )
  for name in analysis.rows:
    yield ablation.parse(name, mem_len=train.mem_len)
  for text in analysis.variants:
    yield variants.parse(text)


def _trained(trial: variants.Trial) -> int:
  """Trains a model that is not trained yet; returns its parameters' count."""
  found = trials.measure(
    trial,
    split=trial.config.eval.split,
    lengths=(),
    measure_model=lambda model, lengths: trials.Measurement({}, bins={}),
    may_diverge=False,
  )
  storage.publish(trial.folder)
  return found.num_parameters


_PRESETS = {"study": _study_preset, "ablation": _ablation_preset}
# The modes whose rules hold for what the other methods train.
_MODES = {"recl": "recl", "attention": "attention", "sample": "generate"}
_METHODS: dict[published.Method, Callable[[Request], Found]] = {
  "study": _study,
  "ablation": _ablation,
  "recl": _recl,
  "speed": _speed,
  "attention": _attention,
  "sample": _sample,
}
