"""The command line: each mistake is one line, and a workdir is enough."""

import json
import os
import pathlib
import re
import shutil

import pytest

from tests import commands
from tests import corpus
from transformer_xl import errors
from transformer_xl import main
from transformer_xl.config import load
from transformer_xl.data_prep import preparation
from transformer_xl.data_prep import staging

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
BASE = "--config=experiments/base.py"
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d (warning: )?\S")
# A configuration file with a group that was built anew.
REPLACED = """
from transformer_xl.experiments import base

def get_config():
  config = base.get_config()
  config.train = {}
  return config
"""
# What a case has beside its arguments.
SETTINGS = {
  "devices": {
    "environment": {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
  },
  "a name outside the root": {"folder": "tests"},
  "a flag of XLA": {
    "environment": {"XLA_FLAGS": "--xla_force_host_platform_device_count=two"}
  },
  "nobody reads": {"nobody_reads": True},
  "slice": {"num_hosts": 4},
}
FAILURES = {  # What is said, and the status.
  "misspelt": ("no field config.model.num_layer; did you mean", 2),
  "wrong type": ("num_layers", 2),
  "out of range": ("train.batch_size must be at least 1: it is 0", 2),
  "5000 digits": ("must be a whole number: it is '1111", 2),
  "a group replaced": ("config.train lacks init_from, init_parameters, i", 2),
  "a group that is none": ("config.train must be a group of fields: it is", 2),
  "a flag of XLA": ("interpret value two for flag xla_force_host_platform", 2),
  "devices": ("must use all 2 devices; try --config.mesh.data=-1", 2),
  "no workdir": ("set --workdir=FOLDER", 2),
  "no run": ("--mode=generate reads a run: name its folder, as in --config", 2),
  "a saved file": ("is a file; give the folder of the run, as in --config=", 2),
  "bucket": ("--workdir=s3://bucket/run must be a folder", 2),
  "a word that is no flag": ("'eval' belongs to no flag; write --flag=", 2),
  "a workdir with a backslash": ("/a\\b has a backslash, and no checkpoint", 2),
  "workdir is a file": ("/texts must be a folder, but it is a file", 2),
  "data folder is a file": ("/texts must be a folder, but it is", 2),
  "finish with nothing": ("train.finish_with must be one of ('eval', ", 2),
  "finish with evaluate": ("each: it is ('evaluate',)", 2),
  "finish without texts": ("score in train.finish_with could not run: name", 2),
  "finish without a split": ("eval in train.finish_with could not run", 2),
  "finish with a prompt": ("generate in train.finish_with could not run", 2),
  "finish with a temperature": (
    "attention in train.finish_with has temperature",
    2,
  ),
  "no average": ("set --config.train.ema_decay, or --config.eval.param", 2),
  "unknown mode": ("mode", 2),
  "coordinator alone": ("(Number of processes must be defined): give every", 2),
  "coordinator without a port": ("--coordinator=localhost has no port", 2),
  "no such process": ("with process_id < num_processes", 2),
  "no coordinator": ("(coordinator_address should be defined): give every", 2),
  "slice": ("one of 4 of a slice: give every process --coordinator=", 2),
  "nothing to join": ("(coordinator_address should be defined): give", 2),
  "no data": (
    "transformer-xl-data --dataset=text --source=YOUR_TEXT --name=tiny",
    2,
  ),
  "no data to finish with": ("error: there is no prepared data in", 2),
  "too little text": ("use more text, or fewer lanes of shorter segments.", 2),
  "misspelt data": ("--dataset=text --source=YOUR_TEXT --name=tyni", 2),
  "a study without its text": ("model.num_layers must be at least 1", 2),
  "truncated": ("train.npy is truncated", 2),
  "width": ("table_0 has shape (23, 8) there and (23, 12) in this", 2),
  "nothing to evaluate": ("there are no checkpoints in", 2),
  "nothing to generate": ("/new; name the folder of one with --config=s", 2),
  "nothing saved": ("has no config.json", 2),
  "no texts": ("name the texts to score: --config.score.file=FILE", 2),
  "prompt": ("the byte 0x54 at position 0 of the text is not", 2),
  "diverged": ("the last good checkpoint is none", 1),
}


def finished(cases):
  """What became of the command line of each case, one after another."""
  groups = [
    [{"arguments": arguments} | SETTINGS.get(name, {})]
    for name, arguments in cases.items()
  ]
  results = commands.finished(groups)
  return {name: one for name, (one,) in zip(cases, results, strict=True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("commands")
  corpus.write(folder / "data")
  (folder / "texts").write_text("abc\nde\n")
  for name, group in {"replaced": {"batch_size": 4}, "none": None}.items():
    (folder / f"{name}.py").write_text(REPLACED.format(group))
  (folder / ".jax_cache").mkdir()
  shutil.copytree(folder / "data", folder / "truncated")
  shutil.copytree(folder / "data", folder / "without_test")
  meta = folder / "without_test" / corpus.NAME / "meta.json"
  content = json.loads(meta.read_text())
  del content["splits"]["test"]
  meta.write_text(json.dumps(content))
  tokens = folder / "truncated" / corpus.NAME / "train.npy"
  tokens.write_bytes(tokens.read_bytes()[:300])
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("HOME", str(folder))
    yield folder


def lines_of(folder):
  """Arguments of each case; the first makes the run that others read."""
  run, new = f"--workdir={folder}/run", f"--workdir={folder}/new"
  flags = [BASE, *corpus.config_flags(f"{folder}/data")]
  saved = f"--config=experiments/saved.py:{folder}/run"
  ends = "--config.train.finish_with=('eval',)"
  short = "--config.train.num_steps=4"
  damaged = f"--config.data.dir={folder}/truncated"
  return {
    "train": [*flags, run, short, ends, "--config.train.weight_decay=0.1"],
    "saved": [saved, "--mode=eval", "--config.eval.mem_len=(0,16)"],
    "generate": [saved, "--mode=generate", "--config.generate.prompt=abc"],
    "score": [
      *("--config=saved:~/run", "--mode=score", "--config.score.file=~/texts"),
    ],
    "home": [
      *("--mode=score", "--config=saved:~/run", "--workdir=~/scores"),
      "--config.score.file=~/texts",
    ],
    "a name outside the root": [
      *("--mode", "eval", f"--config=saved:{folder}/run"),
      "--config.eval.mem_len=(0,16)",
    ],
    "no texts": [saved, "--mode=score"],
    "misspelt": [BASE, new, "--config.model.num_layer=4"],
    "wrong type": [BASE, new, "--config.model.num_layers=four"],
    "out of range": [*flags, new, "--config.train.batch_size=0"],
    "5000 digits": [*flags, new, f"--config.train.num_steps={'1' * 5000}"],
    "a group replaced": [f"--config={folder}/replaced.py", new, short],
    "a group that is none": [f"--config={folder}/none.py", new, short],
    "a flag of XLA": [*flags, new],
    "devices": [*flags, new, "--config.mesh.data=3"],
    "no workdir": flags,
    "no run": [*flags, "--mode=generate"],
    "a saved file": [f"{saved}/config.json", "--mode=eval"],
    "bucket": [*flags, "--workdir=s3://bucket/run"],
    "a word that is no flag": ["eval", *flags, new],
    "a workdir with a backslash": [*flags, f"--workdir={folder}/a\\b"],
    "workdir is a file": [*flags, f"--workdir={folder}/texts"],
    "data folder is a file": [*flags, new, f"--config.data.dir={folder}/texts"],
    "finish with nothing": [*flags, new, "--config.train.finish_with="],
    "finish with evaluate": [
      *flags,
      new,
      "--config.train.finish_with=evaluate",
    ],
    "finish without texts": [
      *flags,
      new,
      "--config.train.finish_with=('eval','score')",
    ],
    "finish without a split": [
      *flags,
      new,
      f"--config.data.dir={folder}/without_test",
      ends,
    ],
    "finish with a prompt": [
      *flags,
      new,
      "--config.train.finish_with=('generate',)",
      "--config.generate.prompt=The",
    ],
    "finish with a temperature": [
      *flags,
      new,
      "--config.train.finish_with=('eval','attention')",
      "--config.eval.temperature=3",
    ],
    "no average": [*flags, new, "--config.eval.parameters=ema"],
    "nobody reads": [saved, "--mode=generate", "--config.generate.prompt=abc"],
    "unknown mode": [*flags, new, "--mode=sing"],
    "coordinator alone": [*flags, new, "--coordinator=localhost:9"],
    "coordinator without a port": [*flags, new, "--coordinator=localhost"],
    "no such process": [
      *(*flags, new, "--coordinator=localhost:9"),
      *("--num_processes=2", "--process_id=2"),
    ],
    "no coordinator": [*flags, new, "--num_processes=2"],
    "slice": [*flags, new],
    "nothing to join": [*flags, new, "--multihost"],
    "no data": [*flags, new, f"--config.data.dir={folder}/nowhere"],
    "no data to finish with": [
      *(*flags, new, f"--config.data.dir={folder}/nowhere", ends),
    ],
    "too little text": [*flags, new, "--config.train.segment_len=100000"],
    "misspelt data": [
      *(*flags, new, "--config.data.prepare=True", "--config.data.name=tyni"),
    ],
    "a study without its text": [
      *("--mode=study", "--config=memory_suite:parity", new),
      f"--config.data.dir={folder}/made",
      "--config.analysis.variants=('none: model.num_layers=0',)",
    ],
    "truncated": [*flags, new, damaged],
    "width": [*flags, run, "--config.model.model_dim=12"],
    "nothing to evaluate": [*flags, new, "--mode=eval"],
    "nothing to generate": [*flags, new, "--mode=generate"],
    "nothing saved": [f"--config=experiments/saved.py:{folder}/data"],
    "prompt": [saved, "--mode=generate", "--config.generate.prompt=The"],
    "diverged": [*flags, new, "--config.train.learning_rate=1e30"],
  }


@pytest.fixture(scope="module")
def results(folder):
  return finished(lines_of(folder))


@pytest.mark.parametrize("case", FAILURES)
def test_a_mistake_ends_in_one_line(results, case):
  result, (says, status) = results[case], FAILURES[case]
  *log, last = result["stderr"].splitlines()
  assert last.startswith("error: ")
  assert says in last
  assert len(last) < 1000
  assert result["status"] == status
  assert all(LOG_LINE.match(line) for line in log), "\n".join(log)


def test_training_ends_with_the_modes_that_finish_it(results, folder):
  assert results["train"]["status"] == 0, results["train"]["stderr"]
  assert "1 x cpu, process 0 of 1." in results["train"]["stderr"]
  assert (folder / "run" / "metrics.jsonl").exists()
  log = results["train"]["stderr"]
  assert log.count("test: nll") == 1
  assert "Compiled the update in" in log  # Which no speed includes.
  assert log.count("train.weight_decay=0.1 has no effect without train.op") == 1
  assert "orbax" not in log


def test_no_command_reads_compiled_programs_beside_a_workdir(results, folder):
  assert {"train", "saved", "generate", "score"} <= results.keys()
  assert list((folder / ".jax_cache").iterdir()) == []
  ours = pathlib.Path(os.environ["XDG_CACHE_HOME"], "transformer_xl/compiled")
  assert any(ours.iterdir())
  assert ours.stat().st_mode & 0o777 == 0o700


def test_a_workdir_is_enough_to_evaluate(results, folder):
  assert results["saved"]["status"] == 0, results["saved"]["stderr"]
  path = folder / "run" / "results" / "eval_test.json"
  cards = json.loads(path.read_text())["cards"]
  assert [card["mem_len"] for card in cards] == [0, 16]
  assert all(card["checkpoint_step"] == 4 for card in cards)


def test_a_workdir_is_enough_to_generate(results, folder):
  assert results["generate"]["status"] == 0, results["generate"]["stderr"]
  path = folder / "run" / "results" / "generate.json"
  result = json.loads(path.read_text())
  assert result["prompt"] == "abc"
  assert len(result["text"]) == result["num_tokens"] == 200


def test_a_workdir_is_enough_to_score(results, folder):
  assert results["score"]["status"] == 0, results["score"]["stderr"]
  path = folder / "run" / "results" / "score.json"
  counts = [text["num_tokens"] for text in json.loads(path.read_text())]
  assert counts == [3, 2]


def test_a_tilde_is_the_home_of_the_user(results, folder):
  assert results["home"]["status"] == 2
  assert not pathlib.Path(ROOT, "~").exists()
  *_, last = results["home"]["stderr"].splitlines()
  assert f"{folder}/scores" in last


def test_a_run_that_may_overfit_unnoticed_is_warned(results):
  warning = "no validation and no dropout, so it may overfit tiny"
  assert warning in results["train"]["stderr"]


@pytest.mark.parametrize("case", ["saved", "a name outside the root"])
def test_a_configuration_is_found_from_any_directory(results, case):
  assert results[case]["status"] == 0, results[case]["stderr"]
  assert "memory 16, clamp" in results[case]["stderr"]


def test_a_study_makes_the_text_that_is_missing(results, folder):
  assert "Preparing parity in" in results["a study without its text"]["stderr"]
  assert (folder / "made" / "parity" / "meta.json").exists()


def test_nobody_is_advised_to_train_for_no_updates(results):
  log = results["too little text"]["stderr"]
  assert "times and may overfit them; more text would help." in log


def test_what_follows_training_is_said_before_it_runs(results):
  before, after = results["train"]["stderr"].split("(train.finish_with): eval.")
  assert "test: nll" not in before
  assert "test: nll" in after


def test_the_last_line_says_which_files_everything_is_in(results, folder):
  *_, last = results["saved"]["stderr"].splitlines()
  written = "results/cards.jsonl, results/eval_test.json."
  assert last.endswith(f" Everything is in {folder}/run: {written}")
  *_, last = results["train"]["stderr"].splitlines()
  assert f"/run: metrics.jsonl, checkpoints, {written}" in last


def test_training_names_commands_for_what_it_made(results, folder):
  *_, block = results["train"]["stderr"].split("Next:\n")
  saved = f"--config=saved:{folder}/run"
  program = "    python -m transformer_xl.main"
  assert f"{program} --mode=eval {saved} --config.eval.mem_len=" in block
  assert f"{program} --mode=generate {saved} " in block
  assert "Next:" not in results["saved"]["stderr"]


def test_a_reader_that_leaves_ends_the_command_without_a_word(results):
  result = results["nobody reads"]
  assert result["status"] == 1
  lines = result["stderr"].splitlines()
  assert all(LOG_LINE.match(line) for line in lines), result["stderr"]


def test_mistakes_leave_no_checkpoints_behind(results, folder):
  assert len(results) > len(FAILURES)
  kept = [path.name for path in (folder / "run" / "checkpoints").iterdir()]
  assert kept == ["4"]
  new = folder / "new" / "checkpoints"
  assert not new.exists() or list(new.iterdir()) == []


@pytest.mark.parametrize("ends_with", ["data", "nothing"])
def test_data_that_another_worker_prepares_are_waited_for(
  tmp_path, monkeypatch, ends_with
):
  """If that worker was killed, this one prepares them."""
  calls = []

  def prepare(dataset, data_dir):
    calls.append(dataset)
    folder = tmp_path / "data" / dataset
    if len(calls) == 1:
      raise staging.BusyError("another process is preparing it")
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text("{}")
    if ends_with == "data":  # It was there when this one wanted to begin.
      raise errors.UserError("holds something else")

  monkeypatch.setattr(preparation, "prepare", prepare)
  monkeypatch.setattr(preparation, "_BETWEEN_LOOKS_SECONDS", 0.0)
  config = corpus.config_dict(str(tmp_path / "data"), **{"data.name": "mqar"})
  data = load.from_config_dict(config).data
  main._prepare_data(data)
  assert calls == ["mqar", "mqar"]
  main._prepare_data(data)
  assert calls == ["mqar", "mqar"]


def test_what_is_in_the_way_of_data_is_not_waited_for(tmp_path, monkeypatch):
  def prepare(dataset, data_dir):
    raise errors.UserError("holds something else")

  monkeypatch.setattr(preparation, "prepare", prepare)
  config = corpus.config_dict(str(tmp_path / "data"), **{"data.name": "mqar"})
  data = load.from_config_dict(config).data
  with pytest.raises(errors.UserError, match="holds something else"):
    main._prepare_data(data)
