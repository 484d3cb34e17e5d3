"""Adapters are trained in place of the matrices beside them."""

import dataclasses
import functools
import os
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests import comparison
from tests import corpus
from tests import kinds
from tests import own_process
from tests import tiny
from tests.analysis import runs
from tests.training import runs as finished
from tests.training import test_resume
from tests.training import test_step
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.evaluation import evaluate
from transformer_xl.model import lora
from transformer_xl.model import network
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.training import step as step_lib
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import trained_model

RANK = 2
ADAPTERS = {"train.lora.rank": RANK, "train.lora.alpha": 3.0}
# With an average, so that all runs share the program which keeps one.
SHORT = {
  "train.ema_decay": 0.9,
  "train.accumulation_steps": 2,
  "train.num_steps": 8,
  "train.eval_every_steps": 4,
  "checkpoint.every_steps": 4,
}


@pytest.fixture(scope="module")
def source(data_dir, tmp_path_factory):
  """An import's folder, which has parameters and nothing else."""
  workdir = str(tmp_path_factory.mktemp("source") / "run")
  runs.write(data_dir, workdir)
  return workdir


def adapted(data_dir, source, **updates):
  values = {"train.init_from": source} | ADAPTERS | SHORT
  return corpus.config(data_dir, **values | updates)


def flat(tree):
  return {
    name: np.asarray(leaf)
    for name, leaf in traverse_util.flatten_dict(tree, sep="/").items()
  }


def numbers(params):
  """Adapters of which no number is zero."""
  generator = np.random.default_rng(8)
  return jax.tree.map(
    lambda leaf: 0.3 * generator.standard_normal(leaf.shape).astype(np.float32),
    params,
  )


def in_float64(adapters, name):
  """The two matrices of an adapter."""
  return (adapters[f"{name}_lora_{end}"].astype(np.float64) for end in "ab")


def test_an_update_is_that_of_the_equations():
  # With SGD the whole model's update is that of W, from which the update of A
  # and B follows by the chain rule (Hu et al. 2021, section 4.1).
  plain = test_step.make_config(
    **{"train.optimizer": "sgd", "train.clip_norm": 0.0}
  )
  settings = dataclasses.replace(plain.train.lora, rank=RANK, alpha=3.0)
  settings = dataclasses.replace(settings, targets=("query", "out_kernel"))
  train = dataclasses.replace(plain.train, lora=settings)
  recipe = dataclasses.replace(plain.recipe, train=train)
  state, memory = test_step.start(plain)
  segment = test_step.at(test_step.make_segments(), 0)

  base = tiny.params(plain.model)
  new = jax.eval_shape(functools.partial(programs.init_state, recipe), base)
  params = numbers(new.params)
  names = flat(params)
  matrices = [name.removesuffix("_lora_a") for name in names if "_a" in name]
  assert matrices == [
    "layers/0/attention/query",
    "layers/0/feed_forward/out_kernel",
  ]
  merged = flat(base)
  for name in matrices:
    a, b = in_float64(names, name)
    merged[name] = merged[name] + (3.0 / RANK) * a @ b
  before = {name: np.asarray(leaf, np.float32) for name, leaf in merged.items()}
  whole = state._replace(params=traverse_util.unflatten_dict(before, sep="/"))
  (after, _), _ = test_step.compiled(step_lib.train_step, plain)(
    whole, memory, segment, 0
  )
  after = flat(after.params)

  own = state._replace(
    params=params, opt_state=jax.tree.map(jnp.zeros_like, new.opt_state)
  )
  update = jax.jit(functools.partial(step_lib.train_step, recipe=recipe))
  (found, _), _ = update((own, memory), segment, base=base)
  found = flat(found.params)
  for name in matrices:
    a, b = in_float64(names, name)
    step = after[name].astype(np.float64) - before[name]  # -rate dL/dW.
    assert np.abs(step).max() > 1e-4
    of_a = (3.0 / RANK) * step @ np.swapaxes(b, 1, 2)
    of_b = (3.0 / RANK) * np.swapaxes(a, 1, 2) @ step
    # A difference of float32 parameters has the rounding of these.
    comparison.assert_close(found[name + "_lora_a"], a + of_a, roundings=10)
    comparison.assert_close(found[name + "_lora_b"], b + of_b, roundings=10)


