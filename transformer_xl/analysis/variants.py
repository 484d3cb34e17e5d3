"""Variants of an experiment: a name, and the values that each one changes."""

import ast
import dataclasses
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl.analysis import rate_search
from transformer_xl.config import load
from transformer_xl.config import rules
from transformer_xl.config import schema
from transformer_xl.config import suggestions
from transformer_xl.data import segment_lengths
from transformer_xl.data import token_file
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.training import loop
from transformer_xl.training import programs

# A variant's name is also that of its folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# What variants cannot change, and the field to set instead.
_SHARED = {
  "seed": "analysis.seeds",
  "analysis.seeds": "analysis.seeds",
  "eval.split": "analysis.split",
  "analysis.split": "analysis.split",
}


class Variant(NamedTuple):
  """One line of the table."""

  name: str  # Also of the folder that it is trained in.
  changes: Mapping[str, object]  # Values by path, such as "train.mem_len".


class Trial(NamedTuple):
  """One training run: a variant with a learning rate and a seed."""

  config: schema.ExperimentConfig
  folder: str


def parse(text: str) -> Variant:
  """Parses "NAME: FIELD=VALUE; FIELD=VALUE"; values are literals or words.

  Raises:
    UserError: the text is not of this form, or a name is not one of a folder.
  """
  name, colon, rest = text.partition(":")
  changes: dict[str, object] = {}
  for pair in rest.split(";"):
    if not pair.strip():
      continue
    path, _, value = pair.partition("=")
    path = path.strip().removeprefix("config.")  # As in a flag.
    try:
      changes[path] = ast.literal_eval(value.strip())
    except (SyntaxError, ValueError):  # A word, such as an encoding.
      changes[path] = value.strip()
  for path, flag in _SHARED.items():
    if path in changes:
      raise errors.UserError(
        f"analysis.variants has {text!r}, but all variants share {path}; set "
        f"--config.{flag}."
      )
  known = schema.all_fields()
  unknown = [path for path in changes if path and path not in known]
  if colon and unknown:
    raise errors.UserError(
      f"analysis.variants has {text!r}, but there is no field "
      f"{unknown[0]}{suggestions.hint(unknown[0])}"
    )
  for path in changes:
    if path in known and known[path].names in ("code", "file"):
      raise errors.UserError(
        f"analysis.variants has {text!r}, but {path} changes nothing that is "
        f"trained; set --config.{path} for all variants."
      )
  is_named = bool(colon) and _NAME.fullmatch(name) is not None
  if not is_named or "" in changes:
    raise errors.UserError(
      f"analysis.variants has {text!r}, which is not 'NAME: FIELD=VALUE; "
      "FIELD=VALUE' with the fields of --help; examples are 'long: "
      "train.mem_len=256; eval.mem_len=256', and 'base: ' without a change."
    )
  return Variant(name, changes)


def configure(
  config: schema.ExperimentConfig, changes: Mapping[str, object]
) -> schema.ExperimentConfig:
  """The experiment with a variant's values, ready to be trained.

  It is measured on `analysis.split`. The size of the vocabulary is that of the
  data. A dtype of `auto` is that of the experiment, or else the one that these
  devices are fast with.

  Raises:
    UserError: a value is not allowed.
  """
  dtype = config.model.dtype
  if dtype == "auto":
    dtype = hardware.fast_dtype()
  config = load.changed(config, dict(changes))
  config = load.replaced(config, {"eval.split": config.analysis.split})
  if config.model.dtype == "auto":
    config = load.replaced(config, {"model.dtype": dtype})
  meta = token_file.read_meta(config.data.dataset_dir)
  return load.with_vocab_size(config, meta)


def start_rates(
  analysis: schema.AnalysisConfig, *, own: float
) -> tuple[float, ...]:
  """The learning rates that a variant is trained with, or that come first.

  By default they are its `own` one, or some around it.

  Raises:
    UserError: there are more of them than may be tried.
  """
  most = analysis.max_learning_rates
  rates = tuple(dict.fromkeys(analysis.learning_rates))
  if not rates:
    rates = rate_search.around(own) if most else (own,)
  if most and most < len(rates):
    raise errors.UserError(
      f"analysis.max_learning_rates={most} is less than the {len(rates)} "
      f"learning rates to start with, {rates}; set it to {len(rates)} or more, "
      "such as 6, or to 0 for no others."
    )
  return rates


def seeds(analysis: schema.AnalysisConfig, *, own: int) -> tuple[int, ...]:
  """The seeds that a variant is trained with, by default its `own` one."""
  return tuple(dict.fromkeys(analysis.seeds)) or (own,)


def trial(
  config: schema.ExperimentConfig,
  name: str,
  workdir: str,
  *,
  rate: float,
  seed: int,
) -> Trial:
  """The run of a variant with a learning rate and a seed.

  It is in WORKDIR/rate_RATE/seed_SEED/NAME, where a part is left out if the
  configuration asks for no rates, or no seeds.
  """
  parts = [workdir]
  if config.analysis.learning_rates or config.analysis.max_learning_rates:
    parts.append(f"rate_{rate}")
  if config.analysis.seeds:
    parts.append(f"seed_{seed}")
  changed = load.replaced(config, {"train.learning_rate": rate})
  changed = dataclasses.replace(changed, seed=seed)
  return Trial(changed, os.path.join(*parts, name))


def chooses_rate(analysis: schema.AnalysisConfig) -> bool:
  """Whether the validation split chooses among several learning rates."""
  return len({*analysis.learning_rates}) > 1 or analysis.max_learning_rates > 0


def measured_splits(analysis: schema.AnalysisConfig) -> list[str]:
  """The splits that a variant is measured on.

  The validation split is one of them if it chooses among learning rates.
  """
  if chooses_rate(analysis):
    return ["valid", analysis.split]
  return [analysis.split]


def check(config: schema.ExperimentConfig, *, mode: str) -> None:
  """Raises a UserError for a variant that could not be trained and measured.

  It asks for all that would otherwise be found out after other variants have
  been trained: rules, mesh, patterns of parameters, and lengths of splits.
  """
  rules.check_command(config, mode)
  programs.make_mesh(config.recipe, config.mesh)
  loop.open_stream(config.recipe, config.data)
  splits = measured_splits(config.analysis)
  if config.train.eval_every_steps:
    splits.append("valid")
  for split in splits:
    token_file.open_split(config.data.dataset_dir, split)
  encoding = encodings.of(config.model)
  trained_len = segment_lengths.longest_read(config.train)
  encoding.check_segment_len(config.model, trained_len)
  if config.train.eval_every_steps:
    encoding.check_segment_len(config.model, config.eval.read_len)
