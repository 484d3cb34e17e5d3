"""Every field of the configuration changes what a tiny run does.

Compared are the program of an update or of an evaluation and, where that is the
same, the lines of the log, the checkpoints, the cards and texts, all without
timing. Each field is set to one value beside its default; the exceptions are
listed with the reason.
"""

import functools
import itertools
import json
import os
import pathlib

import jax
import pytest

from tests import corpus
from tests import kinds
from tests import scored
from tests.analysis import runs
from tests.training import test_resume
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.analysis import ablation
from transformer_xl.analysis import attention_maps
from transformer_xl.analysis import eval_speed
from transformer_xl.analysis import recl
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import evaluator
from transformer_xl.planning import plan
from transformer_xl.report import report
from transformer_xl.text import generate
from transformer_xl.training import divergence
from transformer_xl.training import loop
from transformer_xl.training import profiling
from transformer_xl.training import programs

pytestmark = [pytest.mark.slow, pytest.mark.rest]

RUN = {
  "model.num_layers": 1,
  "train.num_steps": 8,
  "train.eval_every_steps": 4,
  "generate.prompt": "abc",
  "generate.num_tokens": 12,
  "analysis.contexts": (2, 8, 3),
  "analysis.num_tokens": 40,
  "analysis.speed_lens": (4,),
  "analysis.rows": ("segment-absolute-all",),
  "analysis.attention_lens": (8,),
}
TAILS = {"model.cutoffs": (7, 12), "model.div_val": 2}
DEEP = {"model.num_layers": 2}
SPIKY = {
  "train.learning_rate": 0.3,
  "train.segments_per_call": 2,
  "divergence.spike_nats": 0.05,
}
SGD = {"eval.dynamic.kind": "sgd"}
CACHE = {"eval.cache.size": 9}
WITHOUT_MEMORY = {"train.mem_len": 0}
OF_SPLIT = {"generate.prompt_split": "train"}
AVERAGE = {"train.ema_decay": 0.5}
# In a hardly trained model memory changes about one token in a thousand, and
# all that follow it.
LONG_SAMPLE = {"generate.num_tokens": 1500, "generate.temperature": 3.0}


def own_fields():
  """The fields of single mixers and encodings, each in a model that has it."""
  fields = kinds.all_own_fields()
  for field in fields:
    others = {
      other.path: other.values[1]
      for other in fields
      if other.model == field.model
    }
    even = {"model.head_dim": 4}
    yield field.path, (field.values[0], field.model | even | others)


