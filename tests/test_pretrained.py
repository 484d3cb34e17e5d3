"""`transformer_xl.load` as its users call it: nothing else is imported."""

import json
import os
from unittest import mock

import jax
import numpy as np
import pytest

import transformer_xl
from tests import kinds
from tests import saved_runs
from tests import scored
from tests import tiny
from transformer_xl.config import load as load_lib
from transformer_xl.model import network
from transformer_xl.text import decoding
from transformer_xl.text import generate
from transformer_xl.text import hidden_states
from transformer_xl.text import score
from transformer_xl.text import streaming

LONG = "abc def abc ghi jkl mno"  # Longer than several segments.
LENGTHS = {"mem_len": 40, "segment_len": 4}
FIELDS = {"model.cutoffs": (5, 11), "model.tie_weights": False}
# Sums in another order, in float32, of log-probabilities down to -30.
ROUNDING = {"rtol": 1e-5, "atol": 2e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return saved_runs.write(tmp_path_factory.mktemp("run"), **FIELDS)


@pytest.fixture(scope="module")
def model(folder):
  return transformer_xl.load(folder, **LENGTHS)


def read_whole(model, text, *, method="log_probs"):
  """What the network gives for a text, in one segment, and its state."""
  config = model.config.model
  ids = np.asarray(model.vocabulary.encode(text), np.int32)[None]
  memory = network.empty_state(
    config, batch_size=1, mem_len=ids.size, step_len=ids.size
  )
  found, memory = tiny.apply(
    config, tiny.params(config), ids, memory, method=method
  )
  return np.asarray(found[0]), memory


def test_texts_of_any_lengths_are_scored_as_if_alone(model):
  texts = ["ab", LONG, "", "q"]
  scores = model.score(texts, top_k=3)
  assert [one.text for one in scores] == texts
  for one in scores:
    (alone,) = model.score([one.text])
    np.testing.assert_allclose(one.log_probs, alone.log_probs, **ROUNDING)
    assert one.num_tokens == len(one.tokens) == len(one.text)
    assert one.nll == pytest.approx(-sum(one.log_probs))
  expected, _ = read_whole(model, "\n" + LONG)
  ids = model.vocabulary.encode(LONG)
  expected = expected[np.arange(len(ids)), ids]
  np.testing.assert_allclose(scores[1].log_probs, expected, **ROUNDING)
  assert [len(best) for best in scores[0].top] == [3, 3]
  assert model.score([]) == []


def test_unknown_words_are_counted_and_many_are_warned_of(tmp_path, caplog):
  model = transformer_xl.load(saved_runs.write(tmp_path / "run", kind="word"))
  few, many = model.score(["the cat sat on the mat", "the dog ran"])
  assert (few.num_unknown, many.num_unknown) == (0, 2)
  assert "22.2% of the tokens of the texts are unknown" in caplog.text
  caplog.clear()
  model.score(["the cat sat on the mat", "a dog sat on a mat"])
  assert "unknown" not in caplog.text


def test_a_tilde_is_the_home_of_the_user(folder, model, monkeypatch):
  monkeypatch.setenv("HOME", os.path.dirname(folder))
  loaded = transformer_xl.load(f"~/{os.path.basename(folder)}", **LENGTHS)
  assert loaded.config == model.config


@pytest.mark.rest
def test_scores_and_text_are_those_of_the_commands(folder, tmp_path):
  config = load_lib.saved(folder)
  (tmp_path / "texts").write_text(f"{LONG}\nab\n")
  config.score.update({"file": str(tmp_path / "texts"), "top_k": 2})
  config.generate.update({"prompt": "abc", "num_tokens": 20, "num_samples": 2})
  config = load_lib.from_config_dict(config)
  model = transformer_xl.load(folder)
  scores = model.score([LONG, "ab"], top_k=2)
  for one, entry in zip(scores, scored.run(config, folder), strict=True):
    assert (one.nll, one.log_probs) == (entry["nll"], entry["log_probs"])
  printed = generate.run(config, folder)
  found = model.generate("abc", num_tokens=20, num_samples=2)
  assert found.text == printed["text"]
  texts = [sample["text"] for sample in printed["samples"]]
  assert [sample.text for sample in found.samples] == texts


def test_a_stream_of_pieces_is_the_text(model):
  options = {"seed": 3, "num_tokens": 20, "tokens_per_call": 6}
  pieces = list(model.stream("abc", **options))
  assert [len(piece) for piece in pieces] == [6, 6, 6, 2]
  found = model.generate("abc", **options)
  assert "".join(pieces) == found.text
  assert model.vocabulary.decode(found.tokens) == found.text
  assert found.text != model.generate("abc", **options | {"seed": 4}).text


def test_a_chat_is_the_text_as_if_it_was_given_at_once(model):
  options = {"seed": 3, "num_tokens": 7, "tokens_per_call": 3}
  first = model.generate("abc", **options)
  second = model.generate("def ghi", state=first.state, **options)
  whole = "abc" + first.text + "def ghi"
  expected = model.generate(whole, **options)
  assert second.text == expected.text
  assert second.text != model.generate("def ghi", **options).text
  third = model.generate("", state=second.state, **options)
  assert third.text == model.generate(whole + second.text, **options).text
  # A state stays valid.
  again = model.generate("def ghi", state=first.state, **options)
  assert again.text == second.text


@pytest.mark.rest
def test_every_sample_has_its_own_state(model):
  options = {"num_tokens": 9, "top_k": 0, "stop": "a"}
  found = model.generate("abc", num_samples=3, seed=2, **options)
  assert len({len(sample.tokens) for sample in found.samples}) > 1
  for sample in found.samples:
    expected = model.generate("abc" + sample.text + "d", **options)
    carried = model.generate("d", state=sample.state, **options)
    assert carried.text == expected.text


def test_a_stream_that_ends_early_can_be_continued(model):
  stream = model.stream("abc", seed=3, num_tokens=20, tokens_per_call=4)
  text = "abc" + next(stream) + next(stream)
  assert stream.result is None
  options = {"seed": 5, "num_tokens": 6}
  found = model.generate("", state=stream.state, **options)
  assert found.text == model.generate(text, **options).text
  rest = "".join(stream)
  assert stream.result.text == text[3:] + rest


def test_texts_are_scored_as_in_a_file_of_the_command(folder, tmp_path):
  lines = [{"text": "abc"}, {"text": "de\nf", "memory": "carry"}]
  path = tmp_path / "texts.jsonl"
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  config = load_lib.saved(folder)
  config.score.file = str(path)
  entries = scored.run(load_lib.from_config_dict(config), folder)
  found = transformer_xl.load(folder).score(lines)
  assert [one.memory for one in found] == ["fresh", "carry"]
  for one, entry in zip(found, entries, strict=True):
    assert (one.text, one.nll) == (entry["text"], entry["nll"])


def test_a_call_of_score_may_have_a_memory_of_another_length(folder, model):
  for mem_len in (0, 6):
    other = transformer_xl.load(folder, mem_len=mem_len, segment_len=4)
    (one,) = model.score([LONG], mem_len=mem_len)
    assert one.nll == other.score([LONG])[0].nll
    assert abs(one.nll - model.score([LONG])[0].nll) > 0.01


def test_an_embedding_is_the_mean_of_the_hidden_states(model):
  texts, layers = ["ab", LONG, "q"], (-1, 1)
  vectors = [model.embed(texts, layer=layer, batch_size=2) for layer in layers]
  for index, text in enumerate(texts):
    states = model.hidden_states(text, layers=layers).states
    found = [of_layer[index] for of_layer in vectors]
    # The same sums in another order; states are about 1.
    np.testing.assert_allclose(found, states.mean(1), rtol=1e-5, atol=1e-5)
  assert model.embed([]).shape == (0, 8)


@pytest.mark.some(1)
@pytest.mark.parametrize(
  ("fields", "mem_len"),
  [
    ({}, 40),
    pytest.param(
      {"model.encoding": kinds.encoding(rotates=True)},
      6,
      marks=pytest.mark.rest,
    ),
    ({"model.layers": ("attention:5", "attention")}, 9),
  ],
)
def test_attention_is_that_of_the_whole_text(folder, tmp_path, fields, mem_len):
  if fields:
    folder = saved_runs.write(tmp_path, **FIELDS, **fields)
  model = transformer_xl.load(folder, mem_len=mem_len, segment_len=4)
  found = model.attention(LONG, layers=(1, -1))
  assert found.layers == (1, 2)
  length = len(LONG)
  assert found.weights.shape == (2, 2, length, length)
  np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-5)
  assert np.triu(found.weights, 1).max() == 0
  # Token i is the one at place i % 4 of its segment, and sees the memory of
  # all tokens in it.
  query, key = np.indices((length, length))
  start = query - query % 4
  seen = (key <= query) & (key >= start - mem_len)
  assert found.weights[1][:, ~seen].max() == 0
  assert found.weights[1][:, seen].min() > 0
  if mem_len >= length:
    # Read in one segment.
    one = transformer_xl.load(folder, mem_len=mem_len, segment_len=32)
    whole = one.attention(LONG, layers=(1, -1)).weights
    np.testing.assert_allclose(found.weights, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.some(1)
@pytest.mark.parametrize("text", [LONG, LONG[:7]], ids=len)
def test_attention_where_all_that_attend_forget_early(tmp_path, text):
  fields = {"model.layers": (kinds.recurrent(), "attention:3")}
  folder = saved_runs.write(tmp_path, **FIELDS, **fields)
  model = transformer_xl.load(folder, mem_len=16, segment_len=4)
  with pytest.raises(transformer_xl.UserError, match=r"model has \[2\]"):
    model.attention(text, layers=(1,))
  found = model.attention(text, layers=(2,)).weights
  assert found.shape == (1, 2, len(text), len(text))
  np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
  length = len(text)
  query, key = np.indices((length, length))
  start = query - query % 4
  seen = (key <= query) & (key >= start - 3)
  assert found[:, :, ~seen].max() == 0
  assert found[:, :, seen].min() > 0


def test_hidden_states_carry_memory_over_segments(model):
  outputs, memory = read_whole(model, LONG, method="__call__")
  inputs = memory.layers[0].hiddens[:, 0]  # Memory holds all of the text.
  expected = np.concatenate([inputs, outputs[None]])
  found = model.hidden_states(LONG, layers=(0, 1, -1))
  assert found.layers == (0, 1, 2)
  assert len(found.tokens) == len(LONG) > 5 * LENGTHS["segment_len"]
  # The same sums in another order; states are about 1.
  np.testing.assert_allclose(found.states, expected, rtol=1e-5, atol=1e-5)
  assert model.hidden_states("").states.shape == (1, 0, 8)


def test_next_tokens_are_the_likeliest(model):
  expected, _ = read_whole(model, LONG)
  found = model.next_tokens(LONG, k=4)
  values = [one.log_prob for one in found]
  np.testing.assert_allclose(values, np.sort(expected[-1])[:-5:-1], **ROUNDING)
  assert found[0].id == np.argmax(expected[-1])
  assert found[0].token == model.vocabulary.symbol(found[0].id)
  assert len(model.next_tokens("a", k=1000)) == model.vocabulary.size


@pytest.mark.some(1)
@pytest.mark.parametrize("layers", [(), (kinds.recurrent(), "attention")])
def test_steps_read_a_stream_in_any_pieces(model, tmp_path, layers):
  if layers:
    folder = saved_runs.write(tmp_path, **FIELDS, **{"model.layers": layers})
    model = transformer_xl.load(folder, **LENGTHS)
  expected, _ = read_whole(model, LONG)
  ids = np.tile(model.vocabulary.encode(LONG), (2, 1))
  state, parts = model.init_state(batch_size=2), []
  for start, stop in [(0, 11), (11, 12), (12, 23)]:
    state, log_probs = model.step(state, ids[:, start:stop])
    parts.append(log_probs)
  for lane in np.concatenate(parts, axis=1):
    np.testing.assert_allclose(lane, expected, **ROUNDING)


def test_a_reset_empties_the_memory_of_its_lane_alone(model):
  ids = np.tile(model.vocabulary.encode(LONG), (2, 1))
  resets = np.zeros(ids.shape, bool)
  resets[1, 9] = True
  before = model.init_state(batch_size=2)
  _, found = model.step(before, ids, resets)
  _, expected = model.step(before, ids, resets & False)  # It stays valid.
  np.testing.assert_allclose(found[0], expected[0], **ROUNDING)
  alone, _ = read_whole(model, LONG[9:])
  np.testing.assert_allclose(found[1, 9:], alone, **ROUNDING)
  assert np.abs(found[1, 9:] - expected[1, 9:]).max() > 0.01


@pytest.mark.rest
def test_other_texts_of_the_same_shapes_compile_nothing(model):
  def use(text):
    model.score([text, text[:2], text[:3], text[:5]], top_k=3)
    model.generate(text, num_tokens=8, tokens_per_call=6)
    model.next_tokens(text, k=4)
    model.hidden_states(text, layers=(0, 1, -1))
    ids = np.tile(model.vocabulary.encode(text[:1]), (2, 1))
    model.step(model.step(model.init_state(2), ids)[0], ids)

  compiled = []
  listen = lambda name, _, **__: compiled.append(name)  # noqa: E731
  jax.clear_caches()
  jax.monitoring.register_event_duration_secs_listener(listen)
  use("abcdef")
  is_compile = "/jax/core/compile/backend_compile_duration"
  assert is_compile in compiled  # So a compilation would be noticed.
  kept = [decoding._read_part, decoding._decode, score._read_segment]
  kept += [hidden_states._read_segment, streaming.step]
  # Not again for the results of the first call.
  assert [function._cache_size() for function in kept] == [1] * len(kept)
  compiled.clear()
  use("gh ijklmn")
  jax.monitoring.unregister_event_duration_listener(listen)
  assert is_compile not in compiled


@pytest.mark.rest
def test_a_model_keeps_less_memory_if_it_is_asked_to(folder, model):
  short = transformer_xl.load(folder, mem_len=1, segment_len=1)
  (one,), (other,) = short.score([LONG]), model.score([LONG])
  assert abs(one.nll - other.nll) > 0.01
  assert "mem_len=1," in repr(short)


def test_a_device_without_memory_is_one_line(model, monkeypatch):
  said = "RESOURCE_EXHAUSTED: Out of memory\nallocating 9 bytes."
  exhausted = jax.errors.JaxRuntimeError(said)
  monkeypatch.setattr(score, "score", mock.Mock(side_effect=exhausted))
  with pytest.raises(transformer_xl.UserError) as caught:
    model.score(["abc"])
  assert "memory allocating 9 bytes.); lower mem_len or" in str(caught.value)


# Wrong types, names and values of the arguments of every function.
MISTAKES = [
  (lambda m: m.score("ab"), r"must be a list, as in model\.score\(\[text\]\)"),
  (lambda m: m.score(None), "texts must be a list.*it is None"),
  (lambda m: m.score({"text": "a"}), "texts must be a list.*it is {'text'"),
  (lambda m: m.score([{"text": "a", "memry": "carry"}]), "did you mean memory"),
  (lambda m: m.score([1]), "text 1 must be a text or .*it is 1"),
  (lambda m: m.score(["a", b"a"]), "text 2 must be a text or .*it is b'a'"),
  (lambda m: m.score([{"text": 3}]), "text 1 must be a text or"),
  (lambda m: m.score([{"text": "a", "memory": "no"}]), "'fresh', 'carry'"),
  (lambda m: m.score(["ab"], topk=3), "unexpected .*'topk'.*mean top_k"),
  (lambda m: m.score(["ab"], memory="no"), "^memory must be"),
  (
    lambda m: m.score(["ab"], mem_len=-1),
    "^mem_len must be 0 or more: it is -1.$",
  ),
  (lambda m: m.score(["ab", "aZ"]), "text 2: the byte 0x5a at position 1"),
  (
    lambda m: m.score(["ab"], prefix="Z"),
    r"^prefix: the byte 0x5a.*each text: set prefix to other text",
  ),
  (lambda m: m.generate("aZ"), "^prompt: the byte 0x5a at position 1"),
  (lambda m: m.generate("a", stop="Z"), "^stop: the byte 0x5a at position 0"),
  (lambda m: m.next_tokens("aZ"), "^text: the byte 0x5a at position 1"),
  (lambda m: m.generate("a", mem_len=3), "'mem_len'.*it has prompt, state"),
  (lambda m: m.generate("a", temperature=-1), "must be 0 or more: it is -1"),
  (
    lambda m: m.generate("a", top_k="5"),
    "^top_k must be a whole number: it is '5'",
  ),
  (lambda m: m.generate(""), "^prompt is empty; give a text to continue.$"),
  (
    lambda m: m.generate("a", 5),
    "by name, as in NAME=VALUE: state, seed, num_",
  ),
  (lambda m: m.next_tokens(""), "^text is empty; give the text before"),
  (lambda m: m.generate(5), "prompt must be a text.*it is 5"),
  (lambda m: m.generate(b"a"), "prompt must be a text.*it is b'a'"),
  (lambda m: m.generate(None), "prompt must be a text.*it is None"),
  (lambda m: m.generate(), "missing a required argument: 'prompt'"),
  (lambda m: m.generate("a", state=3), "state must be the state of a text"),
  (lambda m: m.stream(5), "prompt must be a text"),
  (
    lambda m: m.generate("a", seed=1.5),
    "^seed must be a whole number: it is 1.5",
  ),
  (
    lambda m: m.generate("a", seed="5"),
    "^seed must be a whole number: it is '5'",
  ),
  (lambda m: m.generate("a", seed=-1), "seed must be 0 or more"),
  (lambda m: m.generate("a", seed=2**32), "seed must be below 4294967296"),
  (lambda m: m.next_tokens("a", k=0), "k=0 must be at least 1"),
  (lambda m: m.next_tokens("a", "3"), "k must be a whole number: it is '3'"),
  (lambda m: m.next_tokens("a", 2.5), "k must be a whole number: it is 2.5"),
  (lambda m: m.next_tokens(None), "text must be a text"),
  (lambda m: m.hidden_states("a", layers=(3,)), r"must be in \[-3, 2\]"),
  (lambda m: m.hidden_states("a", layers=1), r"as in layers=\(0, -1\)"),
  (lambda m: m.hidden_states("a", layers=()), "and at least one"),
  (lambda m: m.hidden_states("a", layers=(1.0,)), "a layer must be a whole"),
  (lambda m: m.hidden_states("a", layers=None), "layers must be a list"),
  (lambda m: m.attention("a", layers=(0,)), r"must be layers that attend"),
  (lambda m: m.attention("a", layers=(3,)), r"this model has \[1, 2\]"),
  (lambda m: m.attention("a", layers=()), "and at least one"),
  (lambda m: m.embed("a"), r"as in model\.embed\(\[text\]\)"),
  (lambda m: m.embed(["a", ""]), "text 2 has no tokens"),
  (lambda m: m.embed(["a", 3]), "text 2 must be a text"),
  (lambda m: m.embed(["aZ"]), "text 1: the byte 0x5a at position 1"),
  (lambda m: m.embed(["a"], layer=7), r"must be in \[-3, 2\]"),
  (lambda m: m.init_state(-1), "batch_size=-1 must be at least 1"),
  (lambda m: m.init_state("a"), "batch_size must be a whole number"),
  (lambda m: m.init_state(1.5), "batch_size must be a whole number"),
  (lambda m: m.step(None, [[1]]), "state must be that of model.init_state"),
  (lambda m: m.step(m.init_state(2), [[1]]), r"the shape \(1, 1\)"),
  (lambda m: m.step(m.init_state(2), [[1], [1, 2]]), "tokens must be an array"),
  (
    lambda m: m.step(m.init_state(), [[None]]),
    "tokens must be an array of num",
  ),
  (lambda m: m.step(m.init_state(), [[1]], [True]), r"shape \(1,\), tokens"),
  (lambda m: m.step(m.init_state(), [[-1]]), "integers from 0 to .* from -1"),
  (lambda m: m.step(m.init_state(), [[999]]), "are int64 from 0 to 999"),
  (lambda m: m.step(m.init_state(), [[1.5]]), "these are float64"),
  (lambda _: transformer_xl.load(None), "must be a folder or an address"),
  (lambda _: transformer_xl.load(b"runs"), "must be a folder or an address"),
  (lambda _: transformer_xl.load("runs", foo=1), "argument 'foo'"),
  (lambda _: transformer_xl.load(), "missing a required argument: 'source'"),
]


@pytest.mark.parametrize(("use", "says"), MISTAKES)
def test_a_mistake_is_one_line(model, use, says):
  with pytest.raises(transformer_xl.UserError, match=says) as caught:
    use(model)
  assert "\n" not in str(caught.value)
  assert "config." not in str(caught.value)


def test_results_are_printed_without_what_the_model_remembers(model):
  printed = repr(model.generate("abc", num_tokens=2))
  assert printed.startswith("Generation(prompt='abc', samples=[Sample(text='")
  assert len(printed) < 500
  assert len(repr(model.init_state(2))) < 200


def test_a_state_belongs_to_its_model_and_lengths(folder, model, tmp_path):
  other_folder = saved_runs.write(tmp_path, **FIELDS)
  text = model.generate("abc", num_tokens=1).state
  lanes = model.init_state()
  for other in (
    transformer_xl.load(other_folder, **LENGTHS),
    transformer_xl.load(folder, mem_len=41, segment_len=4),
  ):
    with pytest.raises(
      transformer_xl.UserError, match=r"step 7.*this model is"
    ):
      other.step(lanes, [[1]])
    with pytest.raises(
      transformer_xl.UserError, match=r"step 7.*this model is"
    ):
      other.generate("abc", state=text)
  again = transformer_xl.load(folder, **LENGTHS)
  _, found = again.step(lanes, [[1]])
  np.testing.assert_array_equal(found, model.step(lanes, [[1]])[1])


def test_a_folder_without_a_model_is_refused(tmp_path, folder):
  with pytest.raises(transformer_xl.UserError, match=r"No such file.*hf://"):
    transformer_xl.load(tmp_path / "nowhere")
  with pytest.raises(transformer_xl.UserError, match=r"^checkpoint='3'.*\[7\]"):
    transformer_xl.load(folder, checkpoint=3)
  with pytest.raises(
    transformer_xl.UserError, match="; set parameters=raw, or"
  ):
    transformer_xl.load(folder, parameters="ema")
  with pytest.raises(transformer_xl.UserError, match="is no run of adapters"):
    transformer_xl.load(folder, init_from=folder)
  (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
  with pytest.raises(transformer_xl.UserError, match="only llama, mistral"):
    transformer_xl.load(tmp_path)
  with pytest.raises(transformer_xl.UserError, match="leave out checkpoint"):
    transformer_xl.load(tmp_path, parameters="ema")
