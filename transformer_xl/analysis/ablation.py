"""The paper's ablation (tables 6 and 10): rows trained on equally many tokens.

    python -m transformer_xl.main --mode=ablation \
      --config=experiments/ablation_ptb.py --workdir=runs/ablation

A row is named by recurrence, encoding and loss, as in "recurrent-shaw-all" or
"segment-absolute-recent_half", and trained in a folder of that name below the
workdir. Finished rows are not trained again. With several
`config.analysis.seeds` a row is the mean of its runs, each in the folder of the
row below a folder of the seed, as in "seed_1/recurrent-shaw-all".
"""

import functools
import itertools
import math
import os
import statistics
from typing import Any
from typing import NamedTuple

import jax
from absl import logging

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.analysis import context_windows
from transformer_xl.analysis import equal_memory
from transformer_xl.analysis import plotting
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.config import load
from transformer_xl.config import memory_rules
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import evaluator
from transformer_xl.evaluation import units
from transformer_xl.model import network


class Row(NamedTuple):
  """One line of the table."""

  name: str
  is_recurrent: bool
  encoding: str
  loss_on: str


def run(config: schema.ExperimentConfig, workdir: str) -> dict[str, Any]:
  """Trains and evaluates rows; returns `results/ablation.json`, their table.

  Raises:
    UserError: a row's name is unknown.
  """
  rows = [parse(name) for name in config.analysis.rows]
  meta = token_file.read_meta(config.data.dataset_dir)
  config = load.with_vocab_size(config, meta)
  configs = [row_config(config, row) for row in rows]
  if config.analysis.equal_memory:
    reference = row_config(config, parse("recurrent-relative-all"))
    budget = equal_memory.bytes_of_step(reference)
    logging.info(
      "A step of the recurrent row takes %d bytes, as planned by XLA.", budget
    )
    lengthen = functools.partial(
      equal_memory.with_longest_segment, budget=budget
    )
    configs = [one if one.train.mem_len else lengthen(one) for one in configs]
  table: dict[str, Any] = {
    "made_by": plotting.made_by(),
    "split": config.eval.split,
    "equal_memory": config.analysis.equal_memory,
    "rows": [],
  }
  for row, settings in zip(rows, configs, strict=True):
    result = _of_seeds(row, settings, workdir)
    if result is None:
      break  # A signal stopped training: the same command resumes here.
    table["rows"].append(result)
    figures = {"ablation": draw(table["rows"])}
    plotting.write(workdir, "ablation", table, figures)
    path = os.path.join(storage.local(workdir), "results", "ablation.md")
    if jax.process_index() == 0:
      storage.write_text(path, markdown(table["rows"]))
      logging.info("Wrote %s/results/ablation.md.", workdir)
  return table


def parse(name: str) -> Row:
  """Parses the name of a row.

  Raises:
    UserError: it does not have three parts, or one of them is unknown.
  """
  fields = ("model.encoding", "train.loss_on")
  choices = (("recurrent", "segment"), *map(schema.choices, fields))
  parts = tuple(name.split("-"))
  if parts not in itertools.product(*choices):
    text = "-".join(f"({'|'.join(known)})" for known in choices)
    raise errors.UserError(
      f"analysis.rows has {name!r}, which is not a row; rows are {text}."
    )
  return Row(name, parts[0] == "recurrent", parts[1], parts[2])


def row_config(
  config: schema.ExperimentConfig, row: Row
) -> schema.ExperimentConfig:
  """Returns the experiment with a row's recurrence, encoding and loss."""
  mem_len = config.train.mem_len if row.is_recurrent else 0
  values = {
    "model.encoding": row.encoding,
    "train.mem_len": mem_len,
    "train.loss_on": row.loss_on,
  }
  return load.replaced(config, values)


def _of_seeds(row, config, workdir) -> dict[str, Any] | None:
  """The row's result, the mean over `analysis.seeds` if there are some."""
  results = []
  for seeded, folder in rows_lib.with_seeds(config, workdir, row.name):
    logging.info("Row %s in %s.", row.name, folder)
    found = _result(row, seeded, folder)
    if found is None:
      return None
    results.append(found)
  return mean(results) if config.analysis.seeds else results[0]


def mean(results: list[dict[str, Any]]) -> dict[str, Any]:
  """Results of one row with several seeds as one, losses averaged.

  `spread` is the range of the seeds' losses at training's attention length,
  in nats.
  """
  first, init_len = results[0], results[0]["init"]["attention_len"]
  sweep = []
  for each in zip(*(one["sweep"] for one in results), strict=True):
    nll = statistics.fmean(one["nll"] for one in each)
    changed = {"nll": nll, "perplexity": units.perplexity(nll)}
    sweep.append(each[0] | changed)
  losses = [one["init"]["nll"] for one in results]
  return first | {
    "seeds": len(results),
    "spread": max(losses) - min(losses),
    **_extremes(sweep, init_len),
  }