def test_adapters_begin_as_those_of_peft():
  base = flat(tiny.params(tiny.model_config()))
  settings = lora.Settings(64, 3.0, ("query", "out_kernel"))
  for name, leaf in lora.draw(jax.random.key(0), base, settings).items():
    if name.endswith("_b"):
      assert not leaf.any()
      continue
    # Uniform within 1 / sqrt(inputs): kaiming_uniform_(a=sqrt(5)).
    bound = 1 / np.sqrt(leaf.shape[1])
    assert np.abs(leaf).max() <= bound
    leaf = np.asarray(leaf)
    np.testing.assert_allclose(leaf.std(), bound / np.sqrt(3), rtol=0.1)


@pytest.fixture(scope="module")
def finished_run(data_dir, source, tmp_path_factory):
  """A run of adapters, whose base is a folder of its own."""
  folder = tmp_path_factory.mktemp("adapted")
  base = str(folder / "base")
  shutil.copytree(source, base)
  config = adapted(data_dir, base)
  loop.train(config, str(folder / "run"))
  return config, str(folder / "run"), base


@pytest.mark.slow
def test_a_run_trains_saves_and_reads_adapters_alone(
  finished_run, source, data_dir
):
  config, workdir, _ = finished_run
  base = trained_model.load(corpus.config(data_dir), source).params
  first, *_, last = (
    line for line in finished.lines(workdir) if "split" in line
  )
  # It starts from the base.
  (card,) = evaluate.run(
    corpus.config(data_dir, **{"eval.split": "valid"}), source
  )
  assert first["nll"] == card["nll"]

  state = test_resume.newest(workdir, config).state
  assert state.base is None
  width, layers = config.model.model_dim, config.model.num_layers
  matrix = 2 * RANK * width * layers
  assert {name.rpartition("/")[2] for name in flat(state.params)} == {
    f"{name}_lora_{end}"
    for name in ("query", "key", "value", "output")
    for end in "ab"
  }
  assert flat(state.average).keys() == flat(state.params).keys()
  assert network.num_parameters(state.params) == 4 * matrix
  moments = [
    leaf.size for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim
  ]
  assert sum(moments) == 2 * 4 * matrix  # Adam's.
  losses = {}
  for parameters, trained in (
    ("raw", flat(state.params)),
    ("ema", flat(state.average)),
  ):
    # Merged, and nothing else is changed to the bit.
    values = {"eval.split": "valid", "eval.parameters": parameters}
    chosen = load.replaced(config, values)
    loaded = trained_model.load(chosen, workdir)
    expected = flat(base)
    for name, leaf in flat(loaded.params).items():
      if name + "_lora_a" not in trained:
        np.testing.assert_array_equal(leaf, expected[name])
        continue
      a, b = in_float64(trained, name)
      assert np.abs(b).max() > 1e-3
      exact = expected[name] + (3.0 / RANK) * a @ b
      comparison.assert_close(leaf, exact, roundings=4)
    (card,) = evaluate.run(chosen, workdir)
    assert card["parameters"] == parameters
    losses[parameters] = card["nll"]
  # Evaluation reads what training validated.
  assert losses["raw"] == last["nll"]
  assert len({*losses.values(), first["nll"]}) == 3


@pytest.mark.slow
def test_a_run_in_parts_is_the_run_in_one(finished_run, tmp_path):
  config, whole, _ = finished_run
  test_resume.train_until(6, config, tmp_path)
  loop.train(config, str(tmp_path))
  test_resume.assert_same_run(whole, tmp_path, config)


