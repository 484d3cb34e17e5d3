"""Factors on the learning rate by patterns over names; 0 freezes."""

import functools
import sys

import jax
import numpy as np
import optax
import pytest
from absl import flags
from ml_collections import config_flags

from tests import comparison
from tests import corpus
from tests import kinds
from tests import tiny
from tests.training import test_published_training as updates
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.training import loop
from transformer_xl.training import optimizer
from transformer_xl.training import programs
from transformer_xl.training import rate_factors

FIELD = "train.learning_rate_factors"
SEGMENT = functools.partial(
  updates.make_segment, updates.LENGTH, updates.LENGTH
)
RULES = ("layers/0/.*=0", "layers/.*=0.5", "embedding/table_0=2")


def test_each_parameter_gets_the_factor_of_the_first_pattern_that_matches():
  plain = updates.make_config()
  config = updates.make_config(**{FIELD: RULES})
  before, one, metrics = updates.update(config, SEGMENT())
  _, other, others = updates.update(plain, SEGMENT())
  for name in before:
    for old, new, whole in zip(
      *(jax.tree.leaves(tree[name]) for tree in (before, one, other)),
      strict=True,
    ):
      factor = np.float32(2 if name == "embedding" else 1)
      if name == "layers":
        factor = np.array([0, 0.5]).reshape(-1, *[1] * (old.ndim - 1))
      assert np.abs(whole - old).max() > 1e-5
      comparison.assert_close(new, old + factor * (whole - old), roundings=10)
  assert float(metrics.learning_rate) == float(others.learning_rate)
  # The norm, by which gradients are clipped, leaves out what is frozen.
  assert float(metrics.gradient_norm) < float(others.gradient_norm)


def test_layers_of_a_pattern_have_their_own_numbers():
  config = load.from_config_dict(
    tiny.config_dict(
      **{
        "model.num_layers": 4,
        "model.layers": (kinds.recurrent(), "attention"),
        FIELD: ("layers/3/.*=0",),
      }
    )
  )
  params = tiny.params(config.model)
  frozen = rate_factors.frozen_names(params, config.train)
  assert frozen
  assert all(name.startswith("layers/3/") for name in frozen)
  assert not any(f"/{kinds.recurrent()}/" in name for name in frozen)


def test_what_is_frozen_has_no_gradient():
  config = updates.make_config(**{FIELD: ("embedding/.*=0", "layers/0/.*=0")})
  gradient = jax.tree.map(np.ones_like, tiny.params(config.model))
  left = rate_factors.without_frozen(gradient, config.train)
  for leaf in jax.tree.leaves(left["embedding"]):
    assert not np.any(leaf)
  for leaf in jax.tree.leaves(left["layers"]):
    assert not np.any(leaf[0])
    assert np.all(leaf[1:] == 1)
  for leaf in jax.tree.leaves(left["softmax"]):
    assert np.all(leaf == 1)


@pytest.mark.parametrize(
  "name", ["adamw", pytest.param("lamb", marks=pytest.mark.rest)]
)
def test_what_is_frozen_stays_to_the_bit_and_has_no_state(name):
  decays = {
    **{"train.optimizer": name, "train.weight_decay": 0.5},
    **{"train.l2_penalty": 0.1, "train.clip_norm": 0.25},
  }
  frozen = ("layers/.*=0", "embedding/.*=0")
  config = updates.make_config(**decays, **{FIELD: frozen})
  before, one, metrics = updates.update(config, SEGMENT())
  for part in ("layers", "embedding"):
    jax.tree.map(np.testing.assert_array_equal, before[part], one[part])
  assert comparison.distance(before["softmax"], one["softmax"]) > 1e-3
  assert float(metrics.gradient_norm) > 0
  state = optimizer.make_optimizer(config.train).init(before)
  sizes = [leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim]
  trained = sum(
    leaf.size
    for part in before
    if part not in ("layers", "embedding")
    for leaf in jax.tree.leaves(before[part])
  )
  assert sum(sizes) == 2 * trained  # Adam's two moments.


def test_what_is_kept_of_the_others_is_split_as_they_are():
  values = {"train.optimizer": "adam", FIELD: ("embedding/.*=0",)}
  config = updates.make_config(**values)
  mesh = mesh_lib.make_mesh(config.mesh)
  state, _ = programs.shardings(config.recipe, mesh)
  moments = optax.tree_utils.tree_get(state.opt_state, "mu")
  assert moments["layers"] == state.params["layers"]
  assert moments["softmax"] == state.params["softmax"]
  assert not jax.tree.leaves(moments["embedding"])


@pytest.mark.parametrize(
  ("rules", "message"),
  [
    (("layer/.*=0",), "'layer/.*' matches no parameter .* layers/0/"),
    (("layers/2/.*=0",), "'layers/2/.*' matches no parameter"),
    (("softmax=2",), "near names are softmax/bias"),
    (("softmax/.*=1", "softmax/bias=2"), "'softmax/bias' matches no .*earlier"),
  ],
)
def test_a_pattern_without_a_parameter_is_refused(rules, message):
  config = updates.make_config(**{FIELD: rules})
  with pytest.raises(errors.UserError, match=message) as refusal:
    programs.abstract_state(config.recipe)
  assert "\n" not in str(refusal.value)


@pytest.mark.rest
def test_a_run_goes_on_with_the_same_parameters_frozen(data_dir, tmp_path):
  def train(num_steps, *rules):
    values = {"train.num_steps": num_steps, "model.num_layers": 2}
    config = corpus.config(data_dir, **values, **{FIELD: rules})
    return loop.train(config, str(tmp_path))

  assert train(2, "layers/0/.*=0")
  with pytest.raises(errors.UserError, match=r"layers/0/.* is trained by tra"):
    train(4, "layers/1/.*=0")
  # The optimizer's state has other arrays then, which says less.
  with pytest.raises(errors.UserError, match=r"layers/0/.* is trained by tra"):
    train(4)
  with pytest.raises(errors.UserError, match=r"embedding/.* is frozen by tra"):
    train(4, "layers/0/.*=0", "embedding/.*=0")
  assert train(4, "layers/0/.*=0", "softmax/.*=0.5")  # Nothing else is frozen.


@pytest.mark.parametrize(
  "rule", ["layers/.*", "layers/.*=-1", "=1", "(=1", "x=nan", "x=inf", "x=y"]
)
def test_what_is_no_pattern_and_factor_is_refused(rule):
  with pytest.raises(errors.UserError, match="must be PATTERN=FACTOR"):
    load.from_config_dict(tiny.config_dict(**{FIELD: (rule,)}))


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("layers/.*=0.1", ("layers/.*=0.1",)),
    (
      "('layers/[01]/.*=0','softmax/.*=2')",
      ("layers/[01]/.*=0", "softmax/.*=2"),
    ),
  ],
)
def test_the_command_line_sets_one_or_several(text, expected, monkeypatch):
  # Fields become flags where the command line names them.
  monkeypatch.setattr(sys, "argv", ["command", f"--config.{FIELD}={text}"])
  values = flags.FlagValues()
  holder = config_flags.DEFINE_config_dict(
    "config", tiny.config_dict(), flag_values=values
  )
  values(sys.argv)
  config = load.from_config_dict(holder.value)
  assert config.train.learning_rate_factors == expected
  assert rate_factors.freezes(config.train) == ("=0'" in text)
