"""Plans every paper configuration for TPU slices, as tables.

    python -m benchmarks.plan_table [--minutes=60] [--only=wt103_large]

Needs no TPU, only the `tpu` extra. Each plan is a line of
docs/measurements/plans.jsonl, with the versions of jax and libtpu, and hashes
of the code and the program that were planned. Compiled are only programs that
are missing there or have changed since, the most important first, so the
command can be stopped at any time. The tables are in
docs/measurements/tpu.md. Their last column has the date of a plan, and "older
code" where the code has changed since. After a change of the code,

    python -m benchmarks.plan_table --only_mark

compiles nothing and writes the tables again.
"""

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import io
import itertools
import json
import math
import pathlib
import time
import tokenize
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from absl import app
from absl import flags
from absl import logging

from benchmarks import plan_markdown
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import network
from transformer_xl.planning import plan
from transformer_xl.planning import topology as topology_lib
from transformer_xl.training import programs
from transformer_xl.workdir import trained_model

_MINUTES = flags.DEFINE_float(
  "minutes", math.inf, "Start no plan after this time."
)
_ONLY = flags.DEFINE_string("only", "", "Plan this experiment only.")
_ONLY_MARK = flags.DEFINE_bool(
  "only_mark", False, "Compile nothing; mark what older code planned."
)

ROOT = pathlib.Path(__file__).parents[1]
PLANS = ROOT / "docs/measurements/plans.jsonl"
PAGE = ROOT / "docs/measurements/tpu.md"
# These files count the cost of a compiled program.
COUNTING_CODE = (
  "transformer_xl/planning/plan.py",
  "transformer_xl/planning/hlo_cost.py",
  "transformer_xl/hardware.py",
)
# A change in these files may change a plan: they compile it, or count.
PLANNED_CODE = (
  "transformer_xl/model/**/*.py",
  "transformer_xl/training/averaging.py",
  "transformer_xl/training/optimizer.py",
  "transformer_xl/training/programs.py",
  "transformer_xl/training/rate_factors.py",
  "transformer_xl/training/step.py",
  "transformer_xl/evaluation/evaluator.py",
  "transformer_xl/mesh*.py",
  *COUNTING_CODE,
)
# Lanes per chip on every slice, chosen so that 8, 16, 32 or 64 chips have the
# published batch. The 60 lanes of wt103_base do not divide evenly; 64 do.
LANES = {
  "wt103_large": 8,
  "enwik8_large": 2,
  "lm1b_large": 8,
  "enwik8_base": 3,
  "wt103_base": 8,
  "wt103_base_aligned": 8,
  "lm1b_base": 8,
  "fine_tuning:smollm2": 1,
  "fine_tuning:smollm2_lora": 1,
  "fine_tuning:tinyllama": 1,
  "fine_tuning:tinyllama_lora": 1,
}
# Parameters are sharded over 8 chips and replicated beyond; the width 410 can
# only be halved.
FSDP = {"wt103_base": 2}
# Every configuration of the paper's sizes on v5e, text8_large as enwik8_large,
# and the two of its best results on other kinds of chips and on 256 chips,
# which shows what grows.
EVERY = (("train", "v5e:2x4"), ("eval", "v5e:2x2"))
BEST = ("wt103_large", "enwik8_large")
OF_THE_BEST = (
  ("train", "v5p:2x2x2"),
  ("train", "v6e:2x4"),
  ("train", "v5e:16x16"),
  ("eval", "v5p:2x2x1"),
  ("eval", "v6e:2x2"),
)
# The most important: do the published batch and memory fit?
FIRST = (
  ("eval", "wt103_large", "v5e:2x2"),
  ("eval", "enwik8_large", "v5e:2x2"),
  ("train", "wt103_large", "v5e:4x4"),
  ("train", "enwik8_large", "v5e:4x8"),
  ("train", "enwik8_base", "v5e:2x4"),
  ("train", "enwik8_base", "v5e:16x16"),
  ("train", "lm1b_large", "v5e:8x8"),
  ("train", "wt103_base", "v5e:2x4"),
  ("train", "wt103_base_aligned", "v5e:2x4"),
)
# Savings and costs of each rematerialisation policy; FIRST has none.
REMAT = (("wt103_large", "v5e:4x4"),)


