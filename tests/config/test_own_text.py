"""The settings for one's own text follow its size, and are legal for each."""

import json
import types

import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl import main
from transformer_xl.config import load
from transformer_xl.data import token_file
from transformer_xl.experiments import own_text

SIZES = (2_000, 50_000, 999_999, 1_000_000, 30_000_000, 10**9)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))


@pytest.fixture
def settings(data_dir, monkeypatch):
  """The settings for a text that counts as long as it is said to be."""

  def of(num_tokens):
    file = types.SimpleNamespace(tokens=range(num_tokens))
    monkeypatch.setattr(token_file, "open_split", lambda *_: file)
    config = own_text.get_config(f"{data_dir}/{corpus.NAME}")
    return load.from_config_dict(config)

  return of


def reads(config, num_tokens):
  train = config.train
  return train.num_steps * train.batch_size * train.segment_len / num_tokens


@pytest.mark.parametrize("num_tokens", SIZES)
def test_no_text_is_read_more_than_ten_times(settings, num_tokens):
  config = settings(num_tokens)
  smallest = config.train.num_steps == 20  # Two calls, however short the text.
  assert smallest or reads(config, num_tokens) <= 10
  assert config.train.eval_every_steps > 0
  assert config.eval.checkpoint == "best"
  assert config.model.dropout_rate > 0


def test_a_longer_text_gets_a_wider_model_and_longer_segments(settings):
  configs = [settings(num_tokens) for num_tokens in SIZES]
  for values in (
    [config.model.model_dim for config in configs],
    [config.train.segment_len for config in configs],
    [config.train.num_steps for config in configs[:3]],
  ):
    assert values == sorted(values)
    assert values[0] < values[-1]
  assert configs[2].model != configs[3].model  # On both sides of a threshold.


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
  path = tmp_path / corpus.NAME / "meta.json"
  meta = json.loads(path.read_text())
  path.write_text(json.dumps(meta | {"suggested_cutoffs": [7, 12]}))
  config = own_text.get_config(f"{data_dir}/{corpus.NAME}")
  assert (config.model.cutoffs, config.model.div_val) == ((7, 12), 2)


def test_without_held_out_text_nothing_is_evaluated(tmp_path):
  data_dir = corpus.write(tmp_path)
  path = tmp_path / corpus.NAME / "meta.json"
  meta = json.loads(path.read_text())
  del meta["splits"]["valid"], meta["splits"]["test"]
  path.write_text(json.dumps(meta))
  config = own_text.get_config(f"{data_dir}/{corpus.NAME}")
  assert config.train.eval_every_steps == 0
  assert config.train.finish_with == ("generate",)
  assert config.eval.checkpoint == "latest"


@pytest.mark.parametrize(("num_steps", "warns"), [(312, False), (314, True)])
def test_a_run_that_reads_its_text_often_is_warned(
  data_dir, num_steps, warns, caplog
):
  """Ten times 1003 tokens, at 32 an update, are 313.4 updates."""
  config = corpus.config(data_dir, **{"train.num_steps": num_steps})
  main._warn_of_overfitting(config)
  assert ("10.0 times and may overfit" in caplog.text) == warns
