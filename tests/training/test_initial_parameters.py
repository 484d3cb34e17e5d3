"""A new run starts from the parameters of another, and from nothing else."""

import dataclasses
import functools
import json
import operator
import os
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import corpus
from tests import kinds
from tests import oracles
from tests import tiny
from tests.analysis import runs
from tests.config import test_effects
from tests.training import runs as finished
from tests.training import test_resume
from transformer_xl import errors
from transformer_xl.config import load as load_lib
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.evaluation import evaluate
from transformer_xl.model import network
from transformer_xl.training import initial_parameters
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.workdir import checkpoint
from transformer_xl.workdir import params_reader
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_record
from transformer_xl.workdir import run_state
from transformer_xl.workdir import trained_model

SHORT = {"train.num_steps": 4, "train.eval_every_steps": 4}
AVERAGE = {"train.ema_decay": 0.5}


@pytest.fixture(scope="module")
def source(data_dir, tmp_path_factory):
  """A run that was saved with an average."""
  workdir = str(tmp_path_factory.mktemp("source") / "run")
  config = corpus.config(data_dir, **AVERAGE)
  state, memory = programs.abstract_state(config.recipe)
  state, memory = jax.tree.map(
    lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (state, memory)
  )
  state = state._replace(
    step=jnp.int32(4),
    params=tiny.params(config.model),
    average=tiny.params(config.model, seed=1),
  )
  checkpoints = checkpoint.Checkpoints(workdir, config.checkpoint)
  checkpoints.save(run_state.RunState(state, memory))
  checkpoints.close()
  run_record.record(config, workdir)
  run_record.keep_vocabulary(config.data.dataset_dir, workdir)
  return workdir


def load(config):
  """Parameters and record, on the mesh of training."""
  mesh = programs.make_mesh(config.recipe, config.mesh)
  with jax.set_mesh(mesh):
    return initial_parameters.load(config.recipe, config.data.dataset_dir, mesh)


@pytest.mark.slow
def test_a_run_starts_where_the_evaluation_of_its_source_is(
  source, data_dir, tmp_path
):
  own, workdir = str(tmp_path / "source"), str(tmp_path / "run")
  shutil.copytree(source, own)
  updates = {
    **SHORT,
    **{"train.init_from": own, "train.init_parameters": "ema"},
    **{"train.learning_rate_factors": ("layers/0/.*=0",)},
  }
  config = corpus.config(data_dir, **updates)
  assert loop.train(config, workdir)
  first, *_ = finished.lines(workdir)
  scored = corpus.config(
    data_dir,
    **{"eval.split": "valid", "eval.parameters": "ema", **AVERAGE},
  )
  (card,) = evaluate.run(scored, own)
  assert (first["step"], first["split"]) == (0, "valid")
  assert first["nll"] == card["nll"]  # The same program, to the bit.
  # It is a new run otherwise, which no longer needs its source.
  assert finished.steps(workdir) == [4]
  shutil.rmtree(own)
  longer = dataclasses.replace(config.train, num_steps=6)
  assert loop.train(dataclasses.replace(config, train=longer), workdir)
  assert int(test_resume.newest(workdir, config).state.step) == 6
  record = json.loads(pathlib.Path(workdir, "config.json").read_text())
  found = record["initialised_from"]
  assert found["workdir"] == own
  assert found["checkpoint_step"] == 4
  assert (found["parameters"], found["new_symbols"]) == ("ema", 0)
  assert found["num_layers"] == config.model.num_layers
  assert record["config"]["train"]["init_from"] == own
  (card,) = evaluate.run(config, workdir)
  assert card["initialised_from"] == found


def test_a_workdir_with_a_run_does_not_start_from_another(
  source, data_dir, tmp_path
):
  workdir = str(tmp_path / "run")
  shutil.copytree(source, workdir)
  updates = {**AVERAGE, "train.init_from": source}
  said = r"is at step 4 and did not start from there: choose another --workdir"
  with pytest.raises(errors.UserError, match=said):
    loop.train(corpus.config(data_dir, **updates), workdir)


