"""Any configuration is refused in one line, or trains, evaluates and resumes.

Configurations are drawn at random. A refused one is tried again without the
fields that the refusal names, until it is accepted: then it trains three steps,
is evaluated, and a second run with a stop in it has to equal the first.
`make fuzz-runs` tries hundreds.
"""

import collections
import json
import math
import os
import tempfile

import hypothesis
import jax
import pytest
from hypothesis import strategies as st

from tests import corpus
from tests.config import test_properties
from tests.training import test_resume
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import rules
from transformer_xl.evaluation import evaluate
from transformer_xl.training import loop

one_of, FLAGS = test_properties.one_of, test_properties.FLAGS
STOPPED, STEPS = 2, 3
RUN = {
  "model.num_layers": 1,
  "train.num_steps": STEPS,
  "train.segments_per_call": 1,
  "train.log_every_steps": 1,
  "train.eval_every_steps": STOPPED,
  "checkpoint.every_steps": 1,
  "eval.split": "valid",
}
GROUPS = ("model.", "data.", "train.", "eval.", "mesh.")
FIELDS = {
  name: values
  for name, values in test_properties.FIELDS.items()
  if name.startswith(GROUPS)
} | {
  "seed": one_of(1, 2**32 - 1),
  "model.vocab_size": one_of(0, 22, 23),
  "model.layer_norm_epsilon": one_of(0.0, 1e-12),
  "model.init_std": one_of(0.0, 0.1),
  "train.segments_per_call": one_of(1, 2),
  "train.log_every_steps": one_of(1, 2, 3),
  "train.eval_every_steps": one_of(0, 1, 2, 3),
  "train.log_memory_use": FLAGS,
  "train.warmup_steps": one_of(0, 1, 9),
  "train.adam_b2": one_of(0.0, 0.9),
  "train.adam_epsilon": one_of(1e-6, 1.0),
  "train.asgd_start_step": one_of(0, 1, 5),
  "checkpoint.every_steps": one_of(1, 2, 3),
  "checkpoint.every_minutes": one_of(0.0, 30.0),
  "checkpoint.keep_latest": one_of(1, 3),
  "divergence.action": one_of("stop", "skip", "lower_rate"),
  "divergence.spike_nats": one_of(0.0, 9.0),
  "eval.warmup_len": one_of(-1, 0, 3),
  "eval.checkpoint": one_of("latest", "best", "1", "7"),
}
COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
  lambda event, *_, **__: (
    COMPILED.append(event) if event.endswith("backend_compile_duration") else 0
  )
)


@st.composite
def drawn(draw):
  """One to fourteen fields and their values."""
  wanted = draw(st.lists(one_of(*FIELDS), min_size=1, max_size=14, unique=True))
  return {name: draw(FIELDS[name]) for name in wanted}


def refusal(data_dir, updates):
  """Why a run is refused, if it is; otherwise it does what any run must."""
  before = len(COMPILED)
  with tempfile.TemporaryDirectory() as folder:
    whole, parts = (f"{folder}/{name}" for name in ("whole", "parts"))
    config, reason = told(start, data_dir, updates, whole)
    if reason is not None:
      assert len(COMPILED) == before, f"{reason}, after compiling"
      return reason
    test_resume.train_until(STOPPED, config, parts)
    assert loop.train(config, parts)
    test_resume.assert_same_run(whole, parts, config)
    for record in test_resume.lines(whole):
      assert math.isfinite(record.get("loss", record.get("nll")))
    cards, reason = told(evaluate.run, config, whole)
    assert reason is not None or math.isfinite(cards[0]["nll"])
    return reason


def told(function, *arguments):
  """What a function returns, and the reason if it refuses."""
  try:
    return function(*arguments), None
  except errors.UserError as error:
    test_properties.assert_helpful(error)
    return None, str(error)


def start(data_dir, updates, workdir):
  """Trains as the command does, and returns the configuration."""
  values = corpus.config_dict(data_dir, **RUN | updates)
  rules.check_command(load.from_config_dict(values), "train")
  config = corpus.config(data_dir, **RUN | updates)
  assert loop.train(config, workdir)
  return config


def explore(count, data_dir, *, seed):
  """Tries so many configurations, and what is left of refused ones."""
  counts = collections.Counter()

  # Shrinking would take an hour; the fields of an example are few.
  @hypothesis.settings(
    max_examples=count, derandomize=False, phases=[hypothesis.Phase.generate]
  )
  @hypothesis.seed(seed)
  @hypothesis.given(drawn())
  def try_one(updates):
    while True:
      counts["tried"] += 1
      reason = refusal(data_dir, updates)
      jax.clear_caches()
      if reason is None:
        counts["accepted"] += 1
        return
      counts["refused"] += 1
      named = {name for name in updates if name in reason}
      assert named, reason
      updates = {n: value for n, value in updates.items() if n not in named}

  try_one()
  return counts


@pytest.mark.slow
@pytest.mark.rest
def test_what_is_not_refused_trains_evaluates_and_resumes(tmp_path):
  count = int(os.environ.get("CONFIGURATIONS", 4))
  seed = int(os.environ.get("SEED", 0))
  counts = explore(count, corpus.write(tmp_path), seed=seed)
  print(f"configurations: {json.dumps(counts)}")
  assert counts["accepted"] >= count
