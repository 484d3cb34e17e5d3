"""Commands on pages and in docstrings would start, and what they name exists.

Each command line is parsed by its own module, overrides and cross-field rules
included (`tests/docs/parsed_commands.py`). Only commands that take a second run
here.
"""

import ast
import functools
import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tests import extensions
from tests.deploy import test_files
from transformer_xl.config import load
from transformer_xl.experiments import base
from transformer_xl.experiments import quickstart
from transformer_xl.workdir import closing

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
  *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
  *sorted((ROOT / "docs").rglob("*.md")),
  ROOT / "deploy/README.md",
  *(
    path
    for folder in (
      *("experiments", "transformer_xl", "data_prep", "benchmarks"),
      "examples",
    )
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "python -m " in path.read_text("utf-8") and path.resolve() == path
  ),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# Modules behind the console scripts.
MODULES = {
  "transformer-xl": ("transformer_xl.main",),
  "transformer-xl-data": ("transformer_xl.data_prep.main",),
}
STARTS = {
  "script": [".venv/bin/python", ".venv/bin/transformer-xl"],
  "module": [".venv/bin/python", "-m", "transformer_xl.main"],
}
# Flags of absl, XProf, engines and the evaluation harness.
NOT_OURS = {"env", "help", "location", "logdir", "version"}
NOT_OURS |= {"batch_size", "device", "include_path", "model_args"}
NOT_OURS |= {"output_path", "xla_gpu_deterministic_ops"}
# It parses nothing without the harness; tests/integrations runs it.
NEEDS_THE_HARNESS = "transformer_xl.integrations.lm_eval"
OVERRIDDEN = ["transformer_xl.main", "--config=experiments/base.py"]
WRONG = {
  "Unknown command line flag 'topolgy'": ["--topolgy=v5e:4x4"],
  "no field config.train.batch_sise": ["--config.train.batch_sise=1"],
  "must be a whole number: it is 'many'": ["--config.train.batch_size=many"],
  "should be one of": ["--mode=evaluate"],
  "model.num_heads must be": ["--config.model.num_heads=0"],
}


@functools.cache
def lines(page):
  """Lines of a page or of a module's docstring, with continued ones joined."""
  text = page.read_text("utf-8")
  if page.suffix == ".py":
    text = ast.get_docstring(ast.parse(text)) or ""
  text = text.replace("\\\n", " ")
  return [line.strip() for line in text.splitlines()]


def found(pattern, page):
  return [name for line in lines(page) for name in re.findall(pattern, line)]


plain = functools.cache(base.get_config)
own_fields = functools.cache(extensions.fields)


def is_field(name):
  if name in own_fields():
    return True
  config = plain()
  for part in name.split("."):
    if part not in config:
      return False
    config = config[part]
  return True


def commands(page):
  """Words of the commands with arguments, from the module's name on."""
  # A value in quotes may have what ends a command elsewhere.
  words_of = r"""((?:"[^"]*"|[^;`|"])+)"""
  pattern = rf"(python -m|transformer-xl(?:-data)?(?= --)) {words_of}"
  for program, text in found(pattern, page):
    words = command(program, text)
    # pytest knows the options of the tests only after it has loaded them.
    if words[0] in (NEEDS_THE_HARNESS, "pytest"):
      continue
    if any(word.startswith("--") for word in words):
      yield words


def command(program, text):
  """The words after a program's name, those of its module first."""
  if text.count("'") % 2:  # It closes what the shell of another machine runs.
    text, _, _ = text.rpartition("'")
  # Optional flags, and the end of a sentence.
  text = re.sub(r"[\[\]]|\.*$|\.\.\.", "", text)
  text = text.replace("$seed", "0")
  # The name of a run or a text that exists; the defaults stand for any.
  named = "saved|own_text|added_memory"
  exists = rf"=(experiments/({named})\.py|{named}):\S+"
  text = re.sub(exists, "=base", text)
  # The files of the page on extensions.
  text = re.sub(r"(?<!/)\bmy_\w+\.py", rf"{extensions.folder()}/\g<0>", text)
  return [*MODULES.get(program, ()), *shlex.split(text)]


def after_training(program, monkeypatch):
  """Words of the commands that a run of the quickstart names at its end."""
  config = load.from_config_dict(quickstart.get_config())
  monkeypatch.setattr(sys, "argv", ["main.py", "--config=quickstart"])
  monkeypatch.setattr(sys, "orig_argv", [*program, "--config=quickstart"])
  prompt = config.generate.prompt
  commands = closing.commands(config.scoring, "runs/quickstart", prompt=prompt)
  for line in commands.values():
    start = re.match(r".*python -m|\S*transformer-xl(-data)?", line)[0]
    yield command(os.path.basename(start), line[len(start) :])


