"""Dynamic evaluation: its results file, its cards and its errors."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import comparison
from tests import corpus
from tests import shared_programs
from tests import tiny
from tests.evaluation import splits
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.data_prep import preparation
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation.dynamic import evaluator as dynamic_evaluator
from transformer_xl.evaluation.dynamic import update
from transformer_xl.workdir import params_writer

DYNAMIC = {
  "eval.dynamic.kind": "rms",
  "eval.dynamic.learning_rate": (3e-3,),
}
CACHE = {"eval.cache.size": 20, "eval.cache.share": (0.2,)}


@pytest.fixture(scope="module", autouse=True)
def programs_are_shared():
  """Most evaluations differ only in their rate, which no program has."""
  with shared_programs.sharing():
    yield


@pytest.fixture(scope="module")
def workdir(data_dir, tmp_path_factory):
  folder = str(tmp_path_factory.mktemp("run"))
  params = tiny.params(corpus.config(data_dir).model)
  params_writer.save(folder, params, step=5)
  return folder


def results(workdir, name):
  with open(f"{workdir}/results/{name}.json", encoding="utf-8") as file:
    return json.load(file)


def scores(config, *, rate):
  mesh = mesh_lib.make_mesh(config.mesh)
  rule = update.Rule(jnp.float32(rate), jnp.float32(0.02))
  with jax.set_mesh(mesh):
    evaluator = dynamic_evaluator.DynamicEvaluator(
      config.scoring, mesh, mem_len=8
    )
    return evaluator(tiny.params(config.model), rule)


@pytest.mark.rest
def test_statistics_are_of_the_targets_that_updates_learn(tmp_path):
  """Where only answers count, the gradients of the text are not measured."""
  preparation.prepare(
    dataset="parity",
    data_dir=str(tmp_path),
    name=corpus.NAME,
    num_tokens=2_000,
    max_distance=12,
  )
  meta = token_file.read_meta(f"{tmp_path}/{corpus.NAME}")
  squares = []
  for targets in ("all", "answers"):
    values = DYNAMIC | {"model.vocab_size": 0, "data.targets": targets}
    config = corpus.config(str(tmp_path), **values)
    config = load.with_vocab_size(config, meta)
    mesh = mesh_lib.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
      made = dynamic_evaluator.DynamicEvaluator(config.scoring, mesh, mem_len=8)
      made(tiny.params(config.model), update.Rule(*jnp.float32([3e-3, 0.02])))
    squares.append(made._mean_squares)
  assert comparison.difference(*squares) > 0.1


def test_evaluation_is_static_by_default(data_dir, workdir):
  config = corpus.config(data_dir)
  (card,) = evaluate.run(config, workdir)
  (static,) = evaluate.evaluate(evaluate.load(config, workdir))
  assert set(card) == set(static)
  assert "dynamic" not in card


def test_dynamic_results_have_their_own_file_and_all_settings(
  data_dir, workdir
):
  config = corpus.config(data_dir, **DYNAMIC, **CACHE)
  static, card = evaluate.run(config, workdir)
  assert results(workdir, "eval_test") == {"cards": [static]}
  assert results(workdir, "dynamic_test") == {
    "static": [static],
    "cards": [card],
  }
  assert set(card) == {*static, "dynamic", "cache"}
  with open(f"{workdir}/results/cards.jsonl", encoding="utf-8") as file:
    assert [json.loads(line) for line in file][-2:] == [static, card]
  assert card["dynamic"] == {
    "kind": "rms",
    "lanes": "apart",
    "learning_rate": 3e-3,
    "decay": 0.02,
  }
  assert card["cache"] == {"size": 20, "flatness": 0.1, "share": 0.2}
  # A card states every setting of the two.
  assert set(card["dynamic"]) == set(vars(config.eval.dynamic))
  assert set(card["cache"]) == set(vars(config.eval.cache))
  assert card["num_tokens"] == static["num_tokens"] == 149
  assert card["nll"] != static["nll"]
  (alone,) = scores(config, rate=3e-3)
  assert card["nll"] == alone.nll / 149


def test_statistics_without_a_target_are_refused(
  data_dir, workdir, monkeypatch
):
  """Their mean is 0, by which steps are divided."""
  config = corpus.config(data_dir, **DYNAMIC)
  usual = streams.TrainStream.read

  def read_nothing(*arguments):
    found = usual(*arguments)
    return found._replace(weights=np.zeros(found.targets.shape, np.float32))

  monkeypatch.setattr(streams.TrainStream, "read", read_nothing)
  with pytest.raises(errors.UserError, match=r"no answers.*kind=sgd"):
    evaluate.run(config, workdir)


@pytest.mark.parametrize(
  "lanes", ["apart", pytest.param("shared", marks=pytest.mark.rest)]
)
def test_without_a_rate_every_token_scores_as_in_static_evaluation(
  data_dir, lanes
):
  config = corpus.config(
    data_dir, **DYNAMIC, **{"eval.dynamic.lanes": lanes, "eval.batch_size": 3}
  )
  expected = splits.score(config)
  (found,) = scores(config, rate=0.0)
  assert found.num_tokens == expected.num_tokens
  # Sums of the same float32 products in another order.
  assert found.nll == pytest.approx(expected.nll, rel=2e-6)
  (moved,) = scores(config, rate=3e-3)
  assert abs(moved.nll - expected.nll) > 1e-3 * expected.nll


def test_learning_lowers_the_loss_of_a_text_that_repeats(data_dir):
  """Random parameters leave much to learn; the text has five letters."""
  config = corpus.config(data_dir, **DYNAMIC, **CACHE)
  (still,) = scores(corpus.config(data_dir, **DYNAMIC), rate=0.0)
  (learned,) = scores(corpus.config(data_dir, **DYNAMIC), rate=3e-3)
  (both,) = scores(config, rate=3e-3)
  assert learned.nll < 0.98 * still.nll
  assert both.nll < learned.nll


@pytest.mark.rest
def test_a_sweep_equals_each_setting_alone(data_dir, workdir, caplog):
  caplog.set_level("INFO")
  rates, decays, shares = (1e-3, 3e-3), (0.0, 0.1), (0.1, 0.3)
  base = {**DYNAMIC, **CACHE, "eval.split": "valid"}
  config = corpus.config(
    data_dir,
    **base
    | {
      "eval.dynamic.learning_rate": rates,
      "eval.dynamic.decay": decays,
      "eval.cache.share": shares,
    },
  )
  _, *cards = evaluate.run(config, workdir)
  found = [
    (
      card["dynamic"]["learning_rate"],
      card["dynamic"]["decay"],
      card["cache"]["share"],
    )
    for card in cards
  ]
  assert found == [*itertools.product(rates, decays, shares)]
  assert len({card["nll"] for card in cards}) == 8
  one = corpus.config(
    data_dir,
    **base
    | {
      "eval.dynamic.learning_rate": rates[1:],
      "eval.dynamic.decay": decays[1:],
      "eval.cache.share": shares[:1],
    },
  )
  _, alone = evaluate.run(one, workdir)
  assert alone["nll"] == pytest.approx(cards[6]["nll"], rel=1e-6)
  best = min(cards, key=lambda card: card["nll"])
  rate = best["dynamic"]["learning_rate"]
  assert f"--config.eval.dynamic.learning_rate={rate}" in caplog.text
  assert "lowest perplexity of 8" in caplog.text


@pytest.mark.rest
def test_divergence_is_null(data_dir, workdir, caplog):
  caplog.set_level("INFO")
  updates = {"eval.dynamic.kind": "sgd", "eval.dynamic.learning_rate": (1e30,)}
  config = corpus.config(data_dir, **updates)
  _, card = evaluate.run(config, workdir)
  assert card["nll"] is None
  assert card["perplexity"] is None
  assert "diverged" in caplog.text
  assert results(workdir, "dynamic_test")["cards"] == [card]


@pytest.mark.parametrize(
  ("updates", "says"),
  [
    ({"eval.dynamic.learning_rate": (0.1, -1.0)}, "0 or more, one or several"),
    ({"eval.dynamic.decay": ()}, "0 or more, one or several"),
    ({"eval.cache.share": (1.0,)}, "in [0, 1)"),
    ({"eval.cache.flatness": (-0.1,)}, "--config.eval.cache.flatness"),
    (
      {**DYNAMIC, "eval.memory": "key_value"},
      "--config.eval.memory=auto",
    ),
    (
      {**CACHE, "eval.memory": "key_value"},
      "--config.eval.memory=auto",
    ),
    (
      {**DYNAMIC, "eval.dynamic.decay": (0.1, 0.2)},
      "--config.eval.split=valid",
    ),
    (
      {**CACHE, "eval.cache.share": (0.1, 0.2)},
      "2 settings of eval.temperature, eval.dynamic",
    ),
  ],
  ids=str,
)
def test_an_invalid_setting_is_one_line(updates, says):
  with pytest.raises(errors.UserError) as caught:
    load.from_config_dict(tiny.config_dict(**updates))
  assert says in str(caught.value)
  assert "\n" not in str(caught.value)


def test_unused_settings_are_not_a_sweep():
  config = tiny.config_dict(**{"eval.cache.share": (0.1, 0.2)})
  assert load.from_config_dict(config).eval.num_settings == 1


@pytest.mark.rest
@pytest.mark.slow
def test_one_lane_is_evaluated_on_many_devices(data_dir, workdir):
  """The published protocol, on a machine with four devices."""
  updates = {**DYNAMIC, "eval.batch_size": 1}
  config = corpus.config(data_dir, **updates)
  _, alone = evaluate.run(config, workdir)
  result = subprocess.run(
    [
      *(sys.executable, "-m", "transformer_xl.main", "--mode=eval"),
      *("--config=experiments/base.py", f"--workdir={workdir}"),
      *corpus.config_flags(data_dir, **updates),
    ],
    cwd=pathlib.Path(__file__).parents[3],
    env={
      **os.environ,
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
      "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    },
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  assert "; 4 lanes, 3 of them empty." in result.stderr
  (card,) = results(workdir, "dynamic_test")["cards"]
  # Other options of XLA, so other rounding.
  assert card["nll"] == pytest.approx(alone["nll"], rel=1e-5)
