"""The paper's ablation (tables 6 and 10): rows trained on equally many tokens.

    python -m transformer_xl.main --mode=ablation \
      --config=experiments/ablation_ptb.py --workdir=runs/ablation

A row is named by recurrence, encoding and loss, as in "recurrent-shaw-all" or
"segment-absolute-recent_half", and trained in a folder of that name below the
workdir. Finished rows are not trained again.
"""

import dataclasses
import json
import os
from typing import Any
from typing import NamedTuple

import jax
from absl import logging

from transformer_xl import errors
from transformer_xl.analysis import equal_memory
from transformer_xl.analysis import plotting
from transformer_xl.analysis import sliding_window
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.evaluation import units
from transformer_xl.model import transformer_xl
from transformer_xl.training import loop
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import trained_model

RECURRENCE = ("recurrent", "segment")


class Row(NamedTuple):
  """One line of the table."""

  name: str
  is_recurrent: bool
  encoding: str
  loss_on: str


def run(config: schema.ExperimentConfig, workdir: str) -> dict[str, Any]:
  """Trains and evaluates each row; writes the table after each.

  Returns:
    The content of `results/ablation.json`.

  Raises:
    UserError: a row's name is unknown.
  """
  rows = [parse(name) for name in config.analysis.rows]
  config = load.with_vocab_size(
    config, token_file.read_meta(config.data.dataset_dir)
  )
  configs = [row_config(config, row) for row in rows]
  if config.analysis.equal_memory:
    configs = _with_equal_memory(config, configs)
  results: list[dict[str, Any]] = []
  for row, row_settings in zip(rows, configs, strict=True):
    folder = os.path.join(workdir, row.name)
    logging.info("Row %s in %s.", row.name, folder)
    result = _result(row, row_settings, folder)
    if result is None:
      break  # A signal stopped training: the same command resumes here.
    results.append(result)
    _write(config, workdir, results)
  return _table(config, results)


def parse(name: str) -> Row:
  """Parses the name of a row.

  Raises:
    UserError: it does not have three parts, or one of them is unknown.
  """
  parts = name.split("-")
  choices = (
    RECURRENCE,
    schema.choices("model.encoding"),
    schema.choices("train.loss_on"),
  )
  if len(parts) != len(choices) or any(
    part not in known for part, known in zip(parts, choices, strict=True)
  ):
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
  return dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, encoding=row.encoding),
    train=dataclasses.replace(
      config.train, mem_len=mem_len, eval_mem_len=mem_len, loss_on=row.loss_on
    ),
  )


def _with_equal_memory(config, configs) -> list[schema.ExperimentConfig]:
  """Gives rows without recurrence the longest segments of equal memory."""
  budget = equal_memory.bytes_of_step(row_config(config, parse(_REFERENCE)))
  logging.info(
    "A step of the recurrent row takes %d bytes, as planned by XLA.", budget
  )
  return [
    chosen
    if chosen.train.mem_len
    else equal_memory.with_longest_segment(chosen, budget=budget)
    for chosen in configs
  ]


_REFERENCE = "recurrent-relative-all"


def _result(row, config, folder) -> dict[str, Any] | None:
  """The row's result; trains and evaluates it if that is not done yet."""
  path = os.path.join(folder, "results", "row.json")
  settings = _settings(config)
  if os.path.exists(path):
    with open(path, encoding="utf-8") as file:
      result = json.load(file)
    _check_training(result["asked"], settings, folder)
    if result["asked"] == settings:
      logging.info("Row %s is finished.", row.name)
      return result
  if not loop.train(config, folder):
    return None
  result = {**_description(row, config), **_scores(row, config, folder)}
  result["asked"] = settings
  metrics_log.write_json(path, result)
  return result


def _settings(config: schema.ExperimentConfig) -> dict[str, Any]:
  """What a result depends on, as read back from JSON."""
  settings = {
    "model": dataclasses.asdict(config.model),
    "train": dataclasses.asdict(config.train),
    "split": config.eval.split,
    "attention_lens": config.analysis.attention_lens,
  }
  return json.loads(json.dumps(settings))