def overrides(page):
  """Commands of what is said to be added to one."""
  for line in lines(page):
    spans = [line] if line.startswith("--config.") else []
    for span in spans + re.findall(r"`(--config\.[^`]*)`", line):
      if "=" in span:
        yield [*OVERRIDDEN, *shlex.split(span)]


@pytest.fixture(scope="module")
def of_engines(tmp_path_factory):
  """The commands of the files in deploy/."""
  return test_files.commands(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="module")
def results(of_engines):
  """What came of every command, by its words."""
  cases = [
    tuple(words)
    for page in PAGES
    for words in [*commands(page), *overrides(page)]
  ]
  cases += [(*OVERRIDDEN, *words) for words in WRONG.values()]
  cases += map(tuple, of_engines)
  with pytest.MonkeyPatch.context() as patch:
    for start in STARTS.values():
      cases += map(tuple, after_training(start, patch))
  cases = [*dict.fromkeys(cases)]
  finished = subprocess.run(
    [sys.executable, "-m", "tests.docs.parsed_commands"],
    input=json.dumps(cases),
    capture_output=True,
    check=True,
    cwd=ROOT,
    text=True,
  )
  return dict(zip(cases, json.loads(finished.stdout), strict=True))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_name_what_exists(page):
  for module in found(r"python -m ([\w.]+\w)", page):
    assert importlib.util.find_spec(module), module
  for path in found(r"--config=(experiments/\w+\.py)", page):
    assert (ROOT / path).exists(), path
  for name in found(r"--config\.([a-z][\w.]*\w)", page):
    assert is_field(name), name
  makefile = (ROOT / "Makefile").read_text("utf-8")
  for target in found(r"`make ([a-z-]+)", page) + found(
    r"^make ([a-z-]+)", page
  ):
    assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_prose_names_what_exists(page):
  for name in found(r"`config\.(?!json`)([a-z][\w.]*\w)`", page):
    assert is_field(name), name
  # What is in `results/` is written by a run.
  files = r"`(?!results/)((?:[a-z_]+/)+\w+\.(?:py|md|json|png))`"
  for path in found(files, page):
    assert (ROOT / path).exists(), path
  for path in found(r"\]\(([^):#]+)[)#]", page):
    # The site has pages and files, and no folder that a link could open.
    assert (page.parent / path).is_file(), path


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_would_start(page, results):
  for words in [*commands(page), *overrides(page)]:
    assert not results[tuple(words)]["error"], words


def test_commands_that_engines_are_given_would_start(of_engines, results):
  assert len(of_engines) == 4
  for words in of_engines:
    assert not results[tuple(words)]["error"], words


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_commands_that_training_names_would_start(start, results, monkeypatch):
  named = [*after_training(start, monkeypatch)]
  assert [words[0] for words in named] == [
    *("transformer_xl.main", "transformer_xl.main"),
    "transformer_xl.data_prep.main",
  ]
  for words in named:
    assert not results[tuple(words)]["error"], words


@pytest.mark.parametrize("error", WRONG)
def test_wrong_commands_would_not_start(error, results):
  assert error in results[(*OVERRIDDEN, *WRONG[error])]["error"]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_flags_in_prose_exist(page, results):
  known = {name for result in results.values() for name in result["flags"]}
  for span in found(r"`[^`]*?(--[^`]*)`", page):
    for name in re.findall(r"--(\w+)(?![\w.])", span):
      assert name in known | NOT_OURS, name


def test_text_of_ones_own_is_prepared_and_described(tmp_path):
  """The two commands of its page as they stand, in a shell."""
  (tmp_path / "books").mkdir()
  for name in ("a", "b", "c"):
    text = "".join(f"{name} {number}\n" for number in range(100))
    (tmp_path / "books" / f"{name}.txt").write_text(text, "utf-8")
  prepare, describe = (
    line
    for line in lines(ROOT / "docs/own_text.md")
    if line.startswith("transformer-xl-data --dataset=text")
  )
  binaries = os.path.dirname(sys.executable)
  finished = subprocess.run(
    f"{prepare} && {describe}",
    capture_output=True,
    cwd=tmp_path,
    env={
      "HOME": str(tmp_path),
      "PATH": f"{binaries}:{os.environ['PATH']}",
      "PYTHONPATH": str(ROOT),
    },
    shell=True,
    text=True,
  )
  assert finished.returncode == 0, finished.stderr
  assert "is ready" in finished.stdout
  assert "a 0" in finished.stdout


def test_the_pages_have_commands():
  assert sum(len([*commands(page)]) for page in PAGES) > 40
  assert sum(len([*overrides(page)]) for page in PAGES) > 3
  assert not is_field("train.batch_sise")
