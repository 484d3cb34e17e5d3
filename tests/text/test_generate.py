"""Generation equals the training model, one token at a time."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import corpus
from tests import saved_runs
from tests import tiny
from tests.text import models
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.model import network
from transformer_xl.text import decoding
from transformer_xl.text import generate
from transformer_xl.text import language_model
from transformer_xl.text import streaming
from transformer_xl.workdir import run_record

PROMPT = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.uint8)


def prompt(model, tokens=PROMPT):
  return decoding.empty_state(model).extended(tokens)


def draw(model, *, seeds=(0,), stop=(), **updates):
  """Everything that is yielded; the last has all tokens."""
  keys = jnp.stack([jax.random.key(seed) for seed in seeds])
  config = models.options(**updates)
  return list(
    decoding.stream(model, prompt(model), config=config, keys=keys, stop=stop)
  )


def lists(samples):
  return [tokens.tolist() for tokens in samples.tokens]


@pytest.mark.some(1)
@pytest.mark.parametrize("fields", models.MODELS, ids=str)
def test_a_prompt_may_be_cut_anywhere_and_be_longer_than_memory(fields):
  hidden = []
  for segment_len in (3, 5):
    model = models.make(
      mem_len=4, segment_len=segment_len, same_length=True, **fields
    )
    hidden.append(decoding.read_prompt(model, prompt(model))[-1])
  # The same sums in another order; states are about 1.
  np.testing.assert_allclose(*hidden, atol=1e-5)


@pytest.mark.some(1)
@pytest.mark.parametrize("fields", models.MODELS, ids=str)
def test_greedy_decoding_is_the_argmax_of_the_model_on_the_whole_text(fields):
  # Tied, tiny models repeat themselves.
  fields = {"tie_weights": False, "cutoffs": (5, 11), **fields}
  model = models.make(mem_len=32, **fields)
  config = model.reader.config
  (tokens,) = draw(model, num_tokens=12, temperature=0.0)[-1].tokens
  text = np.concatenate([PROMPT, tokens])
  empty = network.empty_state(config, batch_size=1, mem_len=0, step_len=1)

  def likeliest(text):
    """After each token from the end of the prompt on."""
    log_probs, _ = tiny.apply(
      config,
      tiny.params(config),
      jnp.asarray(text[None, :-1], jnp.int32),
      empty,
      method="log_probs",
    )
    return np.argmax(np.asarray(log_probs[0]), axis=-1)[len(PROMPT) - 1 :]

  assert tokens.tolist() == likeliest(text).tolist()
  # Tokens from before the segment matter, so memory was read.
  assert model.reader.segment_len == 3
  text[: len(PROMPT) - 3] += 7
  assert tokens.tolist() != likeliest(text).tolist()


def test_a_sample_depends_on_its_key_alone_and_comes_in_parts():
  model = models.make(mem_len=6, cutoffs=(5, 11), tie_weights=False)
  drawn = {"num_tokens": 12, "top_k": 9, "repetition_penalty": 1.3}
  parts = draw(model, seeds=(1, 2, 3), **drawn)
  assert [len(part.tokens[0]) for part in parts] == [0, 5, 10, 12]
  whole = lists(parts[-1])
  assert len({tuple(tokens) for tokens in whole}) == 3
  assert lists(draw(model, seeds=(2,), **drawn)[-1]) == [whole[1]]
  for part in parts:
    assert part.tokens[0].tolist() == whole[0][: len(part.tokens[0])]


def test_a_text_that_goes_on_draws_what_one_longer_call_draws():
  """And no token with the random numbers of another."""
  model = models.make(mem_len=6)
  settings = models.options(num_tokens=12, top_k=0, temperature=9.0)
  keys = decoding.sample_keys(1, 1)
  *_, whole = decoding.stream(model, prompt(model), config=settings, keys=keys)
  settings = models.options(num_tokens=4, top_k=0, temperature=9.0)
  text = prompt(model)
  tokens = []
  for _ in range(3):
    *_, part = decoding.stream(model, text, config=settings, keys=keys)
    tokens += part.tokens[0].tolist()
    text = part.prompt.extended(part.tokens[0])
  assert tokens == whole.tokens[0].tolist()
  assert tokens[:4] != tokens[4:8] != tokens[8:]
  assert text.num_tokens == len(PROMPT) + 12


def test_seeds_give_keys_and_more_samples_keep_the_first():
  few, many = decoding.sample_keys(3, 2), decoding.sample_keys(3, 4)
  assert (few == many[:2]).all()
  assert (few != decoding.sample_keys(4, 2)).any()


@pytest.mark.rest
def test_few_candidates_are_enough_against_repetition():
  model = models.make(mem_len=6, cutoffs=(5, 11))
  shared = {"num_tokens": 20, "temperature": 0.0}
  repeats = []
  for ngram in (0, 2):
    of_all = draw(model, no_repeat_ngram=ngram, **shared)[-1]
    of_few = draw(model, no_repeat_ngram=ngram, top_k=1, **shared)[-1]
    assert lists(of_all) == lists(of_few)
    (tokens,) = lists(of_all)
    triples = zip(tokens, tokens[1:], tokens[2:], strict=False)
    repeats.append(sum(len(set(triple)) == 1 for triple in triples))
  assert repeats[0] > 5  # The tiny model's habit.
  assert repeats[1] == 0


def test_a_sample_ends_with_the_stop_text():
  model = models.make(mem_len=6)
  free = lists(draw(model, seeds=(1, 2), num_tokens=30)[-1])
  stop = tuple(free[0][6:8])
  parts = draw(model, seeds=(1, 2), num_tokens=30, stop=stop)
  for want, tokens, stopped in zip(
    free, lists(parts[-1]), parts[-1].stopped, strict=True
  ):
    assert want[: len(tokens)] == tokens
    assert stopped == (tuple(tokens[-2:]) == stop)
    assert stopped or len(tokens) == 30
  assert len(parts[-1].tokens[0]) <= 8
  alone = draw(model, seeds=(1,), num_tokens=30, stop=stop)
  assert len(alone) <= 3  # None, 5 and 3 tokens: then it stops.


@pytest.mark.parametrize("fields", models.MODELS, ids=str)
def test_a_text_that_is_read_in_pieces_is_read_as_if_at_once(fields):
  model = models.make(mem_len=4, segment_len=3, **fields)
  text = prompt(model, PROMPT[:1])
  for start, stop in [(1, 2), (2, 7), (7, 8)]:
    before, _, _ = decoding.read_prompt(model, text)
    assert 1 <= len(before.unread) <= 3
    text = before.extended(PROMPT[start:stop])
  pieces = decoding.read_prompt(model, text)
  whole = decoding.read_prompt(model, prompt(model))
  assert len(whole[0].recent) == 6
  jax.tree.map(np.testing.assert_array_equal, pieces[1:], whole[1:])
  np.testing.assert_array_equal(pieces[0].newest, whole[0].newest)


def test_only_what_is_new_of_a_text_is_read(monkeypatch):
  model = models.make(mem_len=4, segment_len=3)
  text = prompt(model, np.tile(PROMPT, 10))
  text, _, _ = decoding.read_prompt(model, text)
  parts = []
  read = decoding._read_part
  monkeypatch.setattr(
    decoding, "_read_part", lambda *args: parts.append(1) or read(*args)
  )
  decoding.read_prompt(model, text.extended(PROMPT[:2]))
  assert len(parts) <= 2


def test_longer_texts_compile_nothing():
  model = models.make(mem_len=4)
  compiled = []
  listen = lambda name, _, **__: compiled.append(name)  # noqa: E731
  config = models.options(num_tokens=83)
  parts = decoding.stream(
    model, prompt(model), config=config, keys=decoding.sample_keys(0, 2)
  )
  jax.monitoring.register_event_duration_secs_listener(listen)
  next(parts)
  is_compile = "/jax/core/compile/backend_compile_duration"
  assert is_compile in compiled  # So a compilation would be noticed.
  compiled.clear()
  *_, last = parts
  assert len(last.tokens[1]) == 83
  assert is_compile not in compiled
  jax.monitoring.unregister_event_duration_listener(listen)


def run(workdir, **updates):
  values = {"num_tokens": 30, "prompt": "abc"} | updates
  values = {f"generate.{name}": value for name, value in values.items()}
  # As from main, without the size of the vocabulary.
  config = corpus.config_dict("nowhere", **values | {"seed": 3})
  result = generate.run(load.from_config_dict(config), workdir)
  with open(f"{workdir}/results/generate.json", encoding="utf-8") as file:
    assert json.load(file) == result
  return result


def test_a_result_has_the_text_and_all_it_depends_on(workdir, capsys):
  result = run(workdir, num_samples=2, top_k=5)
  shown = capsys.readouterr().out
  first, second = result["samples"]
  assert shown == f"abc{first['text']}\n--- sample 2\nabc{second['text']}\n"
  assert first == {"text": result["text"], "num_tokens": 30, "stopped": False}
  assert first["text"] != second["text"]
  assert result.pop("tokens_per_second") > 0
  assert len(result["text"]) == 30
  assert set(result["text"]) <= set(corpus.SYMBOLS)
  assert result["checkpoint_step"] == 1
  assert result["seed"] == 3
  names = {field.name for field in dataclasses.fields(models.options())}
  hidden = {"prompt_file", "tokens_per_call"}
  of_split = {"prompt_split", "prompt_start", "prompt_len"}
  assert names - set(result) == hidden | of_split
  assert result["num_prompt_tokens"] == 3


def test_a_prompt_comes_from_a_file(workdir, tmp_path):
  path = tmp_path / "prompt.txt"
  path.write_text("abc\n")
  assert run(workdir, prompt_file=str(path), num_tokens=0)["prompt"] == "abc\n"


def run_on_data(data_dir, workdir, **updates):
  """The result of a prompt from a split, and the text of the split."""
  values = {"generate.num_tokens": 30, "generate.prompt_len": 40} | updates
  config = corpus.config(data_dir, **values)
  result = generate.run(config, workdir)
  file = token_file.open_split(
    config.data.dataset_dir, config.generate.prompt_split or "test"
  )
  text = vocabulary_lib.load(config.data.dataset_dir).decode(file.tokens)
  return result, text


def test_a_prompt_of_a_split_is_continued_beside_what_follows_there(
  workdir, data_dir, capsys
):
  """Byte by byte, the prompt is what its text would be."""
  updates = {"generate.prompt_split": "test", "generate.prompt_start": 20}
  result, text = run_on_data(data_dir, workdir, **updates)
  shown = capsys.readouterr().out
  assert result["prompt"] == text[20:60]
  assert result["num_prompt_tokens"] == 40
  assert result["reference"] == text[60:90]
  assert result["num_reference_tokens"] == 30
  assert result["prompt_split"] == "test"
  assert result["prompt_start"] == 20
  assert shown == (
    f"{text[20:60]}{result['text']}\n--- reference\n{text[60:90]}\n"
  )
  same, _ = run_on_data(data_dir, workdir, **{"generate.prompt": text[20:60]})
  assert "reference" not in same
  assert same["text"] == result["text"]


def test_a_reference_ends_with_the_split(workdir, data_dir):
  updates = {"generate.prompt_split": "test", "generate.prompt_start": 100}
  result, text = run_on_data(data_dir, workdir, **updates)
  assert result["num_tokens"] == 30
  assert result["num_reference_tokens"] == 10
  assert result["reference"] == text[140:150]


def test_the_prompt_of_a_split_is_its_tokens(tmp_path):
  """Its text alone would be encoded as fewer."""
  folder = saved_runs.write(tmp_path / "run", kind="subword")
  data = tmp_path / "data" / corpus.NAME
  shutil.copytree(f"{folder}/{run_record.VOCABULARY}", data)
  vocabulary = vocabulary_lib.load(str(data))
  ids = np.concatenate([vocabulary.encode(c) for c in "the cat sat"])
  assert len(vocabulary.encode("the cat")) < 7
  np.save(data / "test.npy", ids)
  np.save(data / "test_documents.npy", np.zeros(1, int))
  meta = json.loads((data / "meta.json").read_text())
  digest = token_file.sha256(data / "test.npy")
  meta["splits"] = {"test": {"num_tokens": len(ids), "sha256": digest}}
  (data / "meta.json").write_text(json.dumps(meta))
  updates = {
    "data.dir": str(tmp_path / "data"),
    "generate.prompt_split": "test",
    "generate.prompt_len": 7,
    "generate.num_tokens": 3,
  }
  config = load.replaced(load.from_config_dict(load.saved(folder)), updates)
  result = generate.run(config, folder)
  assert result["prompt"] == "the cat"
  assert result["num_prompt_tokens"] == 7
  assert result["reference"] == " sa"


@pytest.mark.parametrize(
  ("updates", "says"),
  [
    (
      {"generate.prompt_split": "test", "generate.prompt_len": 150},
      "a token must follow the prompt in its split: test has 150, and the "
      "prompt ends at 150; set a lower --config.generate.prompt_start or",
    ),
    (
      {"generate.prompt_split": "dev"},
      "has no split 'dev', only train, valid, test",
    ),
  ],
)
def test_a_prompt_that_a_split_lacks_is_one_line(
  workdir, data_dir, updates, says
):
  config = corpus.config(data_dir, **updates)
  for command in (generate.check, generate.run):
    with pytest.raises(errors.UserError, match=says) as caught:
      command(config, workdir)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("updates", "says"),
  [
    ({"prompt": "abZ"}, "0x5a at position 2 of the text"),
    ({"prompt_file": "/nowhere"}, "cannot read /nowhere: No such file"),
    ({"stop": "Z"}, "generate.stop: the byte 0x5a at position 0"),
    ({"top_p": 0.0}, r"top_p must be in \(0, 1\]: it is 0.0"),
    ({"repetition_penalty": 0.5}, "repetition_penalty must be at least 1"),
    ({"temperature": -1.0}, "temperature must be 0 or more"),
  ],
)
def test_a_mistake_is_one_line(workdir, updates, says):
  with pytest.raises(errors.UserError, match=says) as caught:
    run(workdir, **updates)
  assert "\n" not in str(caught.value)


@pytest.mark.rest
def test_a_cpu_reads_tokens_of_bfloat16_models_in_float32():
  model = models.make(mem_len=4, dtype="bfloat16", **models.HYBRID)
  tokens = jnp.asarray([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
  reader, frozen, start = language_model.for_tokens(
    model.reader, model.frozen, model.start(2)
  )
  state, log_probs = streaming.step(frozen, start, tokens, None, reader=reader)
  types = {leaf.dtype for leaf in jax.tree.leaves((frozen, state))}
  assert jnp.bfloat16 not in types

  reader, frozen, start = model.reader.for_tokens(model.frozen, model.start(2))
  _, expected = streaming.step(frozen, start, tokens, None, reader=reader)
  rounding = float(jnp.finfo(jnp.bfloat16).eps) * np.abs(expected).max()
  np.testing.assert_allclose(log_probs, expected, atol=4 * rounding)