def _check_training(saved, wanted, folder) -> None:
  """Raises a UserError if the row was trained with other settings."""
  for group in ("model", "train"):
    for name, value in saved[group].items():
      if wanted[group][name] != value:
        raise errors.UserError(
          f"{folder} was trained with {group}.{name}={value} and "
          f"{wanted[group][name]} is requested; use another --workdir."
        )


def _description(row, config) -> dict[str, Any]:
  train = config.train
  return {
    "name": row.name,
    "recurrence": row.is_recurrent,
    "encoding": row.encoding,
    "loss_on": row.loss_on,
    "segment_len": train.segment_len,
    "mem_len": train.mem_len,
    "tokens": train.num_steps * train.batch_size * train.segment_len,
    "learning_rate": train.learning_rate,
    "planned_bytes": equal_memory.bytes_of_step(config),
  }


def _scores(row, config, folder) -> dict[str, Any]:
  """Perplexities at training's attention length and at those of the sweep."""
  trained = config.train.segment_len + config.train.mem_len
  lengths = sorted({trained, *config.analysis.attention_lens})
  model = trained_model.load(config, folder, lanes=(config.eval.batch_size,))
  mesh, params, step = model
  with jax.set_mesh(mesh):
    sweep = []
    for length in lengths:
      score = (
        sliding_window.score
        if not row.is_recurrent
        else sliding_window.score_recurrent
      )
      try:
        found = score(params, config, mesh, attention_len=length)
      except errors.UserError as error:  # More than the learned positions.
        logging.warning("%s: %s", row.name, error)
        continue
      nll = found.nll / found.num_tokens
      sweep.append(
        {
          "attention_len": length,
          "nll": nll,
          "perplexity": units.perplexity(nll),
          "num_tokens": found.num_tokens,
        }
      )
      logging.info(
        "attention %d: perplexity %.2f", length, sweep[-1]["perplexity"]
      )
  return {
    "num_parameters": transformer_xl.num_parameters(params),
    "checkpoint_step": step,
    "init": next(one for one in sweep if one["attention_len"] == trained),
    "best": min(sweep, key=lambda one: one["nll"]),
    "sweep": sweep,
  }


def _write(config, workdir, results) -> None:
  if jax.process_index() != 0:
    return
  table = _table(config, results)
  folder = os.path.join(workdir, "results")
  metrics_log.write_json(os.path.join(folder, "ablation.json"), table)
  path = os.path.join(folder, "ablation.md")
  with open(path, "w", encoding="utf-8") as file:
    file.write(markdown(results))
  logging.info("Wrote %s.", path)
  plotting.save(
    draw(results), os.path.join(folder, "ablation.png"), table["made_by"]
  )


def _table(config, results) -> dict[str, Any]:
  return {
    "made_by": plotting.made_by(),
    "split": config.eval.split,
    "equal_memory": config.analysis.equal_memory,
    "rows": results,
  }


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
      f"| {init['perplexity']:.2f} ({init['attention_len']}) "
      f"| {best['perplexity']:.2f} | {best['attention_len']} |"
    )
  return "\n".join(lines) + "\n"


def draw(results: list[dict[str, Any]]) -> Any:
  """Plots perplexity against attention length, one line per row."""
  figure, axes = plotting.new(width=6.5, height=4.0)
  encodings = schema.choices("model.encoding")
  for row in results:
    colour = f"C{encodings.index(row['encoding'])}"
    style = "-" if row["recurrence"] else "--"
    marker = "o" if row["loss_on"] == "all" else "^"
    axes.plot(
      [one["attention_len"] for one in row["sweep"]],
      [one["perplexity"] for one in row["sweep"]],
      style,
      color=colour,
      marker=marker,
      markersize=4,
      label=_label(row),
    )
    axes.plot(
      row["init"]["attention_len"],
      row["init"]["perplexity"],
      marker,
      color=colour,
      markersize=9,
      fillstyle="none",
    )
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


def _label(row) -> str:
  recurrence = "recurrence" if row["recurrence"] else "no recurrence"
  half = "" if row["loss_on"] == "all" else ", recent half"
  return f"{row['encoding'].replace('_', ' ')}, {recurrence}{half}"
