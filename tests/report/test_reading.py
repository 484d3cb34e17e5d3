"""The text of a report: surprisal, alternatives and attention."""

import base64
import functools

import jax
import numpy as np
import pytest

from tests import corpus
from tests import kinds
from tests import tiny
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import vocabulary
from transformer_xl.evaluation import attention_use
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import protocol
from transformer_xl.report import attention
from transformer_xl.report import reading

ALL = corpus.TOKENS["test"] - 1  # Every token of the split but the first.


def unpacked(packed, name, kind, *shape):
  data = np.frombuffer(base64.b64decode(packed[name]), kind)
  sizes = [packed[f"num_{part}"] for part in ("layers", "heads")]
  return data.reshape(packed["num_queries"], *shape, *sizes, -1)


@pytest.mark.some(1)
@pytest.mark.parametrize(
  "updates",
  [
    {"model.encoding": "absolute"},
    {"data.reset_at_documents": True},
    # More than the text: what is missing of it is attended to.
    {"model.memory_start": "zeros", "eval.mem_len": (2 * ALL,)},
  ],
)
def test_the_loss_is_that_of_an_evaluation(data_dir, tmp_path, updates):
  """One lane, which the evaluation reads with cached keys."""
  updates = updates | {"eval.batch_size": 1}
  config = runs.write(data_dir, tmp_path, **updates)
  text = reading.read(config, str(tmp_path))
  subject = evaluate.load(config, str(tmp_path))
  (card,) = evaluate.evaluate(subject)
  assert text["num_tokens"] == card["num_tokens"] == ALL
  # The same sums in another order, in float32; nll is rounded for the page.
  np.testing.assert_allclose(text["mean_nll"], card["nll"], rtol=1e-5)
  np.testing.assert_allclose(np.mean(text["nll"]), card["nll"], rtol=1e-4)
  relative = config.model.encoding == "relative"
  assert text["attention"]["has_term"] == [True] + [relative] * 3


def test_an_alternative_that_came_has_its_surprisal(
  data_dir, tmp_path, monkeypatch
):
  monkeypatch.setattr(reading, "NUM_TOKENS", 50)
  config = runs.write(data_dir, tmp_path)
  text = reading.read(config, str(tmp_path))
  assert len(text["tokens"]) == 51
  symbols = {str(token): piece for token, piece in text["symbols"].items()}
  came = 0
  for at, tokens in enumerate(text["top_tokens"]):
    log_probs = text["top_log_probs"][at]
    assert log_probs == sorted(log_probs, reverse=True)
    for token, log_prob in zip(tokens, log_probs, strict=True):
      if symbols[str(token)] == text["tokens"][at + 1]:
        assert log_prob == pytest.approx(-text["nll"][at], abs=1e-3)
        came += 1
  assert came > 5


@pytest.fixture(scope="module")
def segment():
  """A segment of one lane as attention_use reads it, and its summary."""
  config = tiny.config_dict()
  config.model.vocab_size = 23
  config = load.from_config_dict(config)
  model = protocol.make_network(config.model, config.eval, inspects=True)
  params = tiny.params(config.model)
  tokens, targets, memory = tiny.inputs(config.model)
  read = jax.jit(functools.partial(attention_use.read_segment, model=model))
  resets = np.zeros(tokens.shape, bool)
  found = read(params, memory, segment_lib.Segment(tokens, targets, resets))
  lane = found._replace(
    weights=found.weights[:, :1],
    terms=jax.tree.map(lambda term: term[:, :1], found.terms),
  )
  starts = tuple(attention.bins(tiny.MEMORY + tiny.SEGMENT - 1))
  return lane, attention.summary(lane, starts), starts


def test_the_terms_of_a_key_explain_its_weight(segment):
  """Two keys' weights have the ratio that their summed terms say."""
  _, found, _ = segment
  scores = np.asarray(found.terms.sum(axis=1))  # [T, N, H, C]
  weights = np.asarray(found.weights)
  seen = weights > 0
  assert np.abs(found.terms).min(where=seen[:, None], initial=1) < 1
  ratio = np.log(weights[..., :1] / np.where(seen, weights, 1))
  expected = (scores[..., :1] - scores) * seen
  # Softmax and logarithm in float32.
  np.testing.assert_allclose(ratio * seen, expected, atol=1e-4)
  assert np.ptp(expected) > 0.5


