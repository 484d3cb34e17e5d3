"""Recall: what counts as right, at which distance, and with which memory."""

import functools
import json

import jax
import numpy as np
import pytest

from tests import corpus
from tests import kinds
from tests import oracle
from tests import oracles
from tests import tiny
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import recall
from transformer_xl.config import load
from transformer_xl.data import token_file
from transformer_xl.data_prep import preparation
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import protocol
from transformer_xl.model import network

ROUNDING = 1e-5  # Float32 against float64, see `conformance`.
LONGEST = 32
RUN = {
  "model.vocab_size": 0,
  "eval.segment_len": 5,
  "eval.batch_size": 3,
  "eval.mem_len": (4, 8),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """The folder of a short text, its test tokens and their answers."""
  folder = preparation.prepare(
    dataset="recall",
    data_dir=str(tmp_path_factory.mktemp("data")),
    name=corpus.NAME,
    num_tokens=8_000,
    num_keys=16,
    max_distance=LONGEST,
  )
  file = token_file.open_split(str(folder), "test")
  return str(folder.parent), np.array(file.tokens), file.answers


def test_a_model_of_known_accuracy_is_measured_exactly(
  data, tmp_path, monkeypatch
):
  """Right up to twice its memory; beyond, one answer in two, and a loss."""
  data_dir, tokens, answers = data
  missed = {}

  def guess(subject, mem_len, *, warmup_len):
    assert warmup_len == LONGEST
    likeliest, nll = tokens[1:].astype(np.int32), np.zeros(len(tokens) - 1)
    far = np.flatnonzero(answers.distances > 2 * mem_len)[::2]
    likeliest[answers.positions[far] - 1] += 1
    nll[answers.positions[far] - 1] = 4.0
    missed[mem_len] = answers.distances[far].tolist()
    return recall.Guess(nll, likeliest)

  monkeypatch.setattr(recall, "guess", guess)
  config = runs.write(data_dir, tmp_path, **RUN)
  result = recall.run(config, str(tmp_path))
  folder = tmp_path / "results"
  assert json.loads((folder / "recall.json").read_text()) == result
  assert result["chance"] == 0.1
  assert result["distances"][0][0] == 4
  assert result["distances"][-1] == [27, LONGEST]
  distances = answers.distances.tolist()
  for curve in result["curves"]:
    seen = 0
    for index, (low, high) in enumerate(result["distances"]):
      count = sum(low <= one <= high for one in distances)
      wrong = sum(low <= one <= high for one in missed[curve["mem_len"]])
      assert result["num_answers"][index] == count
      assert curve["accuracy"][index] == (count - wrong) / count
      assert curve["nll"][index] == pytest.approx(4 * wrong / count)
      assert high <= low * 2**0.25 * 1.01
      seen += count
    assert seen == len(distances)
  near, far = result["curves"]
  assert (near["reach"], far["reach"]) == (4 + 4 + 5, 4 + 8 + 10)
  lines = (folder / "recall.md").read_text().splitlines()
  assert len(lines) == 4
  assert lines[2].startswith(f"| {tmp_path.name} | 5 | 4 | ")
  assert result["made_by"].encode() in (folder / "recall.png").read_bytes()


def test_the_end_of_a_curve_is_where_it_first_falls_below_a_half():
  result = {"distances": [[4, 4], [5, 6], [7, 9], [10, 12]]}
  for accuracy, expected in (
    ([1.0, 0.5, 0.4, 0.9], 6),
    ([1.0] * 4, 12),
    ([0.4, 1.0, 1.0, 1.0], 0),
  ):
    assert recall.answers_up_to(result, {"accuracy": accuracy}) == expected


COMPRESSING = kinds.compressing()
COMPRESSED = {
  **oracles.get(COMPRESSING, "WHOLE_SLOTS"),
  "train.segment_len": 10,  # They fill whole slots.
}


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("lanes", "compressed"), [(1, {}), (3, {}), (1, COMPRESSED)]
)
def test_guesses_are_those_of_the_equations(data, tmp_path, lanes, compressed):
  """And they do not depend on lanes if these read enough text before."""
  data_dir, tokens, _ = data
  updates = RUN | {"eval.batch_size": lanes, "model.num_layers": 2}
  updates |= compressed
  config = runs.write(data_dir, tmp_path, **updates)
  subject = evaluate.load(config, str(tmp_path))
  found = recall.guess(subject, 4, warmup_len=2 * 5)
  assert len(found.nll) == len(tokens) - 1
  lane = oracle.start(config.model, batch_size=1, mem_len=4)
  params = jax.device_get(subject.params)
  for start in range(0, 100, 5):
    log_probs, lane = oracle.segment(
      params,
      config.model,
      tokens[None, start : start + 5],
      lane,
      mem_len=4,
    )
    part = slice(start, start + 5)
    targets = tokens[start + 1 : start + 6]
    expected = -log_probs[0, np.arange(5), targets]
    np.testing.assert_allclose(found.nll[part], expected, atol=ROUNDING)
    assert found.likeliest[part].tolist() == log_probs[0].argmax(-1).tolist()


