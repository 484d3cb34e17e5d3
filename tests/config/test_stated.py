"""Whatever changes a number at evaluation time is stated beside the number.

A run is read by each mode with two values of a field, those of
`test_effects.CASES`. Where what is measured differs, what the result says of
itself has to differ, too.
"""

import functools
import json
import pathlib

import pytest

from tests import corpus
from tests import scored
from tests.analysis import runs
from tests.config import test_effects
from transformer_xl import errors
from transformer_xl.analysis import attention_maps
from transformer_xl.analysis import recall
from transformer_xl.analysis import recl
from transformer_xl.config import rules
from transformer_xl.data_prep import preparation
from transformer_xl.evaluation import evaluate
from transformer_xl.report import report
from transformer_xl.text import generate
from transformer_xl.workdir import metrics_log

RUN = test_effects.RUN | {"model.num_layers": 2, "score.file": "texts"}
# Modes that read a finished run, and what they need.
MODES = {
  "eval": (evaluate.run, {}),
  "generate": (
    generate.run,
    {"generate.num_tokens": 60, "generate.temperature": 3.0},
  ),
  "score": (scored.run, {}),
  "recl": (recl.run, {}),
  "attention": (attention_maps.run, {}),
  "recall": (recall.run, {"data.dir": "recalled"}),
  "report": (report.run, {}),
}
# Groups of fields that only these modes read.
OWN = {
  "generate": ("generate", "seed"),
  "score": ("score",),
  "recl": ("analysis",),
  "attention": ("analysis",),
  "recall": ("analysis",),
  "report": ("report",),
}
# These fields concern training alone, or the order of sums, which changes
# roundings.
NOT_READ = {
  *("model.attention", "model.remat", "model.scan_unroll", "model.init_std"),
  *("model.locked_dropout", "model.dropout_rate", "eval.memory"),
  *("model.input_dropout_rate", "model.output_dropout_rate"),
  *("model.projection_dropout_rate", "model.attention_dropout_rate"),
  *("model.embedding_dropout_rate", "model.weight_dropout_rate"),
  "model.vocab_size",
}
# What a result measures. All else are settings, but for times and paths.
MEASURED = {
  *("nll", "perplexity", "bits_per_character", "bits_per_byte"),
  *("word_perplexity", "samples", "log_probs", "top", "recl", "is_reached"),
  *("relative_gains", "perplexity_gains", "mean_nll", "memory_share_by_layer"),
  *("nll_without_memory", "mean_distance", "heads", "terms", "accuracy"),
  *("text", "tokens", "unknown_share", "num_unknown"),
}
TIMES = {"seconds", "tokens_per_second", "num_bytes", "made_by", "workdir"}


def parts(result, measured):
  """What a result measures, or what it states, in order."""
  if isinstance(result, list):
    for item in result:
      yield from parts(item, measured)
  elif isinstance(result, dict):
    for name, item in result.items():
      # A report groups everything about its text under this name.
      is_group = name == "text" and isinstance(item, dict)
      if name in MEASURED and not is_group:
        if measured:
          yield name, json.dumps(_rounded(item))
      elif isinstance(item, dict | list) and not _is_plain(item):
        yield from parts(item, measured)
      elif name not in TIMES and not measured:
        yield name, json.dumps(item)


def _rounded(item):
  """Four digits of each number: sums in another order change the last ones."""
  if isinstance(item, float):
    return f"{item:.4g}"
  if isinstance(item, dict):
    return {name: _rounded(value) for name, value in item.items()}
  return [*map(_rounded, item)] if isinstance(item, list) else item


def _is_plain(item):
  """Whether nothing in it has a name."""
  values = item.values() if isinstance(item, dict) else item
  nested = [value for value in values if isinstance(value, dict | list)]
  return isinstance(item, list) and not nested


@pytest.fixture(scope="module")
def read(tmp_path_factory):
  """What a mode measures and states of a run, both with some values."""

  @functools.cache
  def trained(data_dir, model):
    """The folder of a run with this model."""
    workdir = f"run{trained.cache_info().misses}"
    sizes = {"model.vocab_size": 0} if data_dir != "data" else {}
    runs.write(data_dir, workdir, **RUN | dict(model) | sizes)
    return workdir

  @functools.cache
  def outcome(mode, needed, updates):
    run, own = MODES[mode]
    values = RUN | own | dict(needed)
    data_dir = values.get("data.dir", "data")
    values["data.dir"] = data_dir
    model = {name: value for name, value in needed if name.startswith("model.")}
    workdir = trained(data_dir, tuple(model.items()))
    try:
      config = corpus.config(data_dir, **values | dict(updates))
      rules.check_command(config, mode.partition(" ")[0])
      result = run(config, workdir)
    except errors.UserError as error:
      return str(error)
    result = json.loads(metrics_log.to_json(result))
    return [*parts(result, True)], [*parts(result, False)]

  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tmp_path_factory.mktemp("stated"))
    corpus.write("data")
    preparation.prepare(
      dataset="recall",
      data_dir="recalled",
      name=corpus.NAME,
      num_tokens=3_000,
      num_keys=4,
      max_distance=16,
    )
    pathlib.Path("texts").write_text("abc\nde fgh\n")
    runs.write("data", "run", **RUN)
    yield lambda mode, needed, updates: outcome(
      mode, tuple(needed.items()), tuple(updates.items())
    )


def cases():
  for mode in MODES:
    for name in test_effects.CASES:
      group = name.partition(".")[0]
      is_shared = group in ("model", "data", "eval") or name in (
        "train.segment_len",
        "train.context_len",
      )
      if name not in NOT_READ and (is_shared or group in OWN.get(mode, ())):
        yield mode, name


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "name"), cases())
def test_what_changes_a_number_is_stated(read, mode, name):
  value, needed = test_effects.CASES[name]
  before = read(mode, needed, {})
  after = read(mode, needed, {name: value})
  if isinstance(before, str) or isinstance(after, str):
    return  # Refused, as most models with other parameters are.
  assert before[0]
  if before[0] != after[0]:
    assert before[1] != after[1]