@pytest.mark.slow
def test_the_parameters_are_those_of_the_source(source, data_dir):
  digests = set()
  for parameters in ("raw", "ema"):
    updates = {"train.init_from": source, "train.init_parameters": parameters}
    config = corpus.config(data_dir, **updates)
    params, record = load(config)
    expected = trained_model.load(
      corpus.config(data_dir, **{"eval.parameters": parameters}, **AVERAGE),
      source,
    )
    jax.tree.map(np.testing.assert_array_equal, params, expected.params)
    assert record["checkpoint_step"] == expected.step == 4
    assert len(record["params_sha256"]) == 64
    digests.add(record["params_sha256"])
  assert len(digests) == 2  # The record tells the two apart.
  # Nothing else is: a new state of step 0.
  mesh = programs.make_mesh(config.recipe, config.mesh)
  state, _ = programs.creators(config.recipe, mesh)
  state = state(params)
  assert int(state.step) == 0
  moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
  assert moments
  assert not any(np.any(leaf) for leaf in moments)


@pytest.fixture(scope="module")
def imported(data_dir, tmp_path_factory):
  """A workdir with parameters alone, as imports are."""
  workdir = str(tmp_path_factory.mktemp("imported") / "run")
  runs.write(data_dir, workdir)
  return workdir


@pytest.fixture(scope="module")
def run_of(data_dir, tmp_path_factory):
  """Writes a run for a pattern of layers: its folder, its configuration."""

  @functools.cache
  def write(*layers):
    folder = str(tmp_path_factory.mktemp("run_of"))
    return folder, runs.write(data_dir, folder, **{"model.layers": layers})

  return write


class FitsError(Exception):
  """The configuration and the vocabulary were found to fit."""


@pytest.mark.some(24)
@pytest.mark.parametrize(
  "name", [name for name in schema.all_fields() if name.startswith("model.")]
)
def test_the_meaning_of_parameters_stays_and_the_rest_is_free(
  name, imported, data_dir, monkeypatch
):
  if name == "model.vocab_size":
    pytest.skip("the vocabulary decides")
  value, _ = test_effects.CASES[name]
  config = corpus.config(data_dir, **{"train.init_from": imported})
  trained = operator.attrgetter(name)(config)

  def restore(*unused, **options):
    raise FitsError

  monkeypatch.setattr(params_reader, "restore_whole", restore)
  transfer = schema.all_fields()[name].transfer
  if transfer != "same_shapes":
    monkeypatch.setattr(network, "abstract_params", lambda model: {})
  # The source has attention alone, so these change no parameters of it.
  of_others = name.count(".") == 2
  is_free = transfer == "any" or of_others
  changes = {name: value}
  if name == "model.num_memory_tokens":
    changes["train.gradient_segments"] = 2
  if name == "model.num_heads":
    changes["model.num_kv_heads"] = value  # It follows by default.
  with pytest.raises(FitsError if is_free else errors.UserError) as refusal:
    load(load_lib.replaced(config, changes))
  if not is_free:
    message = str(refusal.value)
    assert f"{name} is {trained} in train.init_from={imported}" in message
    assert f"and {value} in this run: set --config.{name}={trained}" in message


@pytest.mark.parametrize(
  ("transfer", "names"),
  [
    ("equal", ["num_layers", "encoding", "tie_weights"]),
    ("same_shapes", ["layers"]),
    ("any", ["dropout_rate", "dtype"]),
  ],
)
def test_a_field_says_how_free_it_is(transfer, names):
  for name in names:
    assert schema.all_fields()[f"model.{name}"].transfer == transfer