def test_the_merged_model_reads_as_the_product_beside_the_matrix():
  config = tiny.model_config()
  base = tiny.params(config)
  settings = lora.Settings(RANK, 3.0, ("query",))
  drawn = lora.draw(jax.random.key(0), flat(base), settings)
  adapters = numbers(lora.nested(drawn, config))
  merged = lora.merged(base, adapters, settings.scale)
  rows = np.random.default_rng(1).standard_normal((5, config.model_dim))
  own = adapters["layers"]["0"]["attention"]
  matrix = np.asarray(base["layers"]["0"]["attention"]["query"], np.float64)
  for layer in range(config.num_layers):
    a, b = (own[f"query_lora_{end}"][layer].astype(np.float64) for end in "ab")
    beside = rows @ matrix[layer] + 1.5 * (rows @ a) @ b
    product = (
      rows @ np.asarray(merged["layers"]["0"]["attention"]["query"])[layer]
    )
    comparison.assert_close(product, beside, roundings=10)


def test_without_a_rank_the_other_fields_change_nothing():
  texts = []
  for updates in (
    {},
    {"train.lora.targets": ("value",), "train.lora.alpha": 2.0},
  ):
    config = test_step.make_config(**updates)
    state, memory = programs.abstract_state(config.recipe)
    assert state.base is None
    assert state.params == network.abstract_params(config.model)
    chunk = functools.partial(step_lib.train_chunk, recipe=config.recipe)
    segments = test_step.make_segments()
    texts.append(str(jax.make_jaxpr(chunk)(state, memory, segments)))
  # Functions are printed with their addresses.
  one, other = (re.sub("0x[0-9a-f]+", "", text) for text in texts)
  assert one == other


@pytest.mark.slow
def test_drawn_layers_are_trained_beside_adapters(source, data_dir, tmp_path):
  workdir = str(tmp_path / "run")
  other = kinds.recurrent()
  config = adapted(
    data_dir,
    source,
    **{
      "model.layers": ("attention", other),
      "train.init_rest": "draw",
      "train.learning_rate_factors": ("layers/0/.*_lora_b=0.5",),
    },
  )
  loop.train(config, workdir)
  state = test_resume.newest(workdir, config).state
  trained = flat(state.params)
  whole = {name for name in trained if "_lora_" not in name}
  assert whole
  assert all(name.startswith(f"layers/1/{other}/") for name in whole)
  drawn = flat(jax.jit(programs.drawn_params, static_argnums=0)(config.recipe))
  assert any(np.abs(trained[name] - drawn[name]).max() > 1e-3 for name in whole)
  # All layers keep the rest, at their own numbers.
  loaded = trained_model.load(config, workdir)
  given = flat(tiny.params(model_of(data_dir)))
  found = flat(loaded.params)
  for layer in (0, 1):
    np.testing.assert_array_equal(
      found[f"layers/{layer}/feed_forward/in_kernel"][0],
      given["layers/0/feed_forward/in_kernel"][layer],
    )
  *_, last = (line for line in finished.lines(workdir) if "split" in line)
  (card,) = evaluate.run(
    load.replaced(config, {"eval.split": "valid"}), workdir
  )
  assert card["nll"] == last["nll"]


def model_of(data_dir):
  values = {"model.vocab_size": len(corpus.SYMBOLS)}
  return corpus.config(data_dir, **values).model


@pytest.mark.slow
def test_adapters_without_their_base_name_it(finished_run, data_dir, tmp_path):
  config, workdir, base = finished_run
  there = trained_model.load(config, workdir)
  longer = load.replaced(config, {"train.num_steps": 12})
  moved = str(tmp_path / "moved")
  shutil.move(base, moved)
  try:
    for use in (
      lambda: evaluate.check_run(config, workdir),
      lambda: trained_model.load(config, workdir),
      lambda: loop.train(longer, workdir),
    ):
      with pytest.raises(errors.UserError, match="these are gone") as caught:
        use()
      assert base in str(caught.value)
      assert "\n" not in str(caught.value)
    # It is found where it has gone to.
    elsewhere = load.replaced(config, {"train.init_from": moved})
    evaluate.check_run(elsewhere, workdir)
    again = trained_model.load(elsewhere, workdir)
    jax.tree.map(np.testing.assert_array_equal, again.params, there.params)
    # Another model of the same shapes is told from it.
    other = str(tmp_path / "other")
    shutil.copytree(moved, other)
    shutil.rmtree(os.path.join(other, "checkpoints"))
    params = tiny.params(model_of(data_dir), seed=5)
    params_writer.save(other, params, step=3)
    changed = load.replaced(config, {"train.init_from": other})
    with pytest.raises(errors.UserError, match="are not those that the adapt"):
      trained_model.load(changed, workdir)
  finally:
    shutil.move(moved, base)