ADAPTED = {"train.init_from": "run", "train.lora.rank": 2}
# The value of a field, and what it needs beside it.
CASES = {
  **dict(own_fields()),
  "seed": (1, {}),
  "model.num_layers": (3, {}),
  "model.layers": (("attention:3", kinds.recurrent()), DEEP),
  "model.model_dim": (12, {}),
  "model.num_heads": (1, {}),
  "model.head_dim": (5, {}),
  "model.ff_dim": (7, {}),
  "model.embed_dim": (6, {}),
  "model.cutoffs": ((7,), {}),
  "model.div_val": (2, {"model.cutoffs": (7,)}),
  "model.cluster_capacities": ((0.5, 0.5), TAILS),
  "model.tie_weights": (False, {}),
  "model.tie_projections": ("none", TAILS),
  "model.project_equal_width": (False, TAILS),
  "model.untie_biases": (True, DEEP),
  "model.pre_norm": (True, {}),
  "model.final_norm": (True, {}),
  "model.norm": ("rms", {}),
  "model.feed_forward": ("swiglu", {}),
  "model.residual": ("gru", {}),
  "model.num_memory_tokens": (2, {"train.gradient_segments": 2}),
  "model.qk_norm": (True, {}),
  "model.qkv_bias": (True, {}),
  "model.scale_embeddings": (False, {}),
  "model.softmax_bias": (False, {}),
  "model.num_kv_heads": (1, {}),
  "model.encoding": (kinds.learned(), {}),
  "model.num_positions": (3, {"model.encoding": kinds.learned()}),
  "model.dropout_rate": (0.2, {}),
  "model.input_dropout_rate": (0.2, {}),
  "model.output_dropout_rate": (0.2, {}),
  "model.projection_dropout_rate": (0.2, {}),
  "model.attention_dropout_rate": (0.2, {}),
  "model.embedding_dropout_rate": (0.2, {}),
  "model.weight_dropout_rate": (0.2, {}),
  "model.locked_dropout": (True, {"model.dropout_rate": 0.2}),
  "model.memory_start": ("zeros", {}),
  "model.same_length_window": ("mem_len", {"train.same_length": True}),
  "model.layer_norm_epsilon": (0.1, {}),
  "model.init_std": (0.1, {}),
  "model.auxiliary.layers": ("shared", DEEP),
  "model.auxiliary.num_targets": (2, {}),
  "model.auxiliary.target_weight": (0.1, {"model.auxiliary.num_targets": 2}),
  "model.dtype": ("bfloat16", {}),
  "model.attention": ("pallas", {}),
  "model.remat": ("full", {}),
  "model.scan_unroll": (2, DEEP),
  "data.reset_at_documents": (True, {}),
  "data.targets": ("answers", {}),
  "train.init_from": ("run", {}),
  "train.init_parameters": ("ema", {"train.init_from": "run"}),
  "train.init_checkpoint": ("7", {"train.init_from": "run"}),
  "train.lora.rank": (2, {"train.init_from": "run"}),
  "train.lora.alpha": (2.0, ADAPTED),
  "train.lora.targets": (("query",), ADAPTED),
  "train.num_steps": (6, {}),
  "train.batch_size": (2, {}),
  "train.segment_len": (4, {}),
  "train.segment_len_std": (1.0, WITHOUT_MEMORY),
  "train.context_len": (3, WITHOUT_MEMORY),
  "train.mem_len": (4, {}),
  "train.mem_len_low": (0, {}),
  "train.gradient_segments": (2, {}),
  "train.clamp_len": (2, {}),
  "train.same_length": (True, {}),
  "train.loss_on": ("recent_half", {}),
  "train.activation_penalty": (1.0, {}),
  "train.temporal_activation_penalty": (1.0, {}),
  "train.segments_per_call": (1, {}),
  "train.accumulation_steps": (2, {}),
  "train.optimizer": ("sgd", {}),
  "train.sgd.momentum": (0.9, {"train.optimizer": "sgd"}),
  "train.learning_rate": (0.1, {}),
  "train.min_learning_rate_ratio": (0.5, {"train.schedule": "cosine"}),
  "train.decay_steps": (4, {"train.schedule": "cosine"}),
  "train.embedding_rate_factor": (2.0, {}),
  "train.learning_rate_factors": (("layers/.*=0.5",), {}),
  "train.schedule": ("inverse_sqrt", {"train.warmup_steps": 2}),
  "train.warmup_steps": (2, {}),
  "train.clip_norm": (0.01, {"train.optimizer": "sgd"}),
  "train.weight_decay": (0.5, {"train.optimizer": "adamw"}),
  "train.l2_penalty": (0.1, {}),
  "train.adam_b2": (0.5, {}),
  "train.adam_epsilon": (0.1, {}),
  "train.ema_decay": (0.9, {**AVERAGE, "eval.parameters": "ema"}),
  "train.asgd_start_step": (
    *(2, {"train.asgd_start_step": 6, "eval.parameters": "asgd"}),
  ),
  "train.average_rate_factor": (0.5, {"train.asgd_start_step": 4}),
  "train.log_every_steps": (4, {}),
  "train.eval_every_steps": (2, {}),
  "train.log_memory_use": (True, {}),
  "train.profile_steps": (2, {}),
  "divergence.action": ("skip", SPIKY),
  "divergence.spike_nats": (9.0, SPIKY),
  "checkpoint.every_steps": (2, {}),
  "checkpoint.every_minutes": (1e-9, {}),
  "checkpoint.keep_latest": (4, {"checkpoint.every_steps": 2}),
  "eval.split": ("valid", {}),
  "eval.batch_size": (2, {"eval.warmup_len": 0}),
  "eval.segment_len": (4, {"eval.same_length": False}),
  "eval.context_len": (3, {"eval.mem_len": (0,)}),
  "eval.mem_len": ((4,), {}),
  "eval.temperature": ((2.0,), {}),
  "eval.clamp_len": (2, {}),
  "eval.same_length": (True, {}),
  "eval.warmup_len": (0, {}),
  "eval.memory": ("hidden", {}),
  "eval.parameters": ("ema", {}),
  "eval.checkpoint": ("7", {}),
  "eval.dynamic.kind": ("sgd", {}),
  "eval.dynamic.lanes": ("shared", SGD),
  "eval.dynamic.learning_rate": ((0.1,), SGD),
  "eval.dynamic.decay": ((0.5,), SGD),
  "eval.cache.size": (9, {}),
  "eval.cache.flatness": ((1.0,), CACHE),
  "eval.cache.share": ((0.5,), CACHE),
  "mesh.data": (2, {}),
  "mesh.fsdp": (2, {}),
  "mesh.tensor": (2, {}),
  "generate.prompt": ("b", {}),
  "generate.prompt_file": ("/dev/null", {}),
  "generate.prompt_split": ("train", {}),
  "generate.prompt_start": (9, OF_SPLIT),
  "generate.prompt_len": (9, OF_SPLIT),
  "generate.num_tokens": (3, {}),
  "generate.num_samples": (2, {}),
  "generate.temperature": (0.0, {}),
  "generate.top_k": (1, {}),
  "generate.top_p": (0.01, {}),
  "generate.repetition_penalty": (50.0, {}),
  "generate.no_repeat_ngram": (1, {}),
  "generate.mem_len": (0, LONG_SAMPLE),
  "score.file": ("/dev/null", {}),
  "score.memory": ("carry", {}),
  "score.prefix": ("a", {}),
  "score.top_k": (2, {}),
  "score.mem_len": (0, {"score.segment_len": 2}),
  "analysis.rows": (("segment-absolute-recent_half",), {}),
  "analysis.attention_lens": ((4,), {}),
  "analysis.equal_memory": (True, {}),
  "analysis.split": ("test", {}),
  "analysis.seeds": ((1,), {}),
  "analysis.learning_rates": ((0.1,), {}),
  "analysis.max_learning_rates": (2, {"analysis.learning_rates": (1e-9,)}),
  "analysis.group": (("other",), {}),
  "analysis.contexts": ((2, 8, 2), {}),
  "analysis.num_tokens": (50, {}),
  "analysis.speed_lens": ((4, 6), {}),
  "analysis.text": ("abcdefghij abcdefghij klmnopqr abcde", {}),
  "analysis.heads": ((1,), {}),
  "report.runs": (("other",), {}),
}
# A refusal is the effect: of what other data, checkpoints or devices allow.
REFUSED = {
  *("eval.parameters", "eval.checkpoint", "generate.prompt_file"),
  *("train.init_parameters", "train.init_checkpoint"),
  *("mesh.data", "mesh.fsdp", "mesh.tensor", "score.file"),
}
WITHOUT = {
  "model.vocab_size": "the size of the data's vocabulary; any other is refused",
  "data.name": "tests/test_main.py: a folder that is missing is refused",
  "data.dir": "tests/test_main.py: a folder that is missing is refused",
  "data.prepare": "tests/test_main.py: only `main` prepares, and benchmarks",
  "train.init_rest": "tests/training/test_initial_parameters.py: other layers",
  "train.tracker": "tests/workdir/test_chosen_tracker.py: beside the log",
  "train.finish_with": "tests/test_main.py: only `main` runs other modes",
  "analysis.paper": "tests/analysis/test_paper.py: which item is repeated",
  "analysis.variants": "tests/analysis/test_comparison.py: a study needs some",
  "generate.stop": "tests/text/test_generated_text.py: what is drawn is random",
  "generate.tokens_per_call": "how often text is printed; the same text",
  "generate.segment_len": "how a prompt is cut; the same text",
  "score.batch_size": "texts that are read at once; the same scores",
  "score.segment_len": "how texts are cut; the same scores",
}
MODES = {
  "eval": evaluate.run,
  "generate": generate.run,
  "score": scored.run,
  "analysis": recl.run,
  "analysis.text": attention_maps.run,
  "analysis.heads": attention_maps.run,
  "analysis.speed_lens": eval_speed.run,
  "report": report.run,
} | dict.fromkeys(
  (
    *("analysis.rows", "analysis.attention_lens", "analysis.equal_memory"),
    *("analysis.split", "analysis.seeds", "analysis.learning_rates"),
    "analysis.max_learning_rates",
  ),
  ablation.run,
)
# What a result has beside its settings and its timing.
FOUND = {
  *("nll", "samples", "log_probs", "top", "recl", "perplexity_gains"),
  *("heads", "attention_len", "best", "sweep", "planned_bytes"),
  *("runs", "mean_nll"),
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
  """The working directory, with data and a run."""

  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tmp_path_factory.mktemp("effects"))
    patch.setattr(divergence, "WINDOW", 2)  # The runs have eight updates.
    patch.setattr(profiling, "START_STEP", 4)
    runs.write(corpus.write("data"), "run", **RUN)
    runs.write("data", "other", **RUN)
    pathlib.Path("texts").write_text("abc\nde fgh\n")
    yield