@pytest.mark.parametrize("name", [*registry.mixers, *registry.encodings])
def test_a_field_of_a_mixer_or_an_encoding_says_how_free_it_is(name):
  fields = schema.all_fields()
  own = [path for path in fields if path.startswith(f"model.{name}.")]
  found = {path.rpartition(".")[2]: fields[path].transfer for path in own}
  assert found == oracles.get(name, "TRANSFER", {})


def shapes(config):
  return jax.tree.map(jnp.shape, network.abstract_params(config.model))


# A mixer whose sizes have to be equal, and one whose fields may differ.
USUAL = (
  next(
    name
    for name in registry.mixers
    if "equal" in oracles.get(name, "TRANSFER", {}).values()
  ),
  kinds.compressing(),
)


@pytest.mark.parametrize(
  ("name", "field"),
  [
    pytest.param(name, field, marks=() if name in USUAL else pytest.mark.rest)
    for name in registry.mixers
    for field in oracles.get(name, "TRANSFER", {})
  ],
)
def test_what_a_mixer_remembers_may_differ_where_parameters_fit(
  name, field, data_dir, run_of
):
  folder, own = run_of(name)
  value = oracles.get(name, "VALUES")[field][0]
  changes = {f"model.{name}.{field}": value, "train.init_from": folder}
  config = corpus.config(data_dir, **{"model.layers": (name,)} | changes)
  free = oracles.get(name, "TRANSFER")[field] == "same_shapes"
  if free and shapes(own) == shapes(config):
    params, _ = load(config)
    expected = tiny.params(own.model)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
  else:
    says = "or start from its" if free else f"model.{name}.{field} is "
    with pytest.raises(errors.UserError, match=says):
      load(config)


@pytest.mark.some(3)
@pytest.mark.parametrize(
  ("layers", "changes", "fits"),
  [
    (("attention",), {"model.layers": ("attention:3",)}, True),
    (("attention",), {"model.layers": (kinds.recurrent(),)}, False),
    # The pattern has other names for the second layer.
    (("attention",), {"model.layers": ("attention:3", "attention")}, False),
    # What else differs is refused with it.
    (
      ("attention",),
      {"model.layers": ("attention:3",), "model.pre_norm": True},
      False,
    ),
  ],
)
def test_what_layers_remember_may_differ_where_parameters_fit(
  data_dir, run_of, layers, changes, fits
):
  folder, own = run_of(*layers)
  updates = {"model.layers": layers, "train.init_from": folder}
  config = corpus.config(data_dir, **updates | changes)
  if fits:
    params, _ = load(config)
    expected = tiny.params(own.model)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    return
  with pytest.raises(errors.UserError, match="or start from its"):
    load(config)


def refusal(data_dir, **updates):
  with pytest.raises(errors.UserError) as caught:
    load(corpus.config(data_dir, **updates))
  assert "\n" not in str(caught.value)
  return str(caught.value)


def test_another_vocabulary_is_refused(imported, tmp_path, monkeypatch):
  monkeypatch.setattr(corpus, "SYMBOLS", corpus.SYMBOLS[::-1])
  message = refusal(corpus.write(tmp_path), **{"train.init_from": imported})
  assert f"transformer-xl-data --vocabulary_file={imported} " in message
  assert "--extend_vocabulary" in message


def test_a_smaller_vocabulary_is_refused(imported, tmp_path, monkeypatch):
  monkeypatch.setattr(corpus, "SYMBOLS", corpus.SYMBOLS[:-1])
  message = refusal(corpus.write(tmp_path), **{"train.init_from": imported})
  assert f"transformer-xl-data --vocabulary_file={imported} " in message


def test_without_a_kept_vocabulary_the_sizes_have_to_agree(
  imported, data_dir, tmp_path, monkeypatch
):
  bare = tmp_path / "bare"
  shutil.copytree(imported, bare, ignore=shutil.ignore_patterns("vocabulary"))
  load(corpus.config(data_dir, **{"train.init_from": str(bare)}))
  monkeypatch.setattr(corpus, "SYMBOLS", (*corpus.SYMBOLS, "v"))
  message = refusal(corpus.write(tmp_path), **{"train.init_from": str(bare)})
  size = len(corpus.SYMBOLS) - 1
  assert f"model.vocab_size is {size} in train.init_from={bare}" in message


