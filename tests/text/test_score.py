"""Scores of texts equal those of each text alone and of the training model."""

import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from tests import corpus
from tests import scored
from tests import tiny
from tests.text import models
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.model import network
from transformer_xl.text import inputs
from transformer_xl.text import score

LONG = "abc def abc ghi jkl mno"  # Longer than memory and a segment.
TEXTS = ("ab", LONG, "", "q", "abc def", LONG[5:], "\n")
# Sums in another order, in float32, of log-probabilities down to -30.
ROUNDING = {"rtol": 1e-5, "atol": 2e-5}


def make_model(*, mem_len=4, **fields):
  return models.make(mem_len=mem_len, cutoffs=(5, 11), **fields)


def run(model, texts, *, memory="fresh", prefix="\n", batch_size=8, top_k=0):
  entries = [
    text if isinstance(text, inputs.Text) else inputs.Text(text, memory)
    for text in texts
  ]
  values = {"prefix": prefix, "batch_size": batch_size, "top_k": top_k}
  values = {f"score.{name}": value for name, value in values.items()}
  config = load.from_config_dict(tiny.config_dict(**values))
  scores = score.score(model, entries, config.score)
  return [one._asdict() for one in scores]


@pytest.fixture(scope="module")
def model():
  return make_model()


@pytest.mark.some(1)
@pytest.mark.parametrize("fields", [{}, {"memory_start": "zeros"}])
def test_a_batch_scores_each_text_as_if_it_were_alone(fields):
  model = make_model(**fields)
  whole = run(model, TEXTS)
  assert [result["text"] for result in whole] == list(TEXTS)
  for batch_size in (1, 3):
    parts = run(model, TEXTS, batch_size=batch_size)
    for one, other in zip(whole, parts, strict=True):
      np.testing.assert_allclose(
        one["log_probs"], other["log_probs"], **ROUNDING
      )
  for text, result in zip(TEXTS, whole, strict=True):
    assert result["num_tokens"] == len(text) == len(result["log_probs"])
    assert result["nll"] == pytest.approx(-sum(result["log_probs"]))
  assert whole[2]["nll"] == 0
  assert whole[2]["perplexity"] is None


@pytest.mark.some(1)
@pytest.mark.parametrize("fields", models.MODELS, ids=str)
def test_scores_equal_those_of_the_model_on_the_whole_text(fields):
  model = make_model(mem_len=40, **fields)
  config = model.reader.config
  (result,) = run(model, [LONG], top_k=30)
  ids = model.vocabulary.encode("\n" + LONG).astype(np.int32)
  log_probs, _ = tiny.apply(
    config,
    tiny.params(config),
    jnp.asarray(ids[None, :-1]),
    network.empty_state(config, batch_size=1, mem_len=0, step_len=1),
    method="log_probs",
  )
  chosen = np.take_along_axis(np.asarray(log_probs[0]), ids[1:, None], axis=1)
  np.testing.assert_allclose(result["log_probs"], chosen[:, 0], **ROUNDING)
  for token, best, row in zip(
    result["tokens"], result["top"], log_probs[0], strict=True
  ):
    assert len(best) == config.vocab_size  # All there are.
    values = [entry.log_prob for entry in best]
    np.testing.assert_allclose(values, np.sort(row)[::-1], **ROUNDING)
    assert token in {entry.token for entry in best}
  short = run(make_model(mem_len=0, **fields), [LONG])[0]["log_probs"]
  assert np.abs(np.subtract(short, result["log_probs"])).max() > 0.01


@pytest.mark.some(1)
@pytest.mark.parametrize("fields", models.MODELS, ids=str)
def test_carried_memory_reads_texts_as_one(fields):
  model = make_model(mem_len=40, **fields)
  pieces = (LONG[:4], "", LONG[4:9], LONG[9:])
  carried = run(model, pieces, memory="carry", prefix="")
  (whole,) = run(model, [LONG], prefix="")
  joined = list(itertools.chain(*(result["log_probs"] for result in carried)))
  assert joined[0] is None  # It has no context.
  assert whole["log_probs"][0] is None
  assert sum(result["num_tokens"] for result in carried) == len(LONG) - 1
  np.testing.assert_allclose(joined[1:], whole["log_probs"][1:], **ROUNDING)
  fresh = run(model, pieces, prefix="")
  assert [piece["log_probs"][0] for piece in (fresh[0], *fresh[2:])] == [
    None
  ] * 3


def test_each_text_may_choose_its_memory(model):
  entries = [("abc", "fresh"), ("def", "carry"), ("def", "fresh")]
  entries = [inputs.Text(*entry) for entry in entries]
  first, second, third = run(model, entries, batch_size=2)
  (alone,) = run(model, ["def"])
  np.testing.assert_allclose(third["log_probs"], alone["log_probs"], **ROUNDING)
  assert (
    np.abs(np.subtract(second["log_probs"], third["log_probs"])).max() > 0.01
  )
  assert [entry["memory"] for entry in (first, second)] == ["fresh", "carry"]


