"""The settings for one's own text follow its size, and are legal for each."""

import math
import types

import numpy as np
import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary
from transformer_xl.experiments import own_text

SIZES = (2_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 10**9)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))


@pytest.fixture
def settings(data_dir, monkeypatch):
  """The settings for a text that counts as long as it is said to be."""

  def of(num_tokens, length="", **flags):
    tokens = np.broadcast_to(np.uint8(3), num_tokens)
    file = types.SimpleNamespace(tokens=tokens)
    monkeypatch.setattr(token_file, "open_split", lambda *_: file)
    config = own_text.get_config(f"{data_dir}/{corpus.NAME}{length}")
    config.train.update(flags)
    return load.from_config_dict(config)

  return of


def reads(config, num_tokens):
  train = config.train
  return train.num_steps * train.batch_size * train.segment_len / num_tokens


@pytest.mark.parametrize("length", ["", ":long"])
@pytest.mark.parametrize("num_tokens", SIZES)
def test_no_text_is_read_more_than_ten_times(settings, num_tokens, length):
  config = settings(num_tokens, length)
  smallest = config.train.num_steps == 20  # Two calls, however short the text.
  assert smallest or reads(config, num_tokens) <= 10
  # What is read often is learned by heart without dropout.
  assert reads(config, num_tokens) < 3 or config.model.dropout_rate > 0
  assert config.model.dtype == "auto"
  assert config.eval.checkpoint == "best"
  assert config.train.finish_with == ("eval", "generate", "report")


@pytest.mark.parametrize("length", ["", ":long"])
def test_a_longer_text_gets_a_larger_model_and_more_updates(settings, length):
  configs = [settings(num_tokens, length) for num_tokens in SIZES]
  for values in (
    [config.model.model_dim for config in configs],
    [config.train.num_steps for config in configs],
    [-config.train.learning_rate for config in configs],
  ):
    assert values == sorted(values)
    assert values[0] < values[-1]


@pytest.mark.parametrize("num_tokens", SIZES[2:])
def test_a_long_run_trains_a_larger_model_for_longer(settings, num_tokens):
  usual = settings(num_tokens)
  long = settings(num_tokens, ":long")
  assert long.model.model_dim > usual.model.model_dim
  assert long.train.num_steps > 3 * usual.train.num_steps
  assert long.model.dropout_rate > usual.model.dropout_rate


@pytest.mark.parametrize("num_steps", [20, 150, 1500, 40_000])
def test_intervals_follow_a_number_of_updates_that_a_flag_sets(
  settings, num_steps
):
  config = settings(1_000_000, num_steps=num_steps)
  train = config.train
  validations = math.ceil(num_steps / train.eval_every_steps)
  assert 2 <= validations <= 20
  assert num_steps < 1500 or validations > 17
  assert config.checkpoint.every_steps == train.eval_every_steps
  assert train.warmup_steps == num_steps // 20
  assert 2 <= num_steps / train.log_every_steps <= 100
  assert config.updates_per_call == 10


@pytest.mark.parametrize("flags", [{}, {"num_steps": 100}, {"batch_size": 2}])
@pytest.mark.parametrize("num_validated", [54_000, 540_000])
def test_validation_takes_a_tenth_of_the_time(
  settings, data_dir, monkeypatch, flags, num_validated
):
  """But for one after the last update. Scoring takes a third of training."""
  meta = token_file.read_meta(f"{data_dir}/{corpus.NAME}")
  meta["splits"]["valid"]["num_tokens"] = num_validated
  monkeypatch.setattr(token_file, "read_meta", lambda *_: meta)
  config = settings(20 * num_validated, **flags)
  train = config.train
  per_update = train.batch_size * train.segment_len
  between = train.eval_every_steps * per_update
  assert num_validated / 3 <= 0.1 * (between + num_validated / 3)
  least = max(train.num_steps / 20, 3 * num_validated / per_update)
  assert train.eval_every_steps <= least + 10
  assert config.checkpoint.every_steps <= train.num_steps / 20 + 10


@pytest.mark.parametrize("name", ["batch_size", "segment_len"])
def test_a_flag_that_is_not_allowed_is_one_line(settings, name):
  with pytest.raises(errors.UserError, match=f"train.{name} must be at least"):
    settings(100_000, **{name: 0})


def test_the_sample_continues_a_line_of_held_out_text(data_dir):
  folder = f"{data_dir}/{corpus.NAME}"
  prompt = own_text.get_config(folder).generate.prompt
  held_out = vocabulary.load(folder).decode(
    token_file.open_split(folder, "valid").tokens
  )
  assert 0 < len(prompt) <= 60
  assert prompt in held_out
  assert "\n" not in prompt


def test_the_text_is_named_by_its_folder(data_dir, tmp_path, monkeypatch):
  config = own_text.get_config(f"{data_dir}/{corpus.NAME}/")
  assert (config.data.dir, config.data.name) == (data_dir, corpus.NAME)
  corpus.write(tmp_path / "data")
  monkeypatch.chdir(tmp_path)
  assert own_text.get_config(corpus.NAME).data.dir == "data"
  monkeypatch.setenv("HOME", str(tmp_path))
  config = own_text.get_config(f"~/data/{corpus.NAME}")
  assert config.data.dir == str(tmp_path / "data")


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_text_that_is_not_there_is_one_line(data_dir, name):
  wanted = "no prepared data in" if name else "name the folder"
  with pytest.raises(errors.UserError, match=wanted):
    own_text.get_config(name and f"{data_dir}/{name}")


def test_rare_symbols_get_narrower_vectors(tmp_path):
  data_dir = corpus.write(tmp_path)
  with corpus.changed_meta(tmp_path / corpus.NAME) as meta:
    meta["suggested_cutoffs"] = [7, 12]
  config = own_text.get_config(f"{data_dir}/{corpus.NAME}")
  assert (config.model.cutoffs, config.model.div_val) == ((7, 12), 2)


def test_without_held_out_text_nothing_is_evaluated(tmp_path):
  data_dir = corpus.write(tmp_path)
  with corpus.changed_meta(tmp_path / corpus.NAME) as meta:
    del meta["splits"]["valid"], meta["splits"]["test"]
  config = own_text.get_config(f"{data_dir}/{corpus.NAME}")
  assert config.train.eval_every_steps == 0
  assert config.train.finish_with == ("generate", "report")
  assert config.eval.split == "train"
  assert config.eval.checkpoint == "latest"
