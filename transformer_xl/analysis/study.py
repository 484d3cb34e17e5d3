r"""Variants of an experiment at equal tokens and at equal time; `--mode=study`.

    python -m transformer_xl.main --mode=study \
      --config=experiments/memory_suite.py:mqar --workdir=runs/study

A variant of `config.analysis.variants` is "NAME: FIELD=VALUE; FIELD=VALUE", the
first being what the others are compared with. Each is evaluated at each of its
`eval.mem_len`; the lowest loss counts. With `data.targets=answers` the share of
right answers is measured, too, and shown instead of perplexities (answers.py);
with `data.reset_at_documents` the loss by the position in a document
(documents.py).
"""

import functools
import math
from collections.abc import Sequence

from matplotlib import figure as figure_lib

from transformer_xl import errors
from transformer_xl.analysis import answers
from transformer_xl.analysis import comparison
from transformer_xl.analysis import costs
from transformer_xl.analysis import documents
from transformer_xl.analysis import over_seeds
from transformer_xl.analysis import plotting
from transformer_xl.analysis import recall
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import trials
from transformer_xl.analysis import variants
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import settings
from transformer_xl.model import nats
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import trained_model


def run(
  config: schema.ExperimentConfig, workdir: str, *, topology: str | None = None
) -> metrics_log.Json:
  """Compares variants; returns the content of `results/study.json`.

  A table and a picture lie beside it. A `topology` is a TPU slice, for one chip
  of which the times are planned, too.

  Raises:
    UserError: a variant is not one, or its values are not allowed.
  """
  return comparison.run(config, workdir, preset(config), topology=topology)


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError for a variant that cannot be trained or measured."""
  comparison.checked_plans(config, workdir, preset(config))


def preset(config: schema.ExperimentConfig) -> comparison.Preset:
  """What is particular about a study.

  Raises:
    UserError: there are no variants, or one of them is none.
  """
  analysis = config.analysis
  data = config.data
  if not analysis.variants:
    raise errors.UserError(
      "--mode=study needs variants to compare; set --config.analysis.variants, "
      "which is \"('unchanged:',)\" for the configuration as it is, or name a "
      "study, as in --config=memory_suite:mqar."
    )
  of_losses = comparison.Preset(
    mode="study",
    is_timed=True,
    variants=[variants.parse(text) for text in analysis.variants],
    lengths=functools.partial(memory_lengths, of_text=data.dataset_dir),
    measure=measure,
    choose_length=lowest,
    about={},
    fields=fields,
    table=table,
    draw=draw,
  )
  if data.targets == "answers":
    return _of_answers(of_losses, data.dataset_dir, analysis.split)
  if data.reset_at_documents:
    return _of_documents(of_losses, data.dataset_dir, analysis.split)
  return of_losses


def _of_answers(
  preset: comparison.Preset, dataset_dir: str, split: str
) -> comparison.Preset:
  """The study of a synthetic task, on the split that is evaluated."""
  scale = recall.scale(*recall.open_answers(dataset_dir, split))
  return preset._replace(
    measure=answers.measure,
    about={
      "distances": scale.distances,
      "num_answers": scale.num_answers,
      "chance": scale.chance,
    },
    table=lambda rows: answers.table(rows, scale),
    draw=lambda rows: answers.draw(rows, scale),
  )


def _of_documents(
  preset: comparison.Preset, dataset_dir: str, split: str
) -> comparison.Preset:
  """The study of text in documents, on the split that is evaluated."""
  scale = documents.scale(token_file.open_split(dataset_dir, split))
  return preset._replace(
    measure=documents.measure,
    about={"positions": scale.positions, "num_tokens": scale.num_tokens},
    table=lambda rows: documents.table(rows, scale),
    draw=lambda rows: documents.draw(rows, scale),
  )


def memory_lengths(
  variant: schema.Scoring, train: schema.TrainConfig, *, of_text: str
) -> tuple[int, ...]:
  """Lengths of memory in tokens, at which a variant is measured.

  Raises:
    UserError: the model cannot be read, or the variant reads another text than
      the study, the dataset `of_text`.
  """
  del train
  dataset_dir = variant.data.dataset_dir
  if dataset_dir != of_text:
    raise errors.UserError(
      f"a variant reads {dataset_dir} and the study {of_text}, so their "
      "losses, distances and positions are not those of one text; leave "
      "data.name and data.dir out of --config.analysis.variants."
    )
  encoding = encodings.of(variant.model)
  encoding.check_segment_len(variant.model, variant.eval.read_len)
  return variant.eval.mem_len


def measure(
  model: trained_model.TrainedModel, lengths: Sequence[int]
) -> trials.Measurement:
  """The mean loss with each length of memory."""
  assert tuple(lengths) == model.config.eval.mem_len
  losses = {}
  for card in evaluate.evaluate(model):
    nll = card["nll"]
    losses[card["mem_len"]] = math.inf if nll is None else nll
  return trials.Measurement(losses, bins={})


def lowest(train: schema.TrainConfig, losses: trials.Losses) -> int:
  """The length of memory with the lowest loss."""
  del train
  return min(losses, key=lambda length: losses[length])


def fields(row: rows_lib.Row) -> metrics_log.Json:
  """What a study states of each row, so that a row can be read alone.

  Losses by memory, what the model costs, its configuration, the settings that
  it was measured with, and the code that measured it.
  """
  config = row.config
  return {
    "mem_len": row.length,
    "nll_by_memory": row.nll_by_length,
    "state_bytes": costs.state_bytes(config.model, config.eval, row.length),
    "forward_flops_per_token": costs.forward_flops_per_token(
      config.model, config.eval, row.length
    ),
    "config": config.as_saved(),
    "card": {
      "dataset": config.data.name,
      "split": config.eval.split,
      **settings.of_evaluation(config.scoring, row.length),
    },
  }


def table(rows: Sequence[rows_lib.Row]) -> list[dict[str, str]]:
  """Perplexity by memory, and what it gains over the first row in per cent.

  Numbers are medians over seeds.
  """
  lengths = sorted({length for row in rows for length in row.nll_by_length})
  ranks = over_seeds.ranks(
    [row.over_seeds for row in rows], is_higher_better=False
  )
  lines = []
  for row, rank in zip(rows, ranks, strict=True):
    cells = {
      "variant": row.name,
      "parameters": f"{row.num_parameters:,}",
      "tokens": f"{row.tokens:,}",
      rows_lib.PLANNED: f"{row.planned_bytes / 2**20:.0f}",
      "time a token": "not timed yet",
    }
    if any(each.learning_rates for each in rows):
      cells["learning rate"] = rows_lib.rate_cell(row)
      cells["valid PPL by rate"] = ", ".join(
        f"{one.learning_rate:g}: {nats.perplexity(one.nll):.4g}"
        for one in row.learning_rates
      )
    if row.relative_seconds is not None:
      cells["time a token"] = f"{row.relative_seconds:.2f}"
    for length in lengths:
      text = ""
      if length in row.nll_by_length:
        text = f"{nats.perplexity(row.nll_by_length[length]):.1f}"
      is_compared = length == row.length
      cells[f"PPL, memory {length}"] = f"**{text}**" if is_compared else text
    cells["over seeds"] = rows_lib.seeds_cell(
      row.over_seeds, lambda nll: f"{nats.perplexity(nll):.1f}"
    )
    cells["rank"] = rank
    cells["at equal tokens"] = _percent(row.at_equal_tokens)
    if cells["at equal tokens"] and not row.is_told_apart:
      cells["at equal tokens"] += " (not told apart)"
    reason = rows_lib.why_not_at_equal_time(row, rows)
    cells["at equal time"] = reason or _percent(row.at_equal_time)
    lines.append(cells)
  return lines


def _percent(difference: float | None) -> str:
  """The change of perplexity that a difference of losses, in nats, is."""
  if not difference:  # Also that of the first row, to itself.
    return ""
  return f"{100 * math.expm1(difference):+.1f} %"


@plotting.in_style
def draw(rows: Sequence[rows_lib.Row]) -> figure_lib.Figure:
  """Plots the loss of each variant by time, with the curve of the first one.

  Before time is measured, which is after all training, the loss is plotted by
  tokens.
  """
  figure, axes = plotting.subplots(figsize=(6.5, 3.6))
  first = rows[0]
  is_timed = all(row.relative_seconds is not None for row in rows)

  def place_of(row: rows_lib.Row) -> float:
    seconds = row.relative_seconds if is_timed else None
    return row.tokens * (seconds or 1.0) / first.tokens

  curve = sorted(rows_lib.rows_of_first_variant(rows), key=place_of)
  places = [place_of(row) for row in curve]
  perplexities = [nats.perplexity(row.nll) for row in curve]
  axes.plot(places, perplexities, "k.-", label=first.name)
  others = [row for row in rows if row not in curve]
  for index, row in enumerate(others):
    low = nats.perplexity(row.over_seeds.low)
    middle = nats.perplexity(row.nll)
    high = nats.perplexity(row.over_seeds.high)
    axes.errorbar(
      [place_of(row)],
      [middle],
      yerr=[[middle - low], [high - middle]],
      fmt="osv^D"[index // 10 % 5],
      color=f"C{index % 10}",
      capsize=2,
      markersize=4,
      label=row.name,
    )
  axes.set_xscale("log", base=2)
  axes.set_yscale("log")
  axes.yaxis.set_major_formatter("{x:.4g}")
  axes.yaxis.set_minor_formatter("{x:.4g}")
  axes.xaxis.set_major_formatter("{x:g}")
  measured = "time" if is_timed else "tokens, since nothing is timed yet,"
  axes.set_xlabel(f"{measured} of training ({first.name}: 1)")
  axes.set_ylabel("perplexity")
  figure.legend(loc="outside right upper", fontsize=8)
  return figure
