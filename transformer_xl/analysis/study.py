r"""Variants of an experiment at equal tokens and at equal time; `--mode=study`.

    python -m transformer_xl.main --mode=study \
      --config=experiments/beyond.py:gradient_segments --workdir=runs/study

A variant of `config.analysis.variants` is "NAME: FIELD=VALUE; FIELD=VALUE", the
first being what the others are compared with. Each is trained with each of
`config.analysis.seeds` and evaluated at each of its `eval.mem_len`. Finished
ones are not trained again.

Time is measured side by side: an update of every variant in turn. At equal
time a variant is compared with the loss of the first one after as many tokens
as that one reads meanwhile. For this, variants that change `train.num_steps`
alone give its loss by tokens.
"""

import ast
import functools
import math
import os
import statistics
from typing import Any
from typing import NamedTuple

import jax
import numpy as np
from absl import logging

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.analysis import plotting
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import training_cost
from transformer_xl.config import load
from transformer_xl.config import rules
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import units
from transformer_xl.model import network

_STEPS = "train.num_steps"


class Variant(NamedTuple):
  """One line of the table."""

  name: str
  changes: dict[str, Any]  # Values by path, such as "train.mem_len".


def run(config: schema.ExperimentConfig, workdir: str) -> dict[str, Any]:
  """Trains and evaluates variants; returns the content of `results/NAME.json`.

  NAME is `config.analysis.table`; a table and a figure lie beside it.

  Raises:
    UserError: a variant is not one, or its values are not allowed.
  """
  variants = [parse(text) for text in config.analysis.variants]
  if not variants:
    raise errors.UserError(
      "--mode=study needs variants to compare; set --config.analysis.variants "
      "or name a study, as in --config=experiments/beyond.py:encodings."
    )
  names = [one.name for one in variants]
  if len({*names}) < len(names):
    raise errors.UserError(f"two analysis.variants have one name: {names}.")
  meta = token_file.read_meta(config.data.dataset_dir)
  config = load.with_vocab_size(config, meta)
  configs = [load.changed(config, one.changes) for one in variants]
  for changed in configs:
    rules.check_command(changed, "study")
  found = []
  for variant, changed in zip(variants, configs, strict=True):
    results = _of_seeds(variant, changed, workdir)
    if results is None:
      return {}  # A signal stopped training: the same command resumes here.
    found.append(results)
  costs = _costs(config, variants)
  rows = [
    _row(variant, results, cost, costs[0])
    for variant, results, cost in zip(variants, found, costs, strict=True)
  ]
  compare(rows)
  result = {
    "made_by": plotting.made_by(),
    "dataset": config.data.name,
    "split": config.eval.split,
    "device": jax.devices()[0].device_kind,
    "seeds": [*config.analysis.seeds] or [config.seed],
    "rows": rows,
  }
  table = config.analysis.table
  plotting.write(workdir, table, result, {table: draw(result)})
  if jax.process_index() == 0:
    path = os.path.join(storage.local(workdir), "results", f"{table}.md")
    storage.write_text(path, markdown(rows))
    logging.info("Wrote %s/results/%s.md.", workdir, table)
  return result


def parse(text: str) -> Variant:
  """Parses "NAME: FIELD=VALUE; FIELD=VALUE"; values are literals or words.

  Raises:
    UserError: the text is not of this form, or a name is not one of a folder.
  """
  name, colon, rest = text.partition(":")
  pairs = [one.partition("=") for one in rest.split(";") if one.strip()]
  is_name = name.replace("-", "").replace("_", "").replace(".", "").isalnum()
  paths = [field.strip() for field, _, _ in pairs]
  if "seed" in paths:
    raise errors.UserError(
      f"analysis.variants has {text!r}, but every variant has the same seeds; "
      "set --config.analysis.seeds."
    )
  if not (colon and is_name and all(path in schema.FIELDS for path in paths)):
    raise errors.UserError(
      f"analysis.variants has {text!r}, which is not 'NAME: FIELD=VALUE; "
      "FIELD=VALUE' with the fields of --help; an example is 'long: "
      "train.mem_len=256; eval.mem_len=256'."
    )
  return Variant(
    name, {path: _value(one[2]) for path, one in zip(paths, pairs, strict=True)}
  )


def _value(text: str) -> Any:
  try:
    return ast.literal_eval(text.strip())
  except (SyntaxError, ValueError):  # A word, such as an encoding.
    return text.strip()


def _of_seeds(variant, config, workdir) -> list[dict[str, Any]] | None:
  """The results of a variant with each seed; None if training was stopped."""
  results = []
  for seeded, folder in rows_lib.with_seeds(config, workdir, variant.name):
    logging.info("Variant %s in %s.", variant.name, folder)
    found = rows_lib.result(
      *(seeded, folder),
      asked={"mem_len": config.eval.mem_len},
      describe=functools.partial(_described, seeded, folder),
    )
    if found is None:
      return None
    results.append(found)
  return results


def _described(config, folder) -> dict[str, Any]:
  """Size, cost and losses of a trained model."""
  subject = evaluate.load(config, folder)
  cards = evaluate.evaluate(subject)
  per_update = segment_lengths.tokens_per_update(config)
  return {
    "seed": config.seed,
    "num_parameters": network.num_parameters(subject.params),
    "tokens": round(config.train.num_steps * per_update),
    "nll": {str(card["mem_len"]): card["nll"] for card in cards},
  }


