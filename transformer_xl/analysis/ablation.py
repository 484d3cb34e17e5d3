"""The paper's ablation (tables 6 and 10): rows trained on equally many tokens.

    python -m transformer_xl.main --mode=ablation \
      --config=experiments/ablation_ptb.py --workdir=runs/ablation

A row is named by recurrence, encoding and loss, as in "recurrent-shaw-all" or
"segment-absolute-recent_half". It is evaluated at the attention length of
training ("PPL init") and at those of `config.analysis.attention_lens` ("PPL
best"). With `config.analysis.equal_memory`, rows without recurrence have longer
segments, whose training step takes as much memory as the recurrent row's.
"""

import functools
import itertools
from collections.abc import Sequence

import jax
from absl import logging
from matplotlib import figure as figure_lib

from transformer_xl import errors
from transformer_xl.analysis import comparison
from transformer_xl.analysis import context_windows
from transformer_xl.analysis import costs
from transformer_xl.analysis import equal_memory
from transformer_xl.analysis import over_seeds
from transformer_xl.analysis import plotting
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import trials
from transformer_xl.analysis import variants
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluator
from transformer_xl.model import nats
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import trained_model

# With these, each layer attends to as many keys as `mem_len`, a token's own
# included, and to nothing else.
_EXACT_LENGTH = {
  "model.same_length_window": "mem_len",
  "eval.same_length": True,
  "eval.context_len": 0,
}


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Compares rows; returns the content of `results/ablation.json`.

  A table and a picture lie beside it.

  Raises:
    UserError: a row's name is unknown, or a row cannot be trained.
  """
  return comparison.run(config, workdir, preset(config))


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError for a row that cannot be trained or measured."""
  comparison.checked_plans(config, workdir, preset(config))


def preset(config: schema.ExperimentConfig) -> comparison.Preset:
  """What is particular about the ablation of an experiment.

  Raises:
    UserError: a row's name is unknown, or the experiment has no recurrence.
  """
  return comparison.Preset(
    mode="ablation",
    is_timed=False,  # Models of the paper's size fit one at a time.
    variants=rows_of(config),
    lengths=functools.partial(
      attention_lengths, others=config.analysis.attention_lens
    ),
    measure=measure,
    choose_length=compared_length,
    about={"equal_memory": config.analysis.equal_memory},
    fields=fields,
    table=table,
    draw=draw,
  )


def rows_of(config: schema.ExperimentConfig) -> list[variants.Variant]:
  """The rows of `config.analysis.rows` as variants of the experiment.

  Raises:
    UserError: there are none, a name does not have three parts, or one of them
      is unknown.
  """
  if not config.analysis.rows:
    raise errors.UserError(
      "--mode=ablation needs rows to compare; set --config.analysis.rows, as "
      "in \"('recurrent-relative-all',)\"."
    )
  mem_len = config.train.mem_len
  rows = [parse(name, mem_len=mem_len) for name in config.analysis.rows]
  if not config.analysis.equal_memory:
    return rows
  reference = parse("recurrent-relative-all", mem_len=mem_len)
  recurrent = variants.configure(config, reference.changes)
  budget = costs.planned_bytes(recurrent.recipe, recurrent.data, recurrent.mesh)
  logging.info(
    "A step of the recurrent row takes %d bytes, as planned by XLA.", budget
  )
  result = []
  for row in rows:
    configured = variants.configure(config, row.changes)
    if not configured.train.mem_len:
      longer = equal_memory.changes(configured, budget=budget)
      row = variants.Variant(row.name, {**row.changes, **longer})
    result.append(row)
  return result


def parse(name: str, *, mem_len: int) -> variants.Variant:
  """The values of a row of a name such as "segment-shaw-recent_half".

  The experiment trains with a memory of `mem_len` tokens.

  Raises:
    UserError: the name is unknown, or the experiment has no recurrence.
  """
  if name not in _names():
    text = "-".join(f"({'|'.join(known)})" for known in _choices())
    raise errors.UserError(
      f"analysis.rows has {name!r}, which is not a row; rows are {text}."
    )
  recurrence, encoding, loss_on = name.split("-")
  changes: dict[str, object] = {
    "model.encoding": encoding,
    "train.loss_on": loss_on,
  }
  if recurrence == "segment":
    changes["train.mem_len"] = 0
  elif not mem_len:
    raise errors.UserError(
      f"analysis.rows has {name!r}, but the experiment has no recurrence with "
      "train.mem_len=0; set --config.train.mem_len."
    )
  if not registry.encodings[encoding].clamps:
    changes["train.clamp_len"] = 0
    changes["eval.clamp_len"] = 0
  return variants.Variant(name, changes)


def _choices() -> tuple[Sequence[str], ...]:
  """What the parts of a row's name can be."""
  return (
    ("recurrent", "segment"),
    schema.choices("model.encoding"),
    schema.choices("train.loss_on"),
  )


def _names() -> list[str]:
  """The names of all rows that there can be."""
  return ["-".join(parts) for parts in itertools.product(*_choices())]


def trained_length(train: schema.TrainConfig) -> int:
  """How many tokens a token attends to in training, itself included."""
  return train.context_len + train.segment_len + train.mem_len


def compared_length(train: schema.TrainConfig, losses: trials.Losses) -> int:
  """Rows are compared at the attention length of training."""
  del losses
  return trained_length(train)


