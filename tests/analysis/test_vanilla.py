"""The vanilla twin is one switch: same size, text read as in training."""

import dataclasses
import functools
import importlib
import json

import jax
import numpy as np
import pytest

from tests import corpus
from tests import kinds
from tests import tiny
from tests.config import test_experiments
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.analysis import vanilla
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import rules
from transformer_xl.config import schema
from transformer_xl.evaluation import evaluate
from transformer_xl.experiments import vanilla as experiments_vanilla
from transformer_xl.model import network
from transformer_xl.text import inputs
from transformer_xl.text import language_model
from transformer_xl.text import score
from transformer_xl.training import loop

LANES = 2
SEGMENT = 8
NUM_SEGMENTS = 8  # In each lane: all of the text.
# Experiments of every sort; `make test-rest` has all.
SOME = ("enwik8_base", "ptb_published")
NAMES = [
  pytest.param(name, marks=() if name in SOME else pytest.mark.rest)
  for name in test_experiments.NAMES
]
# They have no memory themselves, and their evaluation has lengths of its own.
WITHOUT_MEMORY = ("enwik8_alrfou", "ptb_published")
# One program for all, as far as their models are alike. What the twin's own
# configuration decides is left as it is.
TINY = {
  **{f"model.{name}": value for name, value in tiny.MODEL.items()},
  "model.vocab_size": 0,
  "model.embed_dim": tiny.MODEL["model_dim"],
  "model.num_kv_heads": tiny.MODEL["num_heads"],
  "model.cutoffs": (),
  "model.cluster_capacities": (),
  "model.div_val": 1,
  "model.tie_projections": "all_but_first",
  "model.project_equal_width": True,
  "model.init_std": 0.5,  # Else no token would make a difference.
  "model.dtype": "float32",
  "model.input_dropout_rate": 0.0,
  "model.output_dropout_rate": 0.0,
  "model.projection_dropout_rate": 0.0,
  "model.attention_dropout_rate": 0.0,
  "model.embedding_dropout_rate": 0.0,
  "data.name": corpus.NAME,
  "data.prepare": False,
  "train.batch_size": LANES,
  "data.targets": "all",
  "train.segment_len": SEGMENT,
  "train.segment_len_std": 0.0,
  "train.segments_per_call": 1,
  "train.learning_rate": 0.0,  # So that all losses are of one model.
  "train.warmup_steps": 0,
  "train.log_every_steps": 1,
  "train.finish_with": (),
  "eval.split": "test",
  "eval.batch_size": LANES,
}


@pytest.fixture(scope="module")
def same_text(tmp_path_factory):
  """A dataset whose splits are one text, which training reads exactly once."""
  length = LANES * SEGMENT * NUM_SEGMENTS + 1
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(corpus, "TOKENS", dict.fromkeys(corpus.TOKENS, length))
    return corpus.write(tmp_path_factory.mktemp("data"))


def tiny_twin(name, data_dir):
  config = experiments_vanilla.get_config(name)
  num_steps = NUM_SEGMENTS // config.train.gradient_segments
  config.update_from_flattened_dict(
    {
      **TINY,
      "data.dir": data_dir,
      "train.num_steps": num_steps,
      "train.decay_steps": num_steps,
      "train.eval_every_steps": num_steps,
      "checkpoint.every_steps": num_steps,
    }
  )
  if config.train.context_len:
    config.train.context_len = SEGMENT
    config.eval.update({"segment_len": SEGMENT, "context_len": SEGMENT})
  elif config.eval.context_len:
    # Its evaluation reads a context again that training has not: without it,
    # it reads as training does.
    config.eval.update({"segment_len": SEGMENT, "context_len": 0})
  return load.from_config_dict(config)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_twin_reads_text_as_it_was_trained(
  name, same_text, tmp_path, caplog
):
  config = tiny_twin(name, same_text)
  assert loop.train(config, str(tmp_path))
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  records = [json.loads(line) for line in lines]
  trained = [one["loss"] for one in records if "split" not in one]
  trained_loss = np.mean(trained)
  assert len(trained) == config.train.num_steps
  # Means of the same float32 losses, added up in another order.
  same = pytest.approx(trained_loss, rel=1e-5)

  (validation,) = [one["nll"] for one in records if "split" in one]
  assert validation == same
  (card,) = evaluate.evaluate(evaluate.load(config, str(tmp_path)))
  assert card["nll"] == same

  # Scoring reads no context again, and one text is one document.
  if not (config.train.context_len or config.data.reset_at_documents):
    lengths = language_model.lengths(config.score)
    ids = np.load(f"{same_text}/{corpus.NAME}/train.npy")
    options = load.changed(config, {"score.prefix": ""}).score
    with language_model.loaded(config, str(tmp_path), **lengths) as model:
      text = inputs.Text(model.vocabulary.decode(ids), "fresh")
      (scored,) = score.score(model, [text], options)
    assert scored.nll / scored.num_tokens == same
  assert "trained" not in caplog.text  # No warning of positions or memory.