def _costs(config, variants) -> list[training_cost.Cost]:
  """The cost of each variant.

  Those that differ in `train.num_steps` alone share one measurement.
  """
  plain = []
  for variant in variants:
    others = {
      path: value for path, value in variant.changes.items() if path != _STEPS
    }
    plain.append(load.changed(config, others))
  costs = training_cost.measure({*plain})
  return [costs[one] for one in plain]


def _row(variant, results, cost, first) -> dict[str, Any]:
  """The mean of the seeds; spread is the highest less the lowest loss."""
  by_memory = {
    length: [one["nll"][length] for one in results]
    for length in results[0]["nll"]
  }
  means = {key: statistics.fmean(each) for key, each in by_memory.items()}
  best = min(means, key=lambda key: means[key])
  return {
    "name": variant.name,
    "changes": variant.changes,
    "num_parameters": results[0]["num_parameters"],
    "tokens": results[0]["tokens"],
    "planned_bytes": cost.num_bytes,
    "seconds_per_token": cost.seconds_per_token,
    "relative_seconds": cost.seconds_per_token / first.seconds_per_token,
    "mem_len": int(best),
    "nll": means[best],
    "spread": max(by_memory[best]) - min(by_memory[best]),
    "nll_by_memory": means,
    "nll_by_seed": by_memory,
  }


def compare(rows: list[dict[str, Any]]) -> None:
  """Adds each row's differences to the first one, in nats per token.

  `at_equal_tokens` and `at_equal_time` are None where there is nothing to
  compare with; `is_noise` where the former is below the spread of the seeds.
  """
  base, *_ = rows
  curve = {
    row["tokens"]: row["nll"] for row in rows if {*row["changes"]} <= {_STEPS}
  }
  tokens = np.array(sorted(curve), float)
  losses = np.array([curve[int(count)] for count in tokens])
  for row in rows:
    is_equal = row["tokens"] == base["tokens"]
    row["at_equal_tokens"] = row["nll"] - base["nll"] if is_equal else None
    meanwhile = row["tokens"] * row["relative_seconds"]
    reached = None
    if tokens[0] <= meanwhile <= tokens[-1]:
      # Losses fall about linearly with the logarithm of the tokens.
      at = np.log(meanwhile), np.log(tokens), losses
      reached = row["nll"] - float(np.interp(*at))
    row["at_equal_time"] = reached
    spread = max(row["spread"], base["spread"])
    row["is_noise"] = is_equal and abs(row["at_equal_tokens"]) <= spread


def markdown(rows: list[dict[str, Any]]) -> str:
  """Perplexity by memory, and what it gains over the first row in per cent."""
  lengths = sorted({int(key) for row in rows for key in row["nll_by_memory"]})
  heads = ["variant", "parameters", "tokens", "planned MiB", "time a token"]
  heads += [f"PPL, memory {length}" for length in lengths]
  heads += ["spread", "at equal tokens", "at equal time"]
  lines = [heads]
  for row in rows:
    line = [row["name"], f"{row['num_parameters']:,}", f"{row['tokens']:,}"]
    line.append(f"{row['planned_bytes'] / 2**20:.0f}")
    line.append(f"{row['relative_seconds']:.2f}")
    for length in lengths:
      nll = row["nll_by_memory"].get(str(length))
      text = "" if nll is None else f"{units.perplexity(nll):.1f}"
      line.append(f"**{text}**" if length == row["mem_len"] else text)
    line.append(f"{100 * math.expm1(row['spread']):.1f} %")
    line.append(_percent(row["at_equal_tokens"], row["is_noise"]))
    line.append(_percent(row["at_equal_time"], is_noise=False))
    lines.append(line)
  return rows_lib.markdown(lines)


def _percent(difference: float | None, is_noise: bool) -> str:
  """The change of perplexity that a difference of losses is."""
  if not difference:  # Also the first row's, to itself.
    return ""
  return f"{100 * math.expm1(difference):+.1f} %" + " (noise)" * is_noise


@plotting.in_style
def draw(result: dict[str, Any]) -> Any:
  """Plots each variant's loss by time, with the first one's curve."""
  rows = result["rows"]
  figure, axes = plotting.subplots(figsize=(6.5, 3.6))
  first = rows[0]["tokens"]

  def time_of(row):
    return row["tokens"] * row["relative_seconds"] / first

  curve = [row for row in rows if {*row["changes"]} <= {_STEPS}]
  curve.sort(key=time_of)
  points = [(time_of(row), units.perplexity(row["nll"])) for row in curve]
  axes.plot(*zip(*points, strict=True), "k.-", label=rows[0]["name"])
  for index, row in enumerate(row for row in rows if row not in curve):
    each = row["nll_by_seed"][str(row["mem_len"])]
    low, middle, high = map(
      units.perplexity, (min(each), row["nll"], max(each))
    )
    axes.errorbar(
      *([time_of(row)], [middle]),
      yerr=[[middle - low], [high - middle]],
      fmt="osv^D"[index // 10 % 5],
      color=f"C{index % 10}",
      capsize=2,
      markersize=4,
      label=row["name"],
    )
  axes.set_xscale("log", base=2)
  axes.set_yscale("log")
  axes.yaxis.set_major_formatter("{x:.0f}")
  axes.yaxis.set_minor_formatter("{x:.0f}")
  axes.xaxis.set_major_formatter("{x:g}")
  axes.set_xlabel(f"time of training ({rows[0]['name']}: 1)")
  axes.set_ylabel("perplexity")
  figure.legend(loc="outside right upper", fontsize=8)
  return figure