COUNT = itertools.count()  # Numbers the folders: every run has its own.


def make_config(items):
  return corpus.config("data", **RUN | {"score.file": "texts"} | dict(items))


def or_refusal(function):
  """The function, once for each of its arguments, or why it refuses them."""

  @functools.cache
  @functools.wraps(function)
  def call(*arguments):
    try:
      return function(*arguments)
    except errors.UserError as error:
      return f"refused: {error}"

  return call


@or_refusal
def program(group, items):
  """What is compiled with some fields; "" for modes of several programs."""
  config = make_config(items)
  if group == "eval":
    return score_program(config)
  if group in MODES:
    return ""
  mesh = programs.make_mesh(config.recipe, config.mesh)
  lowered = plan.lower_updates(
    config.recipe, config.data, mesh, count=config.updates_per_call
  )
  return lowered.as_text()


@or_refusal
def outcome(group, items):
  """What a run with some fields does, as the mode of the field shows it."""
  config = make_config(items)
  if group not in MODES:
    return trained(config, f"run{next(COUNT)}")
  is_trained = MODES[group] is not ablation.run
  workdir = "run" if is_trained else f"run{next(COUNT)}"
  return [*found(MODES[group](config, workdir))]


def found(result):
  """What a result has beside its settings and its timing, in order."""
  if isinstance(result, list):
    for item in result:
      yield from found(item)
  elif isinstance(result, dict):
    for name, item in result.items():
      if name in FOUND:
        yield name, json.dumps(item)
      else:
        yield from found(item)