@pytest.mark.rest
@pytest.mark.slow
def test_reading_longer_segments_than_in_training_is_warned_of(
  same_text, tmp_path, caplog
):
  workdir = str(tmp_path)
  config = tiny_twin("ptb_small", same_text)
  config = load.changed(config, {"eval.segment_len": SEGMENT + 1})
  longer = {"segment_len": SEGMENT + 2, "mem_len": 0}
  assert loop.train(config, workdir)
  evaluate.evaluate(evaluate.load(config, workdir))
  with language_model.loaded(config, workdir, **longer):
    pass
  warnings = [one for one in caplog.messages if "no trained positions" in one]
  lengths = [SEGMENT + 1, SEGMENT + 1, SEGMENT + 2]
  for message, length in zip(warnings, lengths, strict=True):
    assert f"segments of {length} tokens" in message


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_has_the_size_of_its_experiment_and_the_lengths_of_training(
  name,
):
  original = importlib.import_module(
    f"transformer_xl.experiments.{name}"
  ).get_config()
  config = experiments_vanilla.get_config(name)
  twin = load.from_config_dict(config)
  rules.check_command(twin, "train")
  same = pytest.approx(count(load.from_config_dict(original).model), rel=2e-3)
  assert count(twin.model) == same
  config.train.segment_len = 24  # As a flag does.
  config.train.context_len = 3
  for group in (config.generate, config.score):
    assert (group.segment_len, group.mem_len) == (27, 0)
  if name not in WITHOUT_MEMORY:
    assert config.eval.segment_len == 24


@pytest.mark.some(6)
@pytest.mark.parametrize(
  "fields",
  [
    *({"encoding": name} for name in registry.encodings),
    {"untie_biases": True},
    {
      "encoding": kinds.learned(),
      "num_positions": 200,
      "cutoffs": (9,),
      "div_val": 2,
    },
    {
      "layers": ("attention:4", "attention"),
      "encoding": kinds.encoding(rotates=True),
    },
    *(
      {
        "layers": (name,)
        if registry.mixers[name].attends
        else (name, "attention")
      }
      for name in registry.mixers
    ),
  ],
  ids=str,
)
def test_a_twin_has_as_many_parameters_whatever_the_model_has(fields):
  model = tiny.model_config(**fields)
  twin = tiny.model_config(**fields | vanilla.changes(model))
  assert twin.encoding == "absolute"
  # Units come in pairs, which both heads divide as well.
  pair = 2 * model.num_layers * (2 * model.model_dim + 1)
  assert abs(count(twin) - count(model)) <= pair / 2


def count(model):
  if not model.vocab_size:
    model = dataclasses.replace(model, vocab_size=256)
  return network.num_parameters(network.abstract_params(model))


def test_an_unknown_experiment_is_one_line():
  with pytest.raises(errors.UserError, match="no experiments/missing"):
    experiments_vanilla.get_config("missing")


def test_a_run_reads_its_parameters_after_a_twin_was_counted():
  """What is known of their shapes is kept, with the mesh that they had."""
  model = tiny.model_config()
  vanilla.changes(model)
  mesh = schema.MeshConfig(data=1, fsdp=1, tensor=1)
  with jax.set_mesh(mesh_lib.make_mesh(mesh)):
    params = network.abstract_params(model)
    jax.eval_shape(
      functools.partial(jax.tree.map, lambda leaf: leaf[:1]), params
    )