@pytest.fixture(scope="module")
def second_run(data_dir, finished_run, tmp_path_factory):
  """A run of adapters that began from the one before."""
  _, workdir, _ = finished_run
  folder = str(tmp_path_factory.mktemp("second"))
  updates = {"train.num_steps": 4, "train.eval_every_steps": 0}
  config = adapted(data_dir, workdir, **updates)
  loop.train(config, folder)
  return config, folder


@pytest.mark.slow
def test_a_run_starts_from_adapters_and_their_base(finished_run, second_run):
  config, workdir, _ = finished_run
  merged = trained_model.load(config, workdir).params
  found = trained_model.load(*second_run).params
  name = "in_kernel"
  np.testing.assert_array_equal(
    found["layers"]["0"]["feed_forward"][name],
    merged["layers"]["0"]["feed_forward"][name],
  )
  query = (
    tree["layers"]["0"]["attention"]["query"] for tree in (found, merged)
  )
  assert 1e-4 < np.abs(np.subtract(*query)).max() < 1


def test_adapters_on_adapters_are_known_on_devices_that_round_otherwise(
  second_run, monkeypatch
):
  """Merging what they are beside has other last bits there."""
  here = trained_model.load(*second_run).params
  merged = lora.merged

  def rounded_otherwise(base, adapters, scale):
    return jax.tree.map(
      lambda leaf: leaf * (1 + 2**-23), merged(base, adapters, scale)
    )

  monkeypatch.setattr(lora, "merged", rounded_otherwise)
  there = trained_model.load(*second_run).params
  comparison.assert_close(here, there, roundings=50)
  different = jax.tree.map(lambda one, other: (one != other).any(), here, there)
  assert any(jax.tree.leaves(different))


@pytest.mark.parametrize(
  ("updates", "said"),
  [
    ({"train.lora.alpha": 4.0}, r"alpha=3\.0.*now it has.*alpha=4\.0"),
    ({"train.lora.rank": 0}, r"now it has train\.lora\.rank=0: set the"),
    ({"train.lora.targets": ("query",)}, "set the fields back to resume"),
  ],
)
def test_other_adapters_do_not_resume(finished_run, data_dir, updates, said):
  _, workdir, base = finished_run
  config = adapted(data_dir, base, **updates)
  with pytest.raises(errors.UserError, match=said) as caught:
    loop.train(config, workdir)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("updates", "said"),
  [
    (
      {"train.lora.targets": ("q_proj",)},
      "'q_proj', but the matrices .* query",
    ),
    (
      {"model.num_layers": 3, "train.init_rest": "draw"},
      r"some layers of .*num_layers=2",
    ),
  ],
)
def test_what_adapters_cannot_be_beside_is_refused(
  source, data_dir, tmp_path, updates, said
):
  config = adapted(data_dir, source, **updates)
  with pytest.raises(errors.UserError, match=said) as caught:
    loop.train(config, str(tmp_path / "run"))
  assert "\n" not in str(caught.value)


@pytest.mark.rest
@pytest.mark.slow
def test_two_devices_train_the_adapters_of_one(tmp_path):
  found = own_process.result("adapters_on_mesh", tmp_path)
  assert found["devices"] == 2
  # The base is split, and adapters are whole.
  assert found["shards"] == {"base": [2, 8, 16], "adapter": [2, 16, 2]}
  assert found["change"] > 1e-3
  # Three updates by SGD: sums in another order.
  assert found["difference"] < 1e-5
  # A checkpoint of both is read on one.
  assert found["loaded"] < 1e-6
