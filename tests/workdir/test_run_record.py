"""What a run was made with is kept, and what changed since is said."""

import json
import pathlib
import re

import jax
import pytest

from experiments import saved
from tests import corpus
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.data import vocabulary
from transformer_xl.workdir import run_record


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))


def test_the_resolved_configuration_and_versions_are_kept(data_dir, tmp_path):
  config = corpus.config(data_dir)
  run_record.record(config, str(tmp_path))
  content = json.loads((tmp_path / "config.json").read_text())
  assert content["config"]["model"]["vocab_size"] == len(corpus.SYMBOLS)
  assert content["versions"]["jax"] == jax.__version__
  assert set(content["versions"]) == set(run_record.PACKAGES)
  commit = content["git_commit"]
  in_git = (pathlib.Path(__file__).parents[2] / ".git").exists()
  assert not in_git or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", commit)


def test_a_saved_configuration_is_the_one_that_ran(data_dir, tmp_path):
  config = corpus.config(
    data_dir, **{"model.cutoffs": (5, 9), "eval.mem_len": (0, 4)}
  )
  run_record.record(config, str(tmp_path))
  loaded = saved.get_config(str(tmp_path))
  assert load.from_config_dict(loaded) == config


def test_changes_since_the_last_run_are_named(data_dir, tmp_path, caplog):
  run_record.record(corpus.config(data_dir), str(tmp_path))
  run_record.record(corpus.config(data_dir), str(tmp_path))
  assert "Changed" not in caplog.text
  changed = corpus.config(data_dir, **{"train.learning_rate": 0.5})
  run_record.record(changed, str(tmp_path))
  (warning,) = [r.getMessage() for r in caplog.records]
  assert "config.train.learning_rate 0.01 -> 0.5" in warning
  content = json.loads((tmp_path / "config.json").read_text())
  assert content["config"]["train"]["learning_rate"] == 0.5


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"config": 3}'])
def test_a_damaged_record_is_written_anew(damage, data_dir, tmp_path, caplog):
  config = corpus.config(data_dir)
  (tmp_path / "config.json").write_text(damage)
  run_record.record(config, str(tmp_path))
  (warning,) = [r.getMessage() for r in caplog.records]
  assert "is damaged and will be rewritten" in warning
  loaded = saved.get_config(str(tmp_path))
  assert load.from_config_dict(loaded) == config


def test_a_field_that_came_later_is_named_as_absent(data_dir, tmp_path, caplog):
  run_record.record(corpus.config(data_dir), str(tmp_path))
  path = tmp_path / "config.json"
  content = json.loads(path.read_text())
  del content["config"]["train"]["ema_decay"]
  path.write_text(json.dumps(content))
  loaded = saved.get_config(str(tmp_path))
  assert loaded.train.ema_decay == 0.0  # As in base.py.
  run_record.record(corpus.config(data_dir), str(tmp_path))
  assert "config.train.ema_decay absent -> 0.0" in caplog.text


@pytest.mark.parametrize(
  ("content", "says"),
  [
    (None, "has no config.json"),
    ('{"config": {"mod', "config.json is damaged"),
    ('{"config": {"model": {"wings": 2}}}', "'wings'"),
  ],
)
def test_what_is_no_saved_configuration_is_one_line(tmp_path, content, says):
  if content is not None:
    (tmp_path / "config.json").write_text(content)
  with pytest.raises(errors.UserError, match=says) as caught:
    saved.get_config(str(tmp_path))
  assert "\n" not in str(caught.value)


def test_the_vocabulary_is_kept_with_the_run(data_dir, tmp_path):
  run_record.keep_vocabulary(f"{data_dir}/{corpus.NAME}", str(tmp_path))
  kept = vocabulary.load(str(tmp_path / run_record.VOCABULARY))
  assert kept.symbols == corpus.SYMBOLS


def test_without_git_there_is_no_commit(data_dir, tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  run_record.record(corpus.config(data_dir), str(tmp_path / "run"))
  content = json.loads((tmp_path / "run" / "config.json").read_text())
  assert content["git_commit"] is None