@pytest.mark.parametrize(
  ("updates", "message"),
  [
    ({"train.init_from": "nowhere"}, "train.init_from=nowhere has no config"),
    ({"train.init_parameters": "ema"}, "--config.train.init_parameters=raw"),
    ({"train.init_checkpoint": "7"}, "train.init_checkpoint='7' is not in"),
  ],
)
def test_a_source_that_is_not_there_is_refused(
  imported, data_dir, updates, message
):
  updates = {"train.init_from": imported} | updates
  assert message in refusal(data_dir, **updates)


def test_a_source_that_diverged_is_refused(data_dir, tmp_path):
  source = str(tmp_path / "source")
  runs.write(data_dir, source)
  params = tiny.params(corpus.config(data_dir).model)
  bias = params["softmax"]["bias"].at[1].set(np.nan)
  lost = {**params, "softmax": {**params["softmax"], "bias": bias}}
  params_writer.save(source, lost, step=9)
  config = corpus.config(data_dir, **{"train.init_from": source})
  with pytest.raises(errors.UserError, match="infinite or NaN") as caught:
    load(config)
  message = str(caught.value)
  assert message.startswith(f"softmax/bias in checkpoint 9 of {source} has")
  assert "--config.train.init_checkpoint=STEP" in message


def test_an_average_is_taken_for_what_it_is(data_dir, tmp_path):
  source = str(tmp_path / "source")
  runs.write(data_dir, source, **{"train.ema_decay": 0.9})
  updates = {"train.init_from": source, "train.init_parameters": "asgd"}
  message = refusal(data_dir, **updates)
  assert "kept ema; set --config.train.init_parameters=ema or raw." in message


def test_a_source_in_a_bucket_gives_its_parameters(bucket, data_dir):
  source = f"{bucket}/run"
  runs.write(data_dir, source)
  config = corpus.config(data_dir, **{"train.init_from": source})
  params, record = load(config)
  expected = tiny.params(config.model)
  jax.tree.map(np.testing.assert_array_equal, params, expected)
  assert (record["workdir"], record["checkpoint_step"]) == (source, 3)
  message = refusal(data_dir, **{"train.init_from": f"{bucket}/none"})
  assert message.startswith(f"train.init_from={bucket}/none has no config.json")


def test_new_symbols_are_added(imported, data_dir, tmp_path, monkeypatch):
  symbols = (*corpus.SYMBOLS, "v", "w")
  monkeypatch.setattr(corpus, "SYMBOLS", symbols)
  config = corpus.config(
    corpus.write(tmp_path), **{"train.init_from": imported}
  )
  params, record = load(config)
  assert record["new_symbols"] == 2
  old = dataclasses.replace(config.model, vocab_size=len(symbols) - 2)
  add = functools.partial(initial_parameters.add_symbols, config=old, count=2)
  expected = jax.jit(add)(tiny.params(old))
  # Compiled with shardings and without.
  comparison.assert_close(params, expected, roundings=10)
  assert params["softmax"]["bias"].shape == (len(symbols),)


def test_training_in_an_import_names_the_field(imported, data_dir):
  config = corpus.config(data_dir)
  with pytest.raises(errors.UserError) as caught:
    loop.train(config, imported)
  message = str(caught.value)
  assert "\n" not in message
  assert f"--config.train.init_from={imported} and another" in message
  assert os.path.isdir(f"{imported}/checkpoints/3")


REST = {"train.init_rest": "draw"}