class Row(NamedTuple):
  """A plan to make."""

  program: str  # train | eval
  experiment: str
  topology: str
  remat: str = ""  # Empty: as in the experiment.


def rows() -> list[Row]:
  """All plans, the most important first."""
  result = [Row(*first) for first in FIRST]
  policies = itertools.product(REMAT, ("attention", "dots", "full"))
  result += [Row("train", *subject, remat) for subject, remat in policies]
  for slices, experiments in ((EVERY, LANES), (OF_THE_BEST, BEST)):
    for (program, topology), name in itertools.product(slices, experiments):
      result.append(Row(program, name, topology))
  return list(dict.fromkeys(result))


def changes(row: Row, num_devices: int) -> dict[str, Any]:
  """Fields that a row changes in its experiment; the table shows them all."""
  lanes = LANES[row.experiment] * num_devices
  published = _config_dict(row.experiment).eval.batch_size
  remat = {"model.remat": row.remat} if row.remat else {}
  return {
    **remat,
    "mesh.fsdp": math.gcd(FSDP.get(row.experiment, 8), num_devices),
    "train.batch_size": lanes,
    # As published, rounded up to a multiple of the devices.
    "eval.batch_size": math.ceil(published / num_devices) * num_devices,
  }


def versions() -> dict[str, str]:
  return {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}


@functools.cache
def code_hash(experiment: str) -> str:
  """Hash of the code that a plan comes from, and of the experiment's values.

  Comments, docstrings and empty lines do not count, nor do mixers that the
  model has no layer of.
  """
  config = _config_dict(experiment)
  unused = {*registry.mixers} - {*config.model.layers, "attention"}
  digest = hashlib.sha256()
  for pattern in PLANNED_CODE:
    for path in sorted(ROOT.glob(pattern)):
      if path.parent.name != "mixers" or path.stem not in unused:
        digest.update(_code(path))
  for group in ("model", "train", "eval", "mesh"):
    digest.update(config[group].to_json(sort_keys=True).encode())
  return digest.hexdigest()[:16]


def program_hash(row: Row) -> str:
  """Hash of a row's program, before it is compiled, and of what counts it.

  Code can change and leave the program as it was, and so the plan.
  """
  config, devices = subject(row)
  mesh = mesh_of(row, config, devices)
  if row.program == "train":
    lowered = plan.lower_updates(
      config.recipe, config.data, mesh, count=config.updates_per_call
    )
  else:
    lowered = plan.lower_evaluation(config.scoring, mesh)
  digest = hashlib.sha256(lowered.as_text().encode())
  for name in COUNTING_CODE:
    digest.update(_code(ROOT / name))
  return digest.hexdigest()[:16]


def _code(path: pathlib.Path) -> bytes:
  """A file's name and its code, as hashes read them."""
  name = str(path.relative_to(ROOT))
  return (name + _without_prose(path.read_text("utf-8"))).encode()


@functools.cache  # Every experiment is compiled from the same files.
def _without_prose(source: str) -> str:
  """Python code without comments, docstrings and empty lines.

  Cut out of the text, since every version of Python has trees and tokens of its
  own.
  """
  lines = source.splitlines()
  for node in ast.walk(ast.parse(source)):
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    if isinstance(node, documented) and ast.get_docstring(node):
      first = node.body[0]
      for index in range(first.lineno - 1, first.end_lineno or first.lineno):
        lines[index] = ""
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      row, column = token.start
      lines[row - 1] = lines[row - 1][:column]
  return "\n".join(line.rstrip() for line in lines if line.strip())