def attention_lengths(
  scoring: schema.Scoring,
  train: schema.TrainConfig,
  *,
  others: Sequence[int],
) -> tuple[int, ...]:
  """The attention length of training and the `others` that can be measured.

  Raises:
    UserError: the model cannot be evaluated at the length of training.
  """
  model = scoring.model
  encoding = encodings.of(model)
  trained = trained_length(train)
  lengths = sorted({trained, *others})
  if train.mem_len:
    encoding.check_segment_len(model, train.segment_len)
    return tuple(lengths)
  split = scoring.eval.split
  file = token_file.open_split(scoring.data.dataset_dir, split)
  result = []
  for length in lengths:
    try:
      encoding.check_segment_len(model, length)
      context_windows.check_length(file, length, split)
    except errors.UserError as error:
      if length == trained:
        raise
      logging.warning("Attention length %d is left out: %s", length, error)
      continue
    result.append(length)
  return tuple(result)


def measure(
  model: trained_model.TrainedModel, lengths: Sequence[int]
) -> trials.Measurement:
  """The mean loss at each attention length.

  A model with recurrence gets it from its memory, as a window of exactly that
  length in every layer. Without recurrence a window slides over the text.
  """
  losses = {}
  for length in lengths:
    with jax.set_mesh(model.mesh):
      if model.config.train.mem_len:
        values = {
          **_EXACT_LENGTH,
          "eval.segment_len": model.config.train.segment_len,
        }
        config = load.replaced(model.config, values)
        score_split = evaluator.Evaluator(
          config.scoring, model.mesh, mem_len=length
        )
        score = score_split(model.params)
      else:
        score = context_windows.score_sliding(model, length)
    losses[length] = float(score.nll) / score.num_tokens
    logging.info(
      "attention %d: perplexity %.2f", length, nats.perplexity(losses[length])
    )
  return trials.Measurement(losses, bins={})


def fields(row: rows_lib.Row) -> metrics_log.Json:
  """The parts of the row's name, its lengths in training, and its sweep."""
  config = row.config
  split = token_file.open_split(config.data.dataset_dir, config.eval.split)
  sweep = {
    length: {
      "attention_len": length,
      "nll": nll,
      "perplexity": nats.perplexity(nll),
      "num_tokens": len(split.tokens) - 1,
    }
    for length, nll in row.nll_by_length.items()
  }
  return {
    "recurrence": config.train.mem_len > 0,
    "encoding": config.model.encoding,
    "loss_on": config.train.loss_on,
    "segment_len": config.train.segment_len,
    "mem_len": config.train.mem_len,
    "init": sweep[row.length],
    "best": min(sweep.values(), key=lambda one: one["nll"]),
    "sweep": [*sweep.values()],
  }


def table(rows: Sequence[rows_lib.Row]) -> list[dict[str, str]]:
  """The paper's table, with medians over seeds."""
  ranks = over_seeds.ranks(
    [row.over_seeds for row in rows], is_higher_better=False
  )
  lines = []
  for row, rank in zip(rows, ranks, strict=True):
    best_length = min(row.nll_by_length, key=lambda key: row.nll_by_length[key])
    best = nats.perplexity(row.nll_by_length[best_length])
    init = nats.perplexity(row.nll)
    cells = {
      "recurrence": "yes" if row.config.train.mem_len else "no",
      "encoding": row.config.model.encoding,
      "loss": row.config.train.loss_on.replace("_", " "),
    }
    if any(each.learning_rates for each in rows):
      cells["learning rate"] = rows_lib.rate_cell(row)
    cells |= {
      "parameters": f"{row.num_parameters:,}",
      "segment": f"{row.config.train.segment_len}",
      rows_lib.PLANNED: f"{row.planned_bytes / 2**20:.0f}",
      "PPL init (attention)": f"{init:.2f} ({row.length})",
      "over seeds": rows_lib.seeds_cell(
        row.over_seeds, lambda nll: f"{nats.perplexity(nll):.2f}"
      ),
      "rank": rank,
      "PPL best": f"{best:.2f}",
      "attention length": f"{best_length}",
    }
    lines.append(cells)
  return lines


@plotting.in_style
def draw(rows: Sequence[rows_lib.Row]) -> figure_lib.Figure:
  """Plots perplexity against attention length, one line per row."""
  figure, axes = plotting.subplots(figsize=(6.5, 4.0))
  known = schema.choices("model.encoding")
  # Cut what is a quarter worse, or all other lines would coincide.
  losses = [nll for row in rows for nll in row.nll_by_length.values()]
  every = [*map(nats.perplexity, losses)]
  top = min(1.01 * max(every), 1.25 * min(every))
  for row in rows:
    encoding = row.config.model.encoding
    is_recurrent = row.config.train.mem_len > 0
    on_all = row.config.train.loss_on == "all"
    label = encoding.replace("_", " ")
    label += ", recurrence" if is_recurrent else ", no recurrence"
    label += "" if on_all else ", recent half"
    if row.name not in _names():  # A variant of another size.
      label = row.name
    marker = "o" if on_all else "^"
    colour = f"C{known.index(encoding)}"
    lengths = [*row.nll_by_length]
    perplexities = [*map(nats.perplexity, row.nll_by_length.values())]
    if min(perplexities) > top:
      label += " (above)"
    style = marker + ("-" if is_recurrent else "--")
    axes.plot(
      lengths, perplexities, style, color=colour, markersize=4, label=label
    )
    axes.plot(
      [row.length],
      [nats.perplexity(row.nll)],
      marker,
      color=colour,
      markersize=9,
      fillstyle="none",
    )
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_formatter("{x:.0f}")
  axes.set_xlabel("attention length in evaluation (tokens; ring: in training)")
  axes.set_ylabel("perplexity")
  axes.set_ylim(0.99 * min(every), top)
  figure.legend(loc="outside right upper", fontsize=8)
  return figure