def test_the_prefix_precedes_the_first_token(model):
  (result,) = run(model, ["bc"], prefix="a")
  (whole,) = run(model, ["abc"], prefix="")
  np.testing.assert_allclose(
    result["log_probs"], whole["log_probs"][1:], **ROUNDING
  )
  assert result["num_tokens"] == whole["num_tokens"] == 2


@pytest.mark.parametrize(("mem_len", "states_window"), [(0, False), (4, True)])
def test_results_state_same_length_where_there_is_a_window(
  mem_len, states_window
):
  settings = make_model(mem_len=mem_len, same_length=True).settings()
  assert settings["same_length"] is states_window


def test_a_file_of_texts_gives_a_list_of_results(workdir, tmp_path):
  path = tmp_path / "texts"
  path.write_text("abc\n\nab cd\n")
  values = {"score.file": str(path), "score.top_k": 2}
  config = corpus.config_dict("nowhere", **values)
  result = scored.run(load.from_config_dict(config), workdir)
  assert [entry["num_tokens"] for entry in result] == [3, 0, 5]
  assert result[2]["tokens"] == ["a", "b", "\\x20", "c", "d"]
  assert [len(best) for best in result[0]["top"]] == [2, 2, 2]
  card = ("prefix", "mem_len", "segment_len", "dtype", "checkpoint_step")
  assert [result[1][name] for name in card] == ["\n", 512, 128, "float32", 1]
  memory = ("memory_start", "layers", "encoding_fields")
  assert [result[1][name] for name in memory] == ["masked", ["attention"], {}]


@pytest.mark.parametrize("memory", ["fresh", "carry"])
def test_many_texts_are_scored_and_written_some_at_a_time(
  workdir, tmp_path, monkeypatch, caplog, memory
):
  caplog.set_level("INFO")
  path = tmp_path / "texts"
  path.write_text("abc\nab cd\n\nc\ndda\nab\n" * 3)
  values = {"score.file": str(path), "score.memory": memory}
  config = load.from_config_dict(corpus.config_dict("nowhere", **values))
  together = scored.run(config, workdir)
  assert "Scored" not in caplog.text
  numbers = []
  genuine = score.score_rows

  def score_rows(model, rows, **options):
    numbers.append(len(rows))
    return genuine(model, rows, **options)

  monkeypatch.setattr(score, "score_rows", score_rows)
  monkeypatch.setattr(score, "_STREAMS_AT_ONCE", 4)
  monkeypatch.setattr(score, "_SECONDS_BETWEEN_LINES", 0.0)
  apart = scored.run(config, workdir)
  assert numbers == ([4, 4, 4, 4, 2] if memory == "fresh" else [1])
  assert "Scored 18 of 18 texts." in caplog.text
  assert [one["text"] for one in apart] == path.read_text().split("\n")[:-1]
  for one, other in zip(apart, together, strict=True):
    assert one["tokens"] == other["tokens"]
    assert one["nll"] == pytest.approx(other["nll"], rel=1e-5)


def test_a_text_that_cannot_be_encoded_is_said_before_any_is_scored(
  workdir, tmp_path, monkeypatch
):
  path = tmp_path / "texts"
  path.write_text("abc\n" * 9 + "Z\n")
  config = corpus.config_dict("nowhere", **{"score.file": str(path)})
  monkeypatch.setattr(score, "_STREAMS_AT_ONCE", 2)
  monkeypatch.setattr(score, "score_rows", lambda *_, **__: pytest.fail("late"))
  with pytest.raises(errors.UserError, match="text 10: "):
    score.run(load.from_config_dict(config), workdir)


def test_few_texts_get_a_line_each(workdir, tmp_path, caplog):
  caplog.set_level("INFO")
  path = tmp_path / "texts.jsonl"
  config = corpus.config_dict("nowhere", **{"score.file": str(path)})
  config = load.from_config_dict(config)
  for count, has_lines in ((20, True), (21, False)):
    caplog.clear()
    texts = ["", "ab\nc", LONG * 3, *["q"] * (count - 3)]
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    result = scored.run(config, workdir)
    lines = [one for one in caplog.messages if one.lstrip()[:1].isdigit()]
    assert len(lines) == (count + 1 if has_lines else 1)
    if has_lines:
      assert "0 tokens: nll     0.0000  perplexity          -" in lines[0]
      assert f"nll {result[1]['nll']:10.4f}" in lines[1]
      assert lines[1].endswith(f"{result[1]['perplexity']:.3f}  ab c")
      assert lines[2].endswith(f"  {(LONG * 3)[:40]}...")


def test_texts_without_a_token_to_score_have_no_perplexity(workdir, tmp_path):
  path = tmp_path / "texts"
  path.write_text("a\n\n")
  values = {"score.file": str(path), "score.prefix": ""}
  config = load.from_config_dict(corpus.config_dict("nowhere", **values))
  with pytest.raises(errors.UserError, match="no token of the 2 texts can be"):
    score.run(config, workdir)