def stored() -> list[dict[str, Any]]:
  """The plans of rows that are stored, and whether today's code made them."""
  lines = [json.loads(line) for line in PLANS.read_text("utf-8").splitlines()]
  wanted = set(rows())
  return [
    {**line, "is_current": line.get("code") == code_hash(line["experiment"])}
    for line in lines
    if row_of(line) in wanted
  ]


def missing(only: str) -> Iterator[Row]:
  """Rows without a plan by today's code and the installed versions."""
  installed = versions()
  have = {
    row_of(line)
    for line in stored()
    if line["is_current"]
    and all(line[name] == installed[name] for name in installed)
  }
  for row in rows():
    if only in ("", row.experiment) and row not in have:
      yield row


def store(new: dict[str, Any]) -> None:
  """Adds a plan, in place of an older one of the same row."""
  lines = [line for line in stored() if row_of(line) != row_of(new)]
  for line in lines:
    del line["is_current"]
  text = "".join(json.dumps(line) + "\n" for line in [*lines, new])
  # A command that is stopped leaves the old file or the new one.
  written = PLANS.with_suffix(".new")
  written.write_text(text, "utf-8")
  written.replace(PLANS)


def row_of(line: dict[str, Any]) -> Row:
  return Row(**{name: line[name] for name in Row._fields if name in line})


def subject(row: Row) -> tuple[schema.ExperimentConfig, list[jax.Device]]:
  """What a row plans: a configuration, for these devices."""
  devices = topology_lib.slice_devices(row.topology)
  values = _config_dict(row.experiment)
  values.update_from_flattened_dict(changes(row, len(devices)))
  return load.from_config_dict(values), devices


def mesh_of(
  row: Row, config: schema.ExperimentConfig, devices: list[jax.Device]
) -> jax.sharding.Mesh:
  """The mesh of a row's program."""
  if row.program == "train":
    return programs.make_mesh(config.recipe, config.mesh, devices=devices)
  return trained_model.make_mesh(config.model, config.mesh, devices=devices)


def line_for(row: Row) -> dict[str, Any]:
  """The stored line if its program has not changed, or else a new plan."""
  program = program_hash(row)
  today = {"code": code_hash(row.experiment), "program_hash": program}
  for line in stored():
    is_same = row_of(line) == row and line.get("program_hash") == program
    if is_same and line.items() >= versions().items():
      del line["is_current"]
      return line | today
  return planned(row) | today


def planned(row: Row) -> dict[str, Any]:
  """Compiles one program; returns a line of the file without its hashes."""
  config, devices = subject(row)
  published = _config_dict(row.experiment).train
  num_tokens = published.num_steps * published.batch_size
  params = network.abstract_params(config.model)
  mesh = mesh_of(row, config, devices)
  if row.program == "train":
    found = plan.train_plan(
      config.recipe, config.data, mesh, count=config.updates_per_call
    )
  else:
    found = plan.eval_plan(config.scoring, mesh)
  return {
    **row._asdict(),
    **versions(),
    "changes": changes(row, len(devices)),
    "date": time.strftime("%Y-%m-%d"),
    "num_parameters": network.num_parameters(params),
    "num_chips": len(devices),
    "capacity": list(config.model.cluster_capacities),
    "published_tokens": num_tokens * config.train.segment_len,
    "plan": found,
  }


def _config_dict(experiment: str) -> Any:
  """The values of an experiment, whose argument may follow a colon."""
  name, _, argument = experiment.partition(":")
  module = importlib.import_module(f"transformer_xl.experiments.{name}")
  return module.get_config(*filter(None, [argument]))


def main(argv: list[str]) -> None:
  del argv
  if not _ONLY_MARK.value:
    topology_lib.compile_only()
    # Programs do not say which lines of the code they come from.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    start = time.monotonic()
    for row in missing(_ONLY.value):
      if time.monotonic() - start > 60 * _MINUTES.value:
        logging.info("Time is up; run the same command to continue.")
        break
      logging.info("Planning %s.", " ".join(row))
      store(line_for(row))
  plan_markdown.write(PAGE, plan_markdown.tables(stored()))


if __name__ == "__main__":
  app.run(main)