def test_layers_of_other_mixers_take_what_fits_and_draw_the_rest(
  data_dir, tmp_path, caplog
):
  caplog.set_level("INFO")
  source = {"model.num_layers": 2, "model.layers": ("attention",)}
  own = runs.write(data_dir, str(tmp_path), **source)
  given = tiny.params(own.model)["layers"]["0"]
  updates = {
    "model.layers": ("attention", kinds.recurrent()),
    "model.num_layers": 4,
    "train.init_from": str(tmp_path),
  }
  config = corpus.config(data_dir, **updates)
  with pytest.raises(errors.UserError, match="start from its configuration"):
    load(config)
  config = corpus.config(data_dir, **updates | REST)
  params, record = load(config)
  drawn = programs.drawn_params(config.recipe)
  attends, recurs = params["layers"]["0"], params["layers"]["1"]
  # Layers 0 and 2 attend, and the source has no layer 2.
  query = attends["attention"]["query"]
  np.testing.assert_array_equal(query[0], given["attention"]["query"][0])
  comparison.assert_close(
    query[1], drawn["layers"]["0"]["attention"]["query"][1], roundings=10
  )
  # Layer 1 keeps its feed-forward part, and has a mixer of its own.
  inner = recurs["feed_forward"]["in_kernel"]
  np.testing.assert_array_equal(inner[0], given["feed_forward"]["in_kernel"][1])
  comparison.assert_close(
    recurs[kinds.recurrent()],
    drawn["layers"]["1"][kinds.recurrent()],
    roundings=10,
  )
  parts = ("mixer_norm", "feed_forward", "feed_forward_norm")
  assert record["drawn"] == sorted(
    [
      f"layers/1/{kinds.recurrent()}",
      *(f"layers/2/{part}" for part in ("attention", *parts)),
      *(f"layers/3/{part}" for part in (kinds.recurrent(), *parts)),
    ]
  )
  assert ", ".join(record["drawn"]) in caplog.text
  np.testing.assert_array_equal(
    params["softmax"]["bias"], tiny.params(own.model)["softmax"]["bias"]
  )


def test_memory_tokens_are_added_to_a_model(data_dir, tmp_path):
  own = runs.write(data_dir, str(tmp_path))
  given = tiny.params(own.model)
  updates = {
    "model.num_memory_tokens": 2,
    "train.gradient_segments": 2,
    "train.init_from": str(tmp_path),
  }
  with pytest.raises(errors.UserError, match="num_memory_tokens is 0"):
    load(corpus.config(data_dir, **updates))
  params, record = load(corpus.config(data_dir, **updates | REST))
  assert record["drawn"] == ["memory_tokens"]
  assert np.any(params.pop("memory_tokens"))
  jax.tree.map(np.testing.assert_array_equal, params, given)


AUXILIARY = {
  "model.auxiliary.layers": "shared",
  "model.auxiliary.num_targets": 2,
}


@pytest.mark.parametrize("at_source", [True, False])
def test_predictions_of_training_alone_stay_behind_or_are_drawn(
  at_source, data_dir, tmp_path
):
  own = runs.write(data_dir, str(tmp_path), **(AUXILIARY if at_source else {}))
  given = tiny.params(own.model)
  updates = {} if at_source else AUXILIARY
  updates = {"train.init_from": str(tmp_path), **updates}
  params, record = load(corpus.config(data_dir, **updates))
  drawn = params.pop("auxiliary", {})
  assert bool(drawn) != at_source
  assert record["drawn"] == sorted(
    f"auxiliary/target_2/{name}" for name in drawn.get("target_2", ())
  )
  given = {part: given[part] for part in params}
  jax.tree.map(np.testing.assert_array_equal, params, given)


def test_other_sizes_are_refused_whatever_is_drawn(data_dir, imported):
  updates = {"model.ff_dim": 20, "train.init_from": imported}
  with pytest.raises(errors.UserError, match=r"model\.ff_dim is "):
    load(corpus.config(data_dir, **updates | REST))
