"""`--help`, and what `--config` takes as a name."""

import os
import subprocess
import sys

import pytest

from tests import test_main
from transformer_xl.config import schema
from transformer_xl.config import training_fields

pytestmark = pytest.mark.slow

NEW = f"--workdir={os.devnull}/new"  # Nothing gets so far as to make it.
REFUSED = {
  "no config": "name an experiment",
  "missing config file": "cannot read experiments/missing.py",
  "missing config file, override": "cannot read experiments/missing.py",
  "misspelt config file": "as in --config=quickstart",
  "misspelt name": "cannot read quikstart: --config takes the name of an",
  "another folder": "cannot read configs/quickstart.py",
  "saved without a workdir": "--config=saved:WORKDIR",
  "vanilla without a name": "--config=experiments/vanilla.py:ptb_small",
  "own text without a name": "--config=experiments/own_text.py:books",
  "own text that is not there": "no prepared data in nowhere/books",
  "a path with a colon": "co:lon/my.py has a colon in its path",
  "a file whose name ends in saved.py": "set --workdir=FOLDER",
  "no get_config": "none.py has no function get_config; write it like those",
  "no get_config, override": "none.py has no function get_config; write it",
  "no configuration": "get_config in null.py returns no ConfigDict but None;",
  "a dictionary": "returns no ConfigDict but {'model': {}}; write it like",
  "a dictionary, override": "returns no ConfigDict but {'model': {}}; write",
  "a misspelt field in a file": 'no field modle. Did you mean "model" instead',
  "an argument too many": "(get_config() takes 0 positional arguments but 1",
  "an argument too few": "(get_config() missing 1 required positional",
  "no such study": "experiments/beyond.py has no study 'shapes'; it has",
}
COMMANDS = {
  "no config": [NEW],
  "missing config file": ["--config=experiments/missing.py", NEW],
  "missing config file, override": [
    *("--config=experiments/missing.py", "--config.seed=1", NEW),
  ],
  "misspelt config file": ["--config=experiments/quikstart.py", NEW],
  "misspelt name": ["--config=quikstart", NEW],
  "another folder": ["--config=configs/quickstart.py", NEW],
  "saved without a workdir": ["--config=experiments/saved.py"],
  "vanilla without a name": ["--config=experiments/vanilla.py", NEW],
  "own text without a name": ["--config=experiments/own_text.py", NEW],
  "own text that is not there": [
    *("--config=experiments/own_text.py:nowhere/books", NEW),
  ],
  "no such study": ["--config=experiments/beyond.py:shapes", NEW],
  "a path with a colon": ["--config=co:lon/my.py:books", NEW],
  "a file whose name ends in saved.py": ["--config=my_saved.py:books"],
  "no get_config": ["--config=none.py", NEW],
  "no get_config, override": ["--config=none.py", "--config.seed=1", NEW],
  "no configuration": ["--config=null.py", NEW],
  "a dictionary": ["--config=dictionary.py", NEW],
  "a dictionary, override": ["--config=dictionary.py", "--config.seed=1", NEW],
  "a misspelt field in a file": ["--config=misspelt.py", NEW],
  "an argument too many": ["--config=quickstart:x", NEW],
  "an argument too few": ["--config=my_saved.py", NEW],
  "a file of an experiment's name": ["--config=quickstart", "--help"],
  "help": ["--help"],
  "help with a file": [
    *("--config=experiments/ptb.py", "--config.seed=7", "--help"),
  ],
  "help with a wrong file": ["--help", "--config=experiments/missing.py"],
}


OWN = """
from transformer_xl.experiments import base

def get_config(name):
  return base.get_config()
"""
MISSPELT = """
from transformer_xl.experiments import base

def get_config():
  config = base.get_config()
  config.modle.num_layers = 1
  return config
"""
FILES = {
  "co:lon/my.py": OWN,
  "my_saved.py": OWN,
  "none.py": "config = 1",
  "null.py": "def get_config():\n  return None\n",
  "dictionary.py": "def get_config():\n  return {'model': {}}\n",
  "misspelt.py": MISSPELT,
  "quickstart": "This is no Python.",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
  """What becomes of each command in a folder with files of the user's own."""
  folder = tmp_path_factory.mktemp("own")
  (folder / "co:lon").mkdir()
  for name, text in FILES.items():
    (folder / name).write_text(text)
  groups = [
    [{"arguments": arguments, "folder": str(folder)}]
    for arguments in COMMANDS.values()
  ]
  finished = test_main.finished_groups(groups)
  return {
    name: result for name, (result,) in zip(COMMANDS, finished, strict=True)
  }


@pytest.mark.parametrize("case", REFUSED)
def test_a_name_that_is_none_ends_in_one_line(results, case):
  *_, line = results[case]["stderr"].splitlines()
  assert line.startswith("error: ")
  assert REFUSED[case] in line
  assert results[case]["status"] == 2


@pytest.mark.parametrize(
  ("case", "source"),
  [
    ("help", "base"),
    ("help with a file", "experiments/ptb.py"),
    ("a file of an experiment's name", "quickstart"),
  ],
)
def test_help_has_every_experiment_and_field(results, case, source):
  result = results[case]
  assert result["status"] == 0, result["stderr"]
  text = " ".join(result["stderr"].split())
  assert f"Fields with the values of {source}" in text
  for name, field in schema.FIELDS.items():
    assert f" config.{name} = " in text
    assert " ".join(field.remark.split()) in text
  for path in (test_main.ROOT / "experiments").glob("[a-z]*.py"):
    assert f" {path.stem} " in text
  assert f"<train|{'|'.join(training_fields.FINISHES[:3])}|plan|" in text
  assert max(map(len, result["stderr"].splitlines())) <= 80


def test_help_shows_the_values_of_a_file_and_what_they_differ_from(results):
  lines = results["help with a file"]["stderr"].splitlines()
  assert "  config.seed = 7  (default: 0)" in lines
  assert "  config.model.num_layers = 6  (default: 4)" in lines
  assert "  config.model.embed_dim = 560  (default: that of model_dim)" in lines
  assert "  config.model.num_layers = 4" in results["help"]["stderr"].split(
    "\n"
  )


def test_help_with_a_wrong_file_is_one_line(results):
  result = results["help with a wrong file"]
  assert result["status"] == 2
  assert result["stderr"].startswith("error: cannot read experiments/missing")
  assert len(result["stderr"].splitlines()) == 1


def test_help_needs_no_jax():
  program = (
    "import sys; sys.modules['jax'] = None; sys.argv = ['main.py', '--help']; "
    "from transformer_xl import main; main.run()"
  )
  command = [sys.executable, "-c", program]
  finished = subprocess.run(
    command, cwd=test_main.ROOT, capture_output=True, text=True
  )
  assert finished.returncode == 0, finished.stderr
  assert "config.model.num_layers = 4" in finished.stdout