def _result(row, config, folder) -> dict[str, Any] | None:
  """The row's result; trains and evaluates it if that is not done yet."""
  train = config.train
  per_update = segment_lengths.tokens_per_update(config)

  def describe():
    return {
      "name": row.name,
      "recurrence": row.is_recurrent,
      "encoding": row.encoding,
      "loss_on": row.loss_on,
      "segment_len": train.segment_len,
      "mem_len": train.mem_len,
      "tokens": round(train.num_steps * per_update),
      "learning_rate": train.learning_rate,
      "planned_bytes": equal_memory.bytes_of_step(config),
      **_scores(row, config, folder),
    }

  asked = {"attention_lens": config.analysis.attention_lens}
  return rows_lib.result(config, folder, asked=asked, describe=describe)


def _scores(row, config, folder) -> dict[str, Any]:
  """Perplexities at training's attention length and at those of the sweep."""
  trained = config.train.segment_len + config.train.mem_len
  lengths = sorted({trained, *config.analysis.attention_lens})
  score = _with_memory if row.is_recurrent else context_windows.score_sliding
  subject = evaluate.load(config, folder)
  sweep: list[dict[str, Any]] = []
  for length in lengths:
    try:
      with jax.set_mesh(subject.mesh):
        found = score(subject, length)
    except errors.UserError as error:  # More than the learned positions.
      logging.warning("%s: %s", row.name, error)
      continue
    nll = found.nll / found.num_tokens
    perplexity = units.perplexity(nll)
    logging.info("attention %d: perplexity %.2f", length, perplexity)
    sweep.append(
      {
        "attention_len": length,
        "nll": nll,
        "perplexity": perplexity,
        "num_tokens": found.num_tokens,
      }
    )
  return {
    "num_parameters": network.num_parameters(subject.params),
    "checkpoint_step": subject.step,
    **_extremes(sweep, trained),
  }


def _extremes(sweep, trained) -> dict[str, Any]:
  """The sweep with its losses at training's length and at the best one."""
  return {
    "init": next(one for one in sweep if one["attention_len"] == trained),
    "best": min(sweep, key=lambda one: one["nll"]),
    "sweep": sweep,
  }


def _with_memory(subject, attention_len) -> evaluator.Score:
  """Scores with memory; a token's own key is one of `attention_len`."""
  values = {
    **memory_rules.EXACT_LENGTH,
    "eval.segment_len": subject.config.train.segment_len,
  }
  config = load.replaced(subject.config, values)
  score = evaluator.Evaluator(config, subject.mesh, mem_len=attention_len)
  return score(subject.params)


def markdown(results: list[dict[str, Any]]) -> str:
  """The paper's table as Markdown."""
  lines = [
    "| recurrence | encoding | loss | parameters | segment | planned MiB "
    "| PPL init (attention) | PPL best | attention length |",
    "|---|---|---|---|---|---|---|---|---|",
  ]
  for row in results:
    init, best = row["init"], row["best"]
    lines.append(
      f"| {'yes' if row['recurrence'] else 'no'} | {row['encoding']} "
      f"| {row['loss_on'].replace('_', ' ')} | {row['num_parameters']:,} "
      f"| {row['segment_len']} | {row['planned_bytes'] / 2**20:.0f} "
      f"| {init['perplexity']:.2f}{_spread(row)} ({init['attention_len']}) "
      f"| {best['perplexity']:.2f} | {best['attention_len']} |"
    )
  return "\n".join(lines) + "\n"


def _spread(row) -> str:
  """Half the range of the seeds' perplexities, if there are several."""
  if "spread" not in row:
    return ""
  return f" ± {row['init']['perplexity'] * math.sinh(row['spread'] / 2):.2f}"


@plotting.in_style
def draw(results: list[dict[str, Any]]) -> Any:
  """Plots perplexity against attention length, one line per row."""
  figure, axes = plotting.subplots(figsize=(6.5, 4.0))
  encodings = schema.choices("model.encoding")

  def line(points, *style, **options):
    lengths = [one["attention_len"] for one in points]
    perplexities = [one["perplexity"] for one in points]
    axes.plot(lengths, perplexities, *style, **options)

  for row in results:
    colour = f"C{encodings.index(row['encoding'])}"
    marker = "o" if row["loss_on"] == "all" else "^"
    style = f"{marker}-" if row["recurrence"] else f"{marker}--"
    encoding = row["encoding"].replace("_", " ")
    recurrence = "recurrence" if row["recurrence"] else "no recurrence"
    half = "" if row["loss_on"] == "all" else ", recent half"
    label = f"{encoding}, {recurrence}{half}"
    line(row["sweep"], style, color=colour, markersize=4, label=label)
    line([row["init"]], marker, color=colour, markersize=9, fillstyle="none")
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_formatter("{x:.0f}")
  axes.set_xlabel("attention length in evaluation (tokens; ring: in training)")
  axes.set_ylabel("perplexity")
  # Cut what is a quarter worse, or all other lines would coincide.
  lowest = min(row["best"]["perplexity"] for row in results)
  highest = max(one["perplexity"] for row in results for one in row["sweep"])
  axes.set_ylim(0.99 * lowest, min(1.01 * highest, 1.25 * lowest))
  figure.legend(loc="outside right upper", fontsize=8)
  return figure