def trained(config, workdir):
  """Log and checkpoints of a run; the reason if it diverges."""
  end = ""
  jax.clear_caches()  # Programs of earlier runs would fill the memory.
  try:
    loop.train(config, workdir)
  except errors.DivergenceError as error:
    end = str(error)
  saved = sorted(os.listdir(f"{workdir}/checkpoints"))
  traces = pathlib.Path(workdir, "profile").exists()
  return test_resume.lines(workdir), saved, end, traces


def score_program(config):
  """The program that scores a chunk of a split."""
  mesh = mesh_lib.make_mesh(config.mesh)
  mem_len = max(config.eval.mem_len)
  made = evaluator.Evaluator(config.scoring, mesh, mem_len=mem_len)
  with jax.set_mesh(mesh):
    segments = streams.device_segments(
      made.stream, 0, 2, mesh_lib.segments(mesh)
    )
    return made.lower(segments).as_text()


def test_every_field_has_a_case_or_a_reason():
  assert {*CASES} | {*WITHOUT} == {*schema.all_fields()}
  assert not {*CASES} & {*WITHOUT}


@pytest.mark.parametrize("name", CASES)
def test_a_field_changes_something(name):
  value, needed = CASES[name]
  group = name if name in MODES else name.partition(".")[0]
  changed = needed | {name: value}
  fields_before = tuple(needed.items())
  fields_after = tuple(changed.items())
  before = program(group, fields_before)
  after = program(group, fields_after)
  if before == after:  # Programs are lowered sooner than they are run.
    before = outcome(group, fields_before)
    after = outcome(group, fields_after)
  assert not str(before).startswith("refused"), before
  assert str(after).startswith("refused") == (name in REFUSED), after
  assert before != after
