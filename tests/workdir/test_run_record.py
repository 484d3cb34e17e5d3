"""What a run was made with is kept, and what changed since is said."""

import hashlib
import json
import pathlib
import re
import subprocess

import jax
import pytest

from tests import corpus
from tests import tiny
from transformer_xl import errors
from transformer_xl.analysis import recl
from transformer_xl.config import load
from transformer_xl.data import vocabulary
from transformer_xl.evaluation import evaluate
from transformer_xl.training import loop
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_record


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
  loaded = load.saved(str(tmp_path))
  assert load.from_config_dict(loaded) == config


def test_changes_since_the_last_run_are_named(data_dir, tmp_path, caplog):
  run_record.record(corpus.config(data_dir), str(tmp_path))
  run_record.log_changes(corpus.config(data_dir).as_saved(), str(tmp_path))
  assert "Changed" not in caplog.text
  changed = corpus.config(data_dir, **{"train.learning_rate": 0.5})
  run_record.log_changes(changed.as_saved(), str(tmp_path))
  run_record.record(changed, str(tmp_path))
  (warning,) = [r.getMessage() for r in caplog.records]
  assert "config.train.learning_rate 0.01 -> 0.5" in warning
  content = json.loads((tmp_path / "config.json").read_text())
  assert content["config"]["train"]["learning_rate"] == 0.5


def test_every_session_is_kept(data_dir, tmp_path):
  for step in (0, 8):
    run_record.record(corpus.config(data_dir), str(tmp_path), step=step)
  sessions = json.loads((tmp_path / "config.json").read_text())["sessions"]
  assert [session["step"] for session in sessions] == [0, 8]
  assert all(session["time"].endswith("+00:00") for session in sessions)


@pytest.mark.parametrize(
  "damage",
  ["", "{", "[]", '{"config": 3}', '{"config": {}, "sessions": 3}'],
)
def test_a_damaged_record_is_written_anew(damage, data_dir, tmp_path, caplog):
  config = corpus.config(data_dir)
  (tmp_path / "config.json").write_text(damage)
  run_record.record(config, str(tmp_path))
  (warning,) = [r.getMessage() for r in caplog.records]
  assert "is damaged and will be rewritten" in warning
  loaded = load.saved(str(tmp_path))
  assert load.from_config_dict(loaded) == config


def test_a_field_that_came_later_is_named_as_absent(data_dir, tmp_path, caplog):
  run_record.record(corpus.config(data_dir), str(tmp_path))
  path = tmp_path / "config.json"
  content = json.loads(path.read_text())
  del content["config"]["train"]["ema_decay"]
  path.write_text(json.dumps(content))
  loaded = load.saved(str(tmp_path))
  assert loaded.train.ema_decay == 0.0  # As in base.py.
  run_record.log_changes(corpus.config(data_dir).as_saved(), str(tmp_path))
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
    load.saved(str(tmp_path))
  assert "\n" not in str(caught.value)


def test_the_vocabulary_is_kept_with_the_run(data_dir, tmp_path):
  run_record.keep_vocabulary(f"{data_dir}/{corpus.NAME}", str(tmp_path))
  kept = vocabulary.load(str(tmp_path / run_record.VOCABULARY))
  assert kept.symbols == corpus.SYMBOLS


def test_a_vocabulary_that_is_kept_is_replaced_whole(data_dir, tmp_path):
  """Not written over, which a full disk or a kill would leave half done."""
  folder = tmp_path / run_record.VOCABULARY
  before = {}
  for _ in range(2):
    run_record.keep_vocabulary(f"{data_dir}/{corpus.NAME}", str(tmp_path))
    for path in folder.iterdir():
      assert path.stat().st_ino != before.get(path.name)
      before[path.name] = path.stat().st_ino
      (tmp_path / f"{path.name}.link").unlink(missing_ok=True)
      (tmp_path / f"{path.name}.link").hardlink_to(path)
  assert len(before) == 2


def test_another_vocabulary_of_the_same_size_is_refused(data_dir, tmp_path):
  folder, other = str(tmp_path), write_reversed(tmp_path / "data")
  run_record.check_vocabulary(other, folder)  # Nothing is kept yet.
  run_record.keep_vocabulary(f"{data_dir}/{corpus.NAME}", folder)
  run_record.keep_vocabulary(f"{data_dir}/{corpus.NAME}", folder)
  for refused in (run_record.check_vocabulary, run_record.keep_vocabulary):
    with pytest.raises(errors.UserError, match="is not the one that") as caught:
      refused(other, folder)
    assert "\n" not in str(caught.value)
  kept = vocabulary.load(str(tmp_path / run_record.VOCABULARY))
  assert kept.symbols == corpus.SYMBOLS


