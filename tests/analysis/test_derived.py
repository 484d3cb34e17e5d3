"""Configurations that programs derive from others are read as they are trained.

Rows of the ablation, variants of studies, longer segments at equal memory and
smaller plans, of every experiment. Each trains at a learning rate of 0 on a
text that is every split at once, so validation has to find the losses that
training had. `test_vanilla` has the twins, and tests of the analyses have the
members of a group.
"""

import functools
import importlib
import json
import operator

import numpy as np
import pytest

from tests import kinds
from tests import oracles
from tests.analysis import test_vanilla
from tests.config import test_experiments
from transformer_xl.analysis import ablation
from transformer_xl.analysis import equal_memory
from transformer_xl.analysis import variants
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.evaluation import evaluate
from transformer_xl.model import visibility
from transformer_xl.planning import plan
from transformer_xl.training import loop

same_text = test_vanilla.same_text
LANES = test_vanilla.LANES
SEGMENT = test_vanilla.SEGMENT
NUM_SEGMENTS = test_vanilla.NUM_SEGMENTS
# What decides how text is read. All else is that of a tiny model.
KEPT = (
  *("model.layers", "model.encoding", "model.untie_biases", "model.pre_norm"),
  *("model.memory_start", "model.same_length_window"),
  *("model.remat", "data.reset_at_documents"),
  *(
    f"model.{name}.{field}"
    for name in (*registry.mixers, *registry.encodings)
    for field in oracles.get(name, "NO_SIZES", ())
  ),
  *("train.gradient_segments", "train.same_length", "train.loss_on"),
  *("train.accumulation_steps", "eval.same_length"),
)
# They shrink as segments do.
LENGTHS = (
  *("train.mem_len", "train.context_len", "train.clamp_len"),
  *("eval.clamp_len", "eval.context_len"),
)
# Smaller plans change the same fields of all experiments. These are without
# memory, with it, and with several segments in an update.
SHRUNK = ("ptb_published", "wt103_base", "recall")
# `make test-rest` has all.
SOME = (
  "row segment-relative-all of enwik8_base",
  "variant compressive",
)


def reduced(
  config: schema.ExperimentConfig, factor: float
) -> schema.ExperimentConfig:
  """A configuration at the size of a test, which reads the text once."""
  values = {name: operator.attrgetter(name)(config) for name in KEPT}
  for name in LENGTHS:
    values[name] = round(operator.attrgetter(name)(config) / factor)
  segment_len = round(config.train.segment_len / factor)
  per_update = LANES * segment_len * config.train.gradient_segments
  num_steps = LANES * SEGMENT * NUM_SEGMENTS // per_update
  values |= {
    "model.num_layers": max(2, len(config.model.layers)),
    **{
      f"model.{field}": value
      for name in registry.mixers
      for field, value in kinds.own_fields(name).items()
      if f"model.{field}" not in KEPT
    },
    "train.segment_len": segment_len,
    "train.num_steps": num_steps,
    "train.eval_every_steps": num_steps,
    "checkpoint.every_steps": num_steps,
    # Lengths of evaluation may be others; which, its cards say.
    "eval.segment_len": segment_len,
    "eval.mem_len": (values["train.mem_len"],),
    "eval.warmup_len": 0,  # Lanes of training start without a memory.
  }
  return load.changed(tiny_config(), values)


@functools.cache
def tiny_config() -> schema.ExperimentConfig:
  """The sizes of a test."""
  config = load.default()
  config.update_from_flattened_dict(
    {**test_vanilla.TINY, "model.dropout_rate": 0}
  )
  return load.from_config_dict(config)


def named(text: str) -> schema.ExperimentConfig:
  """The experiment of a name such as "memory_suite:mqar"."""
  name, _, study = text.partition(":")
  get_config = importlib.import_module(
    f"transformer_xl.experiments.{name}"
  ).get_config
  config = get_config(study) if study else get_config()
  config.model.vocab_size = config.model.vocab_size or 256
  return load.from_config_dict(config)


@functools.cache
def derivations() -> dict[str, schema.ExperimentConfig]:
  """Reduced configurations, no two alike, by what they are derived from."""
  found = {}

  def add(name, config, factor):
    found[name] = reduced(config, factor)

  for name in test_experiments.NAMES:
    config = named(name)
    factor = config.train.segment_len / SEGMENT
    add(name, config, factor)
    if name in SHRUNK:
      for index, (_, smaller) in enumerate(plan.smaller(config, num_devices=1)):
        if smaller.train.accumulation_steps <= LANES:
          add(f"smaller plan {index} of {name}", smaller, factor)
    if not config.train.mem_len or not config.model.attends_everywhere:
      continue
    for row in config.analysis.rows:
      changes = dict(ablation.parse(row, mem_len=config.train.mem_len).changes)
      add(f"row {row} of {name}", load.changed(config, changes), factor)
    without = load.changed(config, {"train.mem_len": 0})
    twice = equal_memory.with_segment(
      without.train, without.checkpoint, 2 * without.train.segment_len
    )
    add(f"equal memory of {name}", load.changed(without, twice), factor)
  config = named("memory_suite:mqar")
  for text in config.analysis.variants:
    variant = variants.parse(text)
    factor = config.train.segment_len / SEGMENT
    changed = load.changed(config, dict(variant.changes))
    add(f"variant {variant.name}", changed, factor)

  names: dict[schema.ExperimentConfig, str] = {}
  for name in (*SOME, *found):
    names.setdefault(found[name], name)
  return {name: config for config, name in names.items()}


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=() if name in SOME else pytest.mark.rest)
    for name in derivations()
  ],
)
def test_validation_finds_the_losses_of_training(name, same_text, tmp_path):
  config = load.replaced(derivations()[name], {"data.dir": same_text})
  assert loop.train(config, str(tmp_path))
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  records = [json.loads(line) for line in lines]
  trained = np.mean([one["loss"] for one in records if "split" not in one])
  (validation,) = [one["nll"] for one in records if "split" in one]
  (card,) = evaluate.evaluate(evaluate.load(config, str(tmp_path)))
  # Means of the same float32 losses, added up in another order.
  assert card["nll"] == pytest.approx(validation, rel=1e-5)
  is_same = (
    windows(config.train, config.train.mem_len)
    == windows(config.eval, config.train.mem_len)
    and config.train.loss_on == "all"
  )
  # Otherwise evaluation clamps distances, limits the window or reads another
  # context again, on purpose.
  near = pytest.approx(trained, rel=1e-5 if is_same else 0.1)
  assert validation == near


def windows(group, mem_len):
  """What tokens see, beside the length of memory."""
  longest = mem_len + SEGMENT * 2
  clamp_len = group.clamp_len if group.clamp_len < longest else 0
  has_window = visibility.has_window(mem_len, same_length=group.same_length)
  return clamp_len, has_window, group.context_len


def test_one_of_each_kind_is_tried():
  assert {*SOME} <= {*derivations()}
  derived = ("smaller plan", "row recurrent", "row segment", "equal memory")
  for kind in (*derived, f"variant {kinds.recurrent()}"):
    assert any(name.startswith(kind) for name in derivations())