def test_the_keys_that_are_kept_are_the_most_attended(segment, monkeypatch):
  lane, found, starts = segment
  monkeypatch.setattr(attention, "NUM_KEYS", 2)
  few = attention.summary(lane, starts)
  assert few.weights.shape[-1] == 2 < found.weights.shape[-1]
  whole = np.asarray(lane.weights[:, 0])  # [N, H, T, K]
  for layer, head, query in np.ndindex(whole.shape[:3]):
    row = whole[layer, head, query]
    keys = tiny.MEMORY + query - few.distances[query, layer, head]
    np.testing.assert_array_equal(row[keys], np.sort(row)[::-1][:2])


def test_the_profile_has_all_attention_by_distance(segment):
  lane, found, starts = segment
  assert starts == (0, 1, 2, 4)
  np.testing.assert_allclose(found.profile.sum(-1), 1, rtol=1e-5)
  whole = np.asarray(lane.weights[:, 0])
  last = whole[:, :, -1]  # This query sees every key.
  np.testing.assert_allclose(found.profile[-1, ..., 0], last[..., -1])
  far = last[..., : last.shape[-1] - 4].sum(-1)
  np.testing.assert_allclose(found.profile[-1, ..., 3], far, rtol=1e-5)
  on_memory = last[..., : tiny.MEMORY].sum(-1)
  np.testing.assert_allclose(found.on_memory[-1], on_memory, rtol=1e-5)


def test_packed_attention_is_exact_to_a_byte(segment):
  _, found, starts = segment
  packed = attention.packed(found, starts)
  weights = (unpacked(packed, "weights", np.uint8) / 255.0) ** 2
  np.testing.assert_allclose(weights, found.weights, atol=1 / 255)
  distances = unpacked(packed, "distances", "<u2")
  np.testing.assert_array_equal(distances, found.distances)
  scales = np.array(packed["term_scales"])[..., None]
  terms = unpacked(packed, "terms", np.int8, 4) / 127.0 * scales
  np.testing.assert_allclose(terms, found.terms, atol=scales.max() / 127)


def test_the_newest_queries_are_kept_if_there_is_no_room(segment, monkeypatch):
  _, found, starts = segment
  each = sum(
    array[0].size * size
    for array, size in zip(found, (1, 2, 1, 1, 1), strict=True)
  )
  monkeypatch.setattr(attention, "MOST_BYTES", 2 * each + 1)
  packed = attention.packed(found, starts)
  assert packed["num_queries"] == 2 < len(found.weights)
  distances = unpacked(packed, "distances", "<u2")
  np.testing.assert_array_equal(distances, found.distances[-2:])


def test_pieces_of_text_are_printable_or_white_space():
  byte = vocabulary.ByteVocabulary()
  shown = {0: "\\x00", 9: "\t", 10: "\n", 32: " ", 60: "<", 0xE2: "\\xe2"}
  assert {value: reading.piece(byte, value) for value in shown} == shown
  word = vocabulary.WordVocabulary(("<eos>", "a"), False, "<eos>", None)
  assert [reading.piece(word, value) for value in (0, 1)] == ["\n", "a "]


@pytest.mark.parametrize(
  ("fields", "says"),
  [
    (
      {"eval.mem_len": (0,), "eval.context_len": 4},
      "set --config.eval.context_len=0",
    ),
    (
      {"model.layers": (kinds.compressing(),)},
      "whose keys are several tokens each",
    ),
  ],
  ids=["context", "slots"],
)
def test_what_a_page_cannot_show_is_one_line(data_dir, tmp_path, fields, says):
  config = runs.write(data_dir, tmp_path, **fields)
  with pytest.raises(errors.UserError, match=says):
    reading.read(config, str(tmp_path))


def test_missing_data_are_one_line(data_dir, tmp_path):
  config = runs.write(data_dir, tmp_path)
  config = load.replaced(config, {"data.dir": str(tmp_path / "nowhere")})
  with pytest.raises(errors.UserError, match="nowhere"):
    reading.read(config, str(tmp_path))