def test_the_same_symbols_may_be_spelled_in_two_ways(tmp_path):
  """As an import and data_prep write the byte 0xe9."""
  folders = []
  for name, lines in (("import", "a\n\u00e9\n"), ("prepared", "a\n\\xe9\n")):
    folders.append(tmp_path / name)
    folders[-1].mkdir()
    (folders[-1] / "vocabulary.txt").write_text(lines, encoding="utf-8")
    meta = {
      "tokenizer": {"kind": "byte", "lower_case": False},
      "vocabulary": {
        "file": "vocabulary.txt",
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
      },
    }
    (folders[-1] / "meta.json").write_text(json.dumps(meta))
  run = str(tmp_path / "run")
  for folder in folders:
    run_record.keep_vocabulary(str(folder), run)
  kept = tmp_path / "run" / run_record.VOCABULARY / "vocabulary.txt"
  assert kept.read_bytes() == (folders[0] / "vocabulary.txt").read_bytes()


@pytest.mark.parametrize("damage", [None, "{", "[]", '{"vocabulary": {}}'])
def test_half_a_copy_of_the_vocabulary_is_completed(data_dir, tmp_path, damage):
  folder = tmp_path / run_record.VOCABULARY
  folder.mkdir()
  if damage is not None:
    (folder / "meta.json").write_text(damage)
  run_record.keep_vocabulary(f"{data_dir}/{corpus.NAME}", str(tmp_path))
  assert vocabulary.load(str(folder)).symbols == corpus.SYMBOLS


def test_no_mode_reads_a_text_with_another_vocabulary(data_dir, tmp_path):
  """Its loss would be a number like any other."""
  config = corpus.config(data_dir)
  workdir = str(tmp_path / "run")
  params = tiny.params(config.model)
  params_writer.save(workdir, params, step=1)
  run_record.keep_vocabulary(config.data.dataset_dir, workdir)
  write_reversed(tmp_path / "data")
  other = corpus.config(str(tmp_path / "data"))
  assert other.model == config.model
  for mode in (loop.train, evaluate.run, recl.run):
    with pytest.raises(errors.UserError, match="is not the one that"):
      mode(other, workdir)
  assert not (tmp_path / "run" / "config.json").exists()
  assert not (tmp_path / "run" / "results").exists()


def write_reversed(data_dir):
  """The tiny dataset with its symbols in reverse; returns its folder."""
  folder = pathlib.Path(corpus.write(data_dir)) / corpus.NAME
  lines = (folder / "vocabulary.txt").read_text().splitlines()
  content = "".join(f"{line}\n" for line in reversed(lines)).encode()
  (folder / "vocabulary.txt").write_bytes(content)
  with corpus.changed_meta(folder) as meta:
    meta["vocabulary"]["sha256"] = hashlib.sha256(content).hexdigest()
  return str(folder)


def test_without_git_there_is_no_commit(data_dir, tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  run_record.record(corpus.config(data_dir), str(tmp_path / "run"))
  content = json.loads((tmp_path / "run" / "config.json").read_text())
  assert content["git_commit"] is None


def test_the_commit_is_not_that_of_a_repository_around_the_package(
  data_dir, tmp_path, monkeypatch
):
  def git(*words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)

  def recorded():
    run_record.record(corpus.config(data_dir), str(tmp_path / "run"))
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    return content["git_commit"]

  installed = tmp_path / ".venv" / "run_record.py"
  installed.parent.mkdir()
  installed.touch()
  monkeypatch.setattr(run_record, "__file__", str(installed))
  git("init", "--quiet")
  git("commit", "--quiet", "--allow-empty", "--message=theirs")
  assert recorded() is None
  git("add", ".venv")
  git("commit", "--quiet", "--message=ours")
  assert re.fullmatch(r"[0-9a-f]{40}", recorded())


def test_a_record_that_is_gone_is_written_again(data_dir, tmp_path, caplog):
  config = corpus.config(data_dir)
  workdir = str(tmp_path)
  source = {"workdir": "runs/first"}

  def write(step):
    run_record.write_again_if_gone(
      config, workdir, step=step, initialised_from=source
    )

  run_record.record(config, workdir, initialised_from=source)
  before = (tmp_path / "config.json").read_bytes()
  write(4)
  assert (tmp_path / "config.json").read_bytes() == before
  (tmp_path / "config.json").unlink()
  write(8)
  assert "config.json is gone; it is written again." in caplog.text
  record = json.loads((tmp_path / "config.json").read_text())
  assert record["config"] == json.loads(before)["config"]
  assert record["initialised_from"] == source
  assert [session["step"] for session in record["sessions"]] == [8]
