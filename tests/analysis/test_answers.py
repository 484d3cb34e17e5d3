"""Studies of synthetic tasks: what is right, and what it costs."""

import json
import math

import numpy as np
import pytest

from tests import corpus
from tests import kinds
from tests.analysis import runs
from transformer_xl.analysis import answers
from transformer_xl.analysis import costs
from transformer_xl.analysis import recall
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import study
from transformer_xl.config import load
from transformer_xl.data import token_file
from transformer_xl.data_prep import preparation
from transformer_xl.evaluation import evaluate
from transformer_xl.experiments import memory_suite

RUN = {
  "model.vocab_size": 0,
  "model.num_layers": 2,
  "data.targets": "answers",
  "data.reset_at_documents": True,
  "train.num_steps": 4,
  "checkpoint.every_steps": 4,
}


@pytest.fixture(scope="module")
def task_dir(tmp_path_factory):
  folder = preparation.prepare(
    dataset="parity",
    data_dir=str(tmp_path_factory.mktemp("data")),
    name=corpus.NAME,
    num_tokens=4_000,
    max_distance=12,
  )
  return str(folder.parent)


def test_the_loss_of_answers_is_that_of_an_evaluation(task_dir, tmp_path):
  """Two programs agree: a card of the answers, and the guesses of recall."""
  config = runs.write(task_dir, tmp_path, **RUN, **{"eval.warmup_len": 12})
  model = evaluate.load(config, str(tmp_path))
  (card,) = evaluate.evaluate(model)
  file = token_file.open_split(f"{task_dir}/{corpus.NAME}", config.eval.split)
  assert card["num_tokens"] == len(file.answers.positions)
  assert card["targets"] == "answers"
  assert card["word_perplexity"] is None
  measured = answers.measure(model, config.eval.mem_len)
  # Sums of float32 in another order.
  assert measured.losses[8] == pytest.approx(card["nll"], rel=1e-5)
  distances = file.answers.distances
  bins = np.ceil(4 * np.log2(distances / distances.max()))
  assert len(measured.bins[8]) == len({*bins.tolist()})


@pytest.mark.rest
def test_a_study_of_a_task_has_answers_and_costs(task_dir, tmp_path):
  values = RUN | {
    "analysis.variants": ("base: ", "none: train.mem_len=0; eval.mem_len=(0,)"),
  }
  result = study.run(corpus.config(task_dir, **values), str(tmp_path))
  saved = json.loads((tmp_path / "results" / "study.json").read_text())
  assert saved == json.loads(json.dumps(result))
  base, none = result["rows"]
  for row in (base, none):
    (shares,) = row["bins_by_seed"]
    assert len(shares) == len(result["num_answers"]) > 4
    assert 0 <= min(shares) < max(shares) <= 1
    assert row["config"]["data"]["targets"] == "answers"
    assert row["card"]["mem_len"] == row["mem_len"]
    assert {"commit", "device", "date"} <= {*row}
  # Two layers of eight states in float32, and a scalar or two beside them.
  model = base["config"]["model"]
  states = 2 * 8 * model["model_dim"] * 4
  assert states <= base["state_bytes"] - none["state_bytes"] < states + 16
  assert base["forward_flops_per_token"] > none["forward_flops_per_token"] > 0
  lines = (tmp_path / "results" / "study.md").read_text().splitlines()
  assert "right, %" in lines[0]
  assert len(lines) == 4


def row(*by_seed):
  values = dict.fromkeys(rows_lib.Row._fields)
  return rows_lib.Row(**values | {"bins_by_seed": [*by_seed]})


def test_bins_count_by_their_answers():
  scale = recall.Scale(
    bins=[], distances=[[1, 1], [2, 2], [3, 4]], num_answers=[1, 3, 6], chance=0
  )
  one = row([1.0, 0.5, 0.0], [1.0, 1.0, 0.5])
  every = answers.shares(one, scale)
  assert every.by_seed == pytest.approx([0.25, 0.7])
  assert every.median == pytest.approx(0.475)
  assert (every.low, every.high) == pytest.approx((0.25, 0.7))
  near = answers.shares(one, scale, 0, 1)
  assert near.by_seed == pytest.approx([0.625, 1.0])
  far = answers.shares(one, scale, 2, 2)
  assert far.by_seed == pytest.approx([0.0, 0.5])


def test_a_table_has_medians_what_is_solved_and_what_is_not_told_apart(
  monkeypatch,
):
  monkeypatch.setattr(answers, "cost_cells", lambda row, is_planned: {})
  scale = recall.Scale(
    bins=[], distances=[[1, 1], [2, 2]], num_answers=[1, 1], chance=0
  )
  config = load.from_config_dict(memory_suite.get_config("mqar"))
  rows = [
    row(*([share, share] for share in shares))._replace(
      config=config,
      learning_rate=6e-3,
      learning_rates=[rows_lib.TriedRate(6e-3, 1.0)] * 6,
      edge="highest" if shares[0] == 0.5 else "",
    )
    for shares in ([0.5, 1.0, 0.52], [0.89, 0.9, 0.91], [0.3, 0.2, 0.1])
  ]
  found = answers.table(rows, scale)
  assert [line["right, %"] for line in found] == ["52.0", "90.0", "20.0"]
  assert found[0]["over seeds"] == "50.0 to 100.0"
  solved = [line["solved (90 % right)"] for line in found]
  assert solved == ["1 of 3", "2 of 3", "0 of 3"]
  ranks = [line["rank"] for line in found]
  assert ranks == ["2, not told apart from 1", "1", "3"]
  rates = [line["learning rate"] for line in found]
  assert rates == ["0.006 (highest of 6)", "0.006", "0.006"]


def test_mechanisms_of_the_suite_hand_on_about_equal_bytes():
  """Vectors are far smaller; what stores states has what Transformer-XL has."""
  sizes = {}
  mixers = {}
  for name, changes in memory_suite.mechanisms("mqar").items():
    config = load.from_config_dict(memory_suite.get_config("mqar"))
    config = load.changed(config, dict(changes))
    config = load.replaced(config, {"model.vocab_size": 9})
    (mem_len,) = config.eval.mem_len
    sizes[name] = costs.state_bytes(config.model, config.eval, mem_len)
    mixers[config.model.layers] = name
  assert sizes["none"] < 100
  compressed = mixers[(kinds.compressing(),)]
  for name in ("stopped_gradient", "window", compressed):
    assert math.isclose(sizes[name], sizes["transformer_xl"], rel_tol=0.05)
  # What sees the whole task remembers most.
  retrieving = mixers[kinds.mixers(has_gradient_to_memory=False)]
  assert set(sorted(sizes, key=sizes.get)[-2:]) == {"full", retrieving}
