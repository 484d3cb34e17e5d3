"""`--help`, what `--config` takes as a name, and mistakes in its files."""

import os
import re
import subprocess
import sys
import tomllib

import jax
import pytest

import transformer_xl
from tests import commands
from tests import kinds
from tests import test_main
from transformer_xl import main
from transformer_xl.config import schema

pytestmark = pytest.mark.slow

ROTATING = kinds.encoding(rotates=True)  # It has fields of its own.
NEW = f"--workdir={os.devnull}/new"  # Nothing gets so far as to make it.
REFUSED = {
  "no config": "name an experiment, as in --config=quickstart --workdir=",
  "a workdir without a config": "of the run in the workdir: --config=saved:r",
  "the folder of a run": "is the folder of a run; for its configuration: --con",
  "missing config file": "cannot read experiments/missing.py",
  "missing config file, override": "cannot read experiments/missing.py",
  "misspelt config file": "; did you mean --config=quickstart?",
  "misspelt name": "cannot read quikstart: --config takes the name of an",
  "a name that is like none": "a file, as in --config=quickstart.",
  "the start of a name": (
    "did you mean --config=enwik8_alrfou or --config=enwik8_base or"
  ),
  "a dataset": "did you mean --config=wt103_base or --config=wt103_base_alig",
  "another folder": "cannot read configs/quickstart.py",
  "saved without a workdir": "--config=saved:WORKDIR",
  "vanilla without a name": "--config=experiments/vanilla.py:ptb_small",
  "own text without a name": "--config=own_text:books, or its path",
  "own text of another length": "ends in 'short', but only 'long' may follow",
  "own text that is not there": "no prepared data in nowhere/books",
  "a path with a colon": "co:lon/my.py has a colon in its path",
  "a file whose name ends in saved.py": "set --workdir=FOLDER",
  "no get_config": "none.py has no function get_config; write it like those",
  "no get_config, override": "none.py has no function get_config; write it",
  "no configuration": "get_config in null.py returns no ConfigDict but None;",
  "a dictionary": "returns no ConfigDict but {'model': {}}; write it like",
  "a dictionary, override": "returns no ConfigDict but {'model': {}}; write",
  "a misspelt field in a file": (
    "misspelt.py, line 6: there is no field modle; did you mean config.model?"
  ),
  "a new field in a file": (
    "new.py, line 6: there is no field lr; did you mean "
    "config.train.learning_rate? Peak learning rate."
  ),
  "a wrong type in a file": "wrong_type.py, line 6: Could not override field",
  "a wrong type in a called file": "shapes_of_mine.py, line 2: Could not overr",
  "a number out of range in a file": (
    "train.batch_size must be at least 1: it is 0; set "
    "--config.train.batch_size. out_of_range.py, line 7 sets train.batch_size."
  ),
  "numbers that do not fit in a file": (
    "out_of_step.py, line 6 sets train.warmup_steps. out_of_step.py, line 7 "
    "sets train.num_steps."
  ),
  "a flag of other programs": (
    "there is no flag --lr; did you mean --config.train.learning_rate?"
  ),
  "a folder of other programs": "no flag --output_dir; did you mean --workdir?",
  "a flag that is not needed": "with the same --workdir resumes a run.",
  "a flag of no program": "no flag --fofo; --help lists the flags.",
  "a mode of other programs": "eval_speed|export>; did you mean generate?",
  "a misspelt mode": "eval_speed|export>; did you mean eval?",
  "a format of other programs": "did you mean transformers?",
  "a word for a number": (
    "config.train.learning_rate must be a number: it is 'fast'."
  ),
  "a fraction for a whole number": (
    "config.train.num_steps must be a whole number: it is '1e3'."
  ),
  "several numbers without commas": (
    "must be a whole number or several, such as '(1,2)': it is '0 64'."
  ),
  "a length of other programs": "did you mean config.generate.num_tokens?",
  "a field without its prefix": (
    "there is no flag --train.batch_size; did you mean --config.train.batch_siz"
  ),
  "a field of another group": (
    "there is no field config.model.warmup_steps; did you mean "
    "config.train.warmup_steps?"
  ),
  "a field of a number": "no field config.seed.x; --help=all lists the fields.",
  "help about nothing": "no help about num_layer; did you mean --help=mod",
  "an argument too many": "(get_config() takes 0 positional arguments but 1",
  "an argument too few": "(get_config() missing 1 required positional",
  "two prompts": "--config.generate.prompt_file are both given; leave one",
  "a prompt beside a split": "--config.generate.prompt_split are both given;",
  "no such task": "experiments/memory_suite.py has no task 'shapes'; it has",
}
COMMANDS = {
  "no config": [NEW],
  "missing config file": ["--config=experiments/missing.py", NEW],
  "missing config file, override": [
    *("--config=experiments/missing.py", "--config.seed=1", NEW),
  ],
  "misspelt config file": ["--config=experiments/quikstart.py", NEW],
  "two prompts": [
    *("--config=quickstart", NEW, "--mode=generate"),
    *("--config.generate.prompt=a", "--config.generate.prompt_file=b.txt"),
  ],
  "a prompt beside a split": [
    *("--config=quickstart", NEW, "--mode=generate"),
    *("--config.generate.prompt=a", "--config.generate.prompt_split=test"),
  ],
  "misspelt name": ["--config=quikstart", NEW],
  "a name that is like none": ["--config=zzz", NEW],
  "the start of a name": ["--config=enwik8", NEW],
  "a dataset": ["--config=WikiText-103", NEW],
  "another folder": ["--config=configs/quickstart.py", NEW],
  "saved without a workdir": ["--config=experiments/saved.py"],
  "vanilla without a name": ["--config=experiments/vanilla.py", NEW],
  "own text without a name": ["--config=experiments/own_text.py", NEW],
  "own text of another length": ["--config=own_text:books:short", NEW],
  "own text that is not there": [
    *("--config=experiments/own_text.py:nowhere/books", NEW),
  ],
  "no such task": ["--config=experiments/memory_suite.py:shapes", NEW],
  "a path with a colon": ["--config=co:lon/my.py:books", NEW],
  "a file whose name ends in saved.py": ["--config=my_saved.py:books"],
  "no get_config": ["--config=none.py", NEW],
  "no get_config, override": ["--config=none.py", "--config.seed=1", NEW],
  "no configuration": ["--config=null.py", NEW],
  "a dictionary": ["--config=dictionary.py", NEW],
  "a dictionary, override": ["--config=dictionary.py", "--config.seed=1", NEW],
  "a misspelt field in a file": ["--config=misspelt.py", NEW],
  "a new field in a file": ["--config=new.py", NEW],
  "a wrong type in a file": ["--config=wrong_type.py", NEW],
  "a wrong type in a called file": ["--config=caller.py", NEW],
  "a number out of range in a file": ["--config=out_of_range.py", NEW],
  "numbers that do not fit in a file": ["--config=out_of_step.py", NEW],
  "a flag of other programs": ["--config=quickstart", "--lr=1", NEW],
  "a workdir without a config": ["--workdir=run"],
  "the folder of a run": ["--config=run", NEW],
  "a folder of other programs": ["--config=quickstart", "--output_dir=x"],
  "a flag that is not needed": ["--config=quickstart", "--resume"],
  "a flag of no program": ["--config=quickstart", "--fofo=3"],
  "a mode of other programs": ["--config=quickstart", "--mode=sample"],
  "a misspelt mode": ["--config=quickstart", "--mode=evall"],
  "a format of other programs": ["--config=quickstart", "--format=hf"],
  "a word for a number": [
    *("--config=quickstart", "--config.train.learning_rate=fast"),
  ],
  "a fraction for a whole number": [
    *("--config=quickstart", "--config.train.num_steps=1e3"),
  ],
  "several numbers without commas": [
    *("--config=quickstart", "--config.eval.mem_len=0 64"),
  ],
  "a length of other programs": [
    *("--config=quickstart", "--config.generate.max_length=9"),
  ],
  "a field without its prefix": [
    *("--config=quickstart", "--train.batch_size=1", NEW),
  ],
  "a field of another group": [
    *("--config=quickstart", "--config.model.warmup_steps=1", NEW),
  ],
  "a field of a number": ["--config=quickstart", "--config.seed.x=1", NEW],
  "an argument too many": ["--config=quickstart:x", NEW],
  "an argument too few": ["--config=my_saved.py", NEW],
  "a file of an experiment's name": ["--config=quickstart", "--help=all"],
  "version": ["--version"],
  "help": ["--help"],
  "help about all": ["--help=all"],
  "help about a group": ["--help=eval"],
  "help about a group by its last part": [f"--help={ROTATING}"],
  "help about a mode": ["--help=ablation"],
  "help about a field": ["--help=config.train.learning_rate"],
  "help about another name": ["--help=lr"],
  "help about nothing": ["--help=num_layer"],
  "help with a file": [
    *("--config=experiments/ptb.py", "--config.seed=7", "--help=all"),
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
CALLER = """
import sys
sys.path.insert(0, ".")
from transformer_xl.experiments import base
import shapes_of_mine

def get_config():
  config = base.get_config()
  shapes_of_mine.update(config)
  return config
"""
FILES = {
  "co:lon/my.py": OWN,
  "my_saved.py": OWN,
  "none.py": "config = 1",
  "null.py": "def get_config():\n  return None\n",
  "dictionary.py": "def get_config():\n  return {'model': {}}\n",
  "misspelt.py": MISSPELT,
  "new.py": MISSPELT.replace("modle.num_layers", "train.lr"),
  "wrong_type.py": MISSPELT.replace("modle.num_layers = 1", "seed = 'a'"),
  "caller.py": CALLER,
  "shapes_of_mine.py": "def update(config):\n  config.seed = 'a'\n",
  "out_of_range.py": MISSPELT.replace(
    "modle.num_layers = 1",
    "train.batch_size = 8\n  config.train.update({'batch_size': 0})",
  ),
  "out_of_step.py": MISSPELT.replace(
    "modle.num_layers = 1",
    "train.update(warmup_steps=20)\n  config['train'].num_steps = 10",
  ),
  "quickstart": "This is no Python.",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
  """What becomes of each command in a folder with files of the user's own."""
  folder = tmp_path_factory.mktemp("own")
  (folder / "co:lon").mkdir()
  (folder / "run").mkdir()
  (folder / "run" / "config.json").write_text("{}")
  for name, text in FILES.items():
    (folder / name).write_text(text)
  groups = [
    [{"arguments": arguments, "folder": str(folder)}]
    for arguments in COMMANDS.values()
  ]
  finished = commands.finished(groups)
  return {
    name: result for name, (result,) in zip(COMMANDS, finished, strict=True)
  }


@pytest.mark.parametrize("case", REFUSED)
def test_a_name_that_is_none_ends_in_one_line(results, case):
  *_, line = results[case]["stderr"].splitlines()
  assert line.startswith("error: ")
  assert REFUSED[case] in line
  assert results[case]["status"] == 2


def test_the_version_is_that_of_the_package(results):
  assert results["version"]["status"] == 0
  text = (test_main.ROOT / "pyproject.toml").read_text()
  version = tomllib.loads(text)["project"]["version"]
  line = results["version"]["stderr"]
  assert line.startswith(f"transformer-xl {version}, jax {jax.__version__}, ")
  assert transformer_xl.__version__ == version


def test_help_has_every_mode_experiment_flag_and_group(results):
  result = results["help"]
  assert result["status"] == 0, result["stderr"]
  lines = result["stderr"].splitlines()
  starts = [line.split()[0] for line in lines if re.match(r"  [a-z-]", line)]
  for mode in main.MODES:
    assert mode in starts
  for path in (test_main.ROOT / "experiments").glob("[a-z]*.py"):
    assert path.stem in starts
  for field in schema.common_fields():
    assert (field.name.rpartition(".")[0] or field.name) in starts
  text = " ".join(result["stderr"].split())
  for parts in schema.OWN_GROUPS.values():
    for kind in parts:
      assert ", ".join(kind) in text
  assert {"--config", "--workdir", "--topology=v5e:4x4"} <= {*starts}
  assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
  ("case", "source"),
  [
    ("help about all", "base"),
    ("help with a file", "experiments/ptb.py"),
    ("a file of an experiment's name", "quickstart"),
  ],
)
def test_help_about_all_has_every_field(results, case, source):
  result = results[case]
  assert result["status"] == 0, result["stderr"]
  text = " ".join(result["stderr"].split())
  assert f"Fields with the values of {source}" in text
  for name, field in schema.all_fields().items():
    assert f" config.{name} = " in text
    assert " ".join(field.remark.split()) in text
  assert max(map(len, result["stderr"].splitlines())) <= 80


@pytest.mark.parametrize(
  ("case", "groups"),
  [
    ("help about a group", {"eval", "eval.dynamic", "eval.cache"}),
    ("help about a group by its last part", {f"model.{ROTATING}"}),
    ("help about a mode", {"analysis"}),
  ],
)
def test_help_about_a_topic_has_its_fields_and_no_others(results, case, groups):
  result = results[case]
  assert result["status"] == 0, result["stderr"]
  found = {*re.findall(r"^  config\.(\S+) = ", result["stderr"], re.MULTILINE)}
  assert found == {
    name for name in schema.all_fields() if name.rpartition(".")[0] in groups
  }
  summary = main.MODES["ablation"].summary
  assert (f"--mode=ablation: {summary}" in result["stderr"]) == (
    case == "help about a mode"
  )


@pytest.mark.parametrize(
  "case", ["help about a field", "help about another name"]
)
def test_help_about_a_field_is_that_field(results, case):
  assert results[case]["stderr"].splitlines()[2:] == [
    "  config.train.learning_rate = 0.00025",
    "      Peak learning rate. Must be 0 or more.",
  ]


def test_help_shows_the_values_of_a_file_and_what_they_differ_from(results):
  lines = results["help with a file"]["stderr"].splitlines()
  assert "  config.seed = 7  (default: 0)" in lines
  assert "  config.model.num_layers = 6  (default: 4)" in lines
  assert "  config.model.embed_dim = 560  (default: that of model_dim)" in lines
  assert "  config.model.num_layers = 4" in (
    results["help about all"]["stderr"].split("\n")
  )


def test_help_with_a_wrong_file_is_one_line(results):
  result = results["help with a wrong file"]
  assert result["status"] == 2
  assert result["stderr"].startswith("error: cannot read experiments/missing")
  assert len(result["stderr"].splitlines()) == 1


def test_the_overview_needs_no_jax():
  program = (
    "import sys; sys.modules['jax'] = None; "
    "sys.argv = ['main.py', '--help']; "
    "from transformer_xl import main; main.run()"
  )
  command = [sys.executable, "-c", program]
  finished = subprocess.run(
    command, cwd=test_main.ROOT, capture_output=True, text=True
  )
  assert finished.returncode == 0, finished.stderr
  assert "Fields of one mixer or encoding" in finished.stdout
