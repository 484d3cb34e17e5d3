"""Continuing a text: the same model as in training, one token at a time."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import corpus
from tests import tiny
from transformer_xl import checkpoint as checkpoint_lib
from transformer_xl import config as config_lib
from transformer_xl import errors
from transformer_xl import generate
from transformer_xl import model as model_lib
from transformer_xl import provenance

PROMPT = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.uint8)


def options(**updates):
  values = {"generate." + name: value for name, value in updates.items()}
  return config_lib.from_config_dict(tiny.config_dict(**values)).generate


def make_model(**updates):
  config = tiny.model_config(**updates)
  return model_lib.TransformerXL(config, clamp_len=0, same_length=False)


def read(model, *, mem_len, segment_len=3):
  return generate.read_prompt(
    tiny.params(model.config),
    model_lib.empty_memory(model.config, batch_size=1, mem_len=mem_len),
    PROMPT,
    model=model,
    segment_len=segment_len,
  )


def decode(model, *, mem_len, seed=0, **updates):
  memory, log_probs = read(model, mem_len=mem_len)
  call = functools.partial(
    generate.decode, model=model, config=options(**updates)
  )
  key = jax.random.key(seed)
  params = tiny.params(model.config)
  return np.asarray(jax.jit(call)(params, memory, log_probs, key))


def test_reading_in_segments_is_reading_at_once():
  memory, log_probs = read(make_model(), mem_len=12, segment_len=3)
  whole, expected = read(make_model(), mem_len=12, segment_len=8)
  np.testing.assert_allclose(log_probs, expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(memory.hiddens, whole.hiddens, atol=1e-5)
  total = np.logaddexp.reduce(np.asarray(log_probs))
  assert total == pytest.approx(0, abs=1e-5)


def test_greedy_decoding_is_the_argmax_of_reading_it_all_at_once():
  model = make_model(tie_weights=False)  # Tied, tiny models repeat themselves.
  tokens = decode(model, mem_len=32, num_tokens=12, temperature=0.0)
  text = np.concatenate([PROMPT, tokens])
  empty = model_lib.empty_memory(model.config, batch_size=1, mem_len=0)
  log_probs, _ = model.apply(
    {"params": tiny.params(model.config)},
    jnp.asarray(text[None, :-1], jnp.int32),
    empty,
    method="log_probs",
  )
  expected = np.argmax(np.asarray(log_probs[0]), axis=-1)[len(PROMPT) - 1 :]
  assert tokens.tolist() == expected.tolist()
  short = decode(model, mem_len=1, num_tokens=12, temperature=0.0)
  assert short.tolist() != tokens.tolist()  # So memory was needed.


def test_a_seed_gives_a_text_and_another_seed_another():
  model = make_model()
  draw = functools.partial(
    decode, model, mem_len=16, num_tokens=20, temperature=1.0, top_k=0
  )
  assert draw(seed=1).tolist() == draw(seed=1).tolist()
  assert draw(seed=1).tolist() != draw(seed=2).tolist()


def test_the_first_token_follows_the_temperature():
  log_probs = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
  keys = jax.random.split(jax.random.key(0), 20_000)
  for temperature in (1.0, 2.0):
    draw = functools.partial(
      generate.sample, log_probs, temperature=temperature, top_k=0
    )
    drawn = np.bincount(jax.jit(jax.vmap(draw))(keys), minlength=4) / 20_000
    expected = np.exp(np.asarray(log_probs) / temperature)
    expected /= expected.sum()
    # Four standard deviations of a frequency are below 0.015.
    np.testing.assert_allclose(drawn, expected, atol=0.015)


@pytest.mark.parametrize(("top_k", "allowed"), [(1, 1), (2, 2), (9, 4), (0, 4)])
def test_only_the_k_likeliest_are_drawn(top_k, allowed):
  log_probs = jnp.log(jnp.array([0.2, 0.35, 0.15, 0.3]))
  keys = jax.random.split(jax.random.key(0), 500)
  draw = functools.partial(
    generate.sample, log_probs, temperature=1.0, top_k=top_k
  )
  drawn = set(np.asarray(jax.jit(jax.vmap(draw))(keys)).tolist())
  assert drawn == set([1, 3, 0, 2][:allowed])


def test_a_temperature_of_zero_takes_the_likeliest():
  log_probs = jnp.log(jnp.array([0.3, 0.4, 0.3]))
  for seed in range(5):
    token = generate.sample(
      log_probs, jax.random.key(seed), temperature=0, top_k=0
    )
    assert int(token) == 1
    assert token.dtype == jnp.int32


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Generates in a folder with parameters and a vocabulary."""
  workdir = str(tmp_path_factory.mktemp("run"))
  data_dir = corpus.write(tmp_path_factory.mktemp("data"))
  provenance.keep_vocabulary(f"{data_dir}/{corpus.NAME}", workdir)
  params = tiny.params(corpus.config(data_dir).model)
  checkpoint_lib.save_params(workdir, params, step=1)

  def call(**updates):
    values = {"generate.num_tokens": 30, "generate.prompt": "abc"} | updates
    # As main gives it: the size of the vocabulary is not in it.
    config = corpus.config_dict("nowhere", **values)
    result = generate.run(config_lib.from_config_dict(config), workdir)
    path = f"{workdir}/results/generate.json"
    with open(path, encoding="utf-8") as file:
      assert json.load(file) == result
    return result

  return call


def test_a_result_has_the_text_and_all_it_depends_on(run):
  result = run(**{"generate.top_k": 5, "seed": 3})
  assert len(result["text"]) == 30
  assert set(result["text"]) <= set(corpus.SYMBOLS)
  assert result.pop("tokens_per_second") > 0
  text = result.pop("text")
  assert result == {
    "prompt": "abc",
    "num_tokens": 30,
    "seed": 3,
    "temperature": 1.0,
    "top_k": 5,
    "mem_len": 512,
  }
  assert run(**{"generate.top_k": 5, "seed": 3})["text"] == text
  assert run(**{"generate.top_k": 5, "seed": 4})["text"] != text


@pytest.mark.parametrize(
  ("prompt", "says"),
  [("abZ", "0x5a at position 2 of the text"), ("", "the prompt is empty")],
)
def test_a_prompt_that_cannot_be_read_is_one_line(run, prompt, says):
  with pytest.raises(errors.UserError, match=says) as caught:
    run(**{"generate.prompt": prompt})
  assert "\n" not in str(caught.value)