LIMITS = {"model.layers": ("attention:3", "attention")}
WINDOW = {"eval.same_length": True, "model.same_length_window": "mem_len"}
LONGER = {"eval.same_length": True}  # One key more: the token itself.


REACHES = [
  ({}, 7, 4 + 7 + 10),
  ({}, 10, 4 + 10 + 10),
  (COMPRESSED, 4, 4 + (4 + 2 * 5) + 15),
  ({}, 0, 4),
  (COMPRESSED, 0, 4),
  (LIMITS, 8, 4 + 3 + 10),
  (LONGER, 7, 7 + 7),
  (WINDOW, 0, 4),
  (WINDOW, 7, 6 + 6),
  (LIMITS | LONGER, 8, 3 + 8),
  ({"eval.context_len": 3}, 0, 3 + 4),
]
WITHOUT_REACH = [
  ({"model.layers": (kinds.recurrent(), "attention")}, 1, None),
  (COMPRESSED | LONGER, 4, None),
]


def with_memory(updates, mem_len):
  values = {"train.mem_len": 1, "eval.segment_len": 5} | updates
  values |= {"eval.mem_len": (mem_len,)}
  return load.from_config_dict(tiny.config_dict(**values))


@pytest.mark.parametrize(
  ("updates", "mem_len", "expected"), [*REACHES, *WITHOUT_REACH]
)
def test_the_reach_is_counted_from_layers_and_lengths(
  updates, mem_len, expected
):
  config = with_memory(updates, mem_len)
  assert recall.reach(config.model, config.eval, mem_len) == expected


@pytest.mark.some(4)  # Plain, compressed, limited, in a window.
@pytest.mark.parametrize(("updates", "mem_len", "expected"), REACHES)
def test_the_farthest_token_that_matters_is_at_the_reach(
  updates, mem_len, expected
):
  """The last guess of a segment depends on it, and on none before."""
  config = with_memory(updates, mem_len)
  model = protocol.make_network(config.model, config.eval)
  context_len = config.eval.context_len
  read = jax.jit(functools.partial(model.apply, method="log_probs"))

  def last(text):
    memory = network.empty_state(
      config.model, batch_size=1, mem_len=mem_len, step_len=5
    )
    for start in range(context_len, 50 - 4, 5):
      part = text[:, start - context_len : start + 5]
      params = {"params": tiny.params(config.model)}
      log_probs, memory = read(params, part, memory)
    return np.asarray(log_probs[0, -1])

  text = np.arange(50, dtype=np.int32)[None] % config.model.vocab_size
  text = text[:, : 50 - (50 - context_len) % 5]
  for distance, matters in ((expected, True), (expected + 1, False)):
    changed = text.copy()
    changed[0, -1 - distance] += 1
    assert np.any(last(changed) != last(text)) == matters


@pytest.mark.rest
def test_runs_are_compared_with_their_own_memories(data, tmp_path):
  data_dir, *_ = data
  # Spelled in another way, a run is still the same.
  folders = (f"{tmp_path}/b", f"{tmp_path}/b/../a", f"{tmp_path}/b/")
  group = {"analysis.group": folders, "eval.mem_len": (4, 0)}
  config = runs.write(data_dir, tmp_path / "a", **RUN | COMPRESSED | group)
  limits = ("attention:3", "attention")
  other = {"model.layers": limits, "eval.mem_len": (8,)}
  runs.write(data_dir, tmp_path / "b", **RUN | other)
  result = recall.run(config, str(tmp_path / "a"))
  curves = [(one["name"], one["mem_len"]) for one in result["curves"]]
  assert curves == [("a", 4), ("a", 0), ("b", 8)]
  memories = [
    f"4 in layers {COMPRESSING} (function mean, rate 5, slots 2)",
    f"0 in layers {COMPRESSING}",
    "8 in layers attention:3,attention",
  ]
  _, labels = recall.draw(result).axes[0].get_legend_handles_labels()
  names = zip("aab", memories, strict=True)
  assert labels[:3] == [f"{name}, memory {text}" for name, text in names]
  assert [row["memory"] for row in recall.table(result)] == memories


def test_other_text_is_one_line(tmp_path):
  data_dir = corpus.write(tmp_path / "data")
  config = runs.write(data_dir, tmp_path / "run")
  with pytest.raises(errors.UserError, match=r"test of .*tiny has none"):
    recall.run(config, str(tmp_path / "run"))
