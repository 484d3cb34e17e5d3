"""Files from outside of the tree: the examples of docs/extend.md, as they are.

They lie in a temporary folder, and the commands run there.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests import commands
from tests import corpus
from tests import extensions
from tests import kinds

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
ALL = "--extensions=my_memory.py,my_encoding.py,my_training.py"
MODEL = {
  "model.layers": "('ema','attention')",
  "model.ema.decay": 0.8,
  "model.encoding": "partial_rope",
  "train.optimizer": "lion",
  "train.lion.b2": 0.9,
  "train.schedule": "square_root",
  "train.num_steps": 8,
  "train.decay_steps": 8,
  "train.learning_rate": 1e-3,
  "generate.prompt": "abc",
}
TWO = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


def train(folder, workdir, **updates):
  """The words that train the hybrid of the examples."""
  flags = corpus.config_flags(str(folder), **MODEL | updates)
  base = ["--config=experiments/base.py", f"--workdir={workdir}"]
  return [ALL, *base, *flags]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The files of the page, changed and wrong ones, and a prepared text."""
  result = tmp_path_factory.mktemp("outside")
  corpus.write(result)
  files = extensions.files()
  assert len(files) == 5
  for name, text in files.items():
    (result / name).write_text(text)
  (result / "changed").mkdir()
  changed = files["my_memory.py"] + "\n# Changed.\n"
  (result / "changed/my_memory.py").write_text(changed)
  (result / "broken.py").write_text("import json\n\nundefined\n")
  taken = files["my_memory.py"].replace('"ema"', f'"{kinds.recurrent()}"')
  (result / "taken.py").write_text(taken)
  plain = files["my_memory.py"].replace('extend.field(0.9, "in (0, 1)")', "0.9")
  (result / "plain.py").write_text(plain)
  return result


@pytest.fixture(scope="module")
def results(folder):
  """What each command said, by its name; a group runs at the same time."""
  saved = "--config=saved:one"
  groups = [
    {
      "train": train(folder, "one", **{"train.finish_with": "('generate',)"}),
      "half": train(folder, "two", **{"train.num_steps": 4}),
    },
    {
      "on two devices": train(folder, "mesh"),
      "resume": train(folder, "two"),
      "help": ["--extensions=my_memory.py", "--help=model.ema"],
      "overview": [ALL, "--help"],
    },
    {
      "study": [
        "--extensions=my_task.py,my_memory.py",
        *("--mode=study", "--config=memory_suite:reversal", "--workdir=study"),
        "--config.analysis.variants=('ema: model.layers=ema',)",
        "--config.analysis.seeds=(0,)",
        "--config.analysis.learning_rates=(6e-3,)",
        "--config.analysis.max_learning_rates=0",
        "--config.train.num_steps=2",
        "--config.train.warmup_steps=0",
        "--config.train.segments_per_call=1",
        "--config.checkpoint.every_steps=2",
      ],
    },
    {
      "evaluate": [
        *[ALL, "--mode=eval", saved],
        "--config.eval.mem_len=(0,8,32)",
      ],
      "evaluate the other": [ALL, "--mode=eval", "--config=saved:two"],
      "without": ["--mode=eval", saved],
      "without the encoding": [
        *["--extensions=my_memory.py,my_training.py", "--mode=eval", saved],
      ],
    },
    {
      "another version": [
        *[ALL.replace("my_memory", "changed/my_memory"), "--mode=eval", saved],
      ],
      "misspelt field": [*train(folder, "new"), "--config.model.ema.decy=1"],
      "out of range": [*train(folder, "new"), "--config.model.ema.decay=1.5"],
      "no file": ["--extensions=my_memor.py", saved],
      "no module": ["--extensions=my_memor", saved],
      "broken": ["--extensions=broken.py", saved],
      "taken": ["--extensions=taken.py", saved],
      "plain": ["--extensions=plain.py", saved],
    },
  ]
  devices = {"on two devices": TWO}
  cases = [
    [
      {
        "arguments": arguments,
        "folder": str(folder),
        "environment": devices.get(name, {}),
      }
      for name, arguments in group.items()
    ]
    for group in groups
  ]
  found = commands.finished(cases)
  return {
    name: result
    for group, outcomes in zip(groups, found, strict=True)
    for name, result in zip(group, outcomes, strict=True)
  }


def cards(folder, workdir):
  path = folder / workdir / "results/eval_test.json"
  return json.loads(path.read_text())["cards"]


def losses(folder, workdir):
  lines = (folder / workdir / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line)["loss"] for line in lines]


def test_the_example_is_short():
  assert len(extensions.files()["my_memory.py"].splitlines()) <= 65


@pytest.mark.parametrize(
  "name", ["train", "half", "resume", "on two devices", "evaluate"]
)
def test_every_mode_works_with_files_from_outside(results, name):
  assert results[name]["status"] == 0, results[name]["stderr"]


def test_a_run_goes_on_bit_for_bit(folder, results):
  assert results["evaluate the other"]["status"] == 0
  assert losses(folder, "one") == losses(folder, "two")
  whole = {card["mem_len"]: card["nll"] for card in cards(folder, "one")}
  (resumed,) = cards(folder, "two")
  assert whole[resumed["mem_len"]] == resumed["nll"]


def test_a_mesh_of_two_devices_makes_the_same_updates(folder, results):
  # Sums of other parts of the batch round in other places, in float32.
  whole = pytest.approx(losses(folder, "one"), rel=1e-5)
  assert losses(folder, "mesh") == whole


def test_a_run_and_its_cards_say_what_they_need(folder, results):
  record = json.loads((folder / "one/config.json").read_text())
  assert [(one["name"], one["provides"]) for one in record["extensions"]] == [
    ("my_encoding.py", ["encoding partial_rope"]),
    ("my_memory.py", ["mixer ema"]),
    ("my_training.py", ["optimizer lion", "schedule square_root"]),
  ]
  assert record["config"]["model"]["ema"] == {"decay": 0.8}
  assert record["config"]["train"]["lion"] == {"b1": 0.9, "b2": 0.9}
  for card in cards(folder, "one"):
    names = [one["file"] for one in card["extensions"]]
    assert names == ["my_encoding.py", "my_memory.py"]
    assert card["mixer_fields"] == {"ema": {"decay": 0.8}}
    assert card["encoding_fields"] == {"share": 0.5}


def test_what_comes_next_names_the_extensions(results):
  assert f"--mode=eval {ALL} --config=saved:one" in results["train"]["stderr"]


def test_help_knows_the_fields(results):
  assert "config.model.ema.decay = 0.9" in results["help"]["stderr"]
  assert "Must be in (0, 1)." in " ".join(results["help"]["stderr"].split())
  overview = " ".join(results["overview"]["stderr"].split())
  for name in ("ema", "partial_rope", "lion", "square_root"):
    assert name in overview


@pytest.mark.parametrize(
  ("case", "status", "said"),
  [
    ("without", 2, "one/config.json needs the encoding 'partial_rope' of my_"),
    (
      "without the encoding",
      2,
      "add --extensions=my_encoding.py, with the",
    ),
    ("misspelt field", 2, "did you mean config.model.ema.decay?"),
    ("out of range", 2, "model.ema.decay must be in (0, 1): it is 1.5"),
    ("no file", 2, "--extensions=my_memor.py: there is no such file"),
    ("no module", 2, "No module named 'my_memor'; name a module that Python"),
    ("broken", 2, "broken.py, line 3: NameError: name 'undefined' is not def"),
    ("taken", 2, f"there is a mixer '{kinds.recurrent()}' already"),
    ("plain", 2, "declares decay without a rule: write decay: TYPE = extend"),
  ],
)
def test_a_mistake_is_one_line(results, case, status, said):
  assert results[case]["status"] == status
  (line,) = results[case]["stderr"].splitlines()
  assert line.startswith("error: ")
  assert said in line


def test_another_version_of_the_file_is_said(results):
  result = results["another version"]
  assert result["status"] == 0, result["stderr"]
  said = "was written with another version of my_memory.py (SHA-256 "
  assert said in " ".join(result["stderr"].split())


def test_two_files_of_one_name_and_two_versions_of_one_are_told_apart(tmp_path):
  """In a process of its own, since it registers for good.

  A study, a run and a text know which file they are of.
  """
  mixer = "from transformer_xl import extend\n@extend.mixer('{}')\n"
  mixer += "class {}(extend.Mixer):\n  pass\n"
  for place, name in (("a", "first"), ("b", "second"), ("c", "first")):
    (tmp_path / place).mkdir()
    text = f"# In {place}.\n{mixer.format(name, 'Own')}"
    (tmp_path / place / "memory.py").write_text(text)
  (tmp_path / "copy").mkdir()
  shutil.copy(tmp_path / "a" / "memory.py", tmp_path / "copy")
  (tmp_path / "memory.py").write_text(mixer.format("edited", "Edited"))
  task = extensions.files()["my_task.py"]
  (tmp_path / "my_task.py").write_text(task)
  program = [sys.executable, "-c", TWO_FILES + EDITED]
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
  subprocess.run(
    program, cwd=tmp_path, check=True, timeout=120, env=environment
  )


TWO_FILES = """
import pathlib
from transformer_xl import errors
from transformer_xl.config import extensions
from transformer_xl.config import schema

parts = [schema.Part("mixer", "first"), schema.Part("mixer", "second")]
extensions.load(["a/memory.py", "b/memory.py"])
extensions.load(["b/../a/memory.py", "copy/memory.py"])  # The same file.
found = extensions._of_parts(parts)
assert {one.provides for one in found} == {("mixer first",), ("mixer second",)}
assert {one.name for one in found} == {"memory.py"}
assert len({one.sha256 for one in found}) == 2
pathlib.Path("b/memory.py").write_text("damaged (")
for path, text in (
  ("c/memory.py", "there is a mixer 'first' already, Own of extension_"),
  ("b/memory.py", "SyntaxError"),
):
  try:
    extensions.load([path])
  except errors.UserError as error:
    assert text in str(error), error
  else:
    raise AssertionError(path)
assert extensions._of_parts(parts) == found
"""

EDITED = """
import json
import shutil
from absl import logging
from tests import corpus
from transformer_xl.analysis import trials
from transformer_xl.analysis import variants
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.data import token_file
from transformer_xl.data_prep import preparation
from transformer_xl.training import data_checks
from transformer_xl.workdir import run_record

said = []
logging.warning = lambda text, *values: said.append(text % values)

def edited(path):
  file = pathlib.Path(path)
  file.write_text(file.read_text() + "# Another version.\\n")
  extensions.load([path])

# The text of a task.
extensions.load(["my_task.py", "memory.py"])
options = {"dataset": "reversal", "data_dir": "data", "num_tokens": 2000}
folder = str(preparation.prepare(**options))
updates = {"data.name": "reversal", "model.layers": ("edited",)}
config = load.from_config_dict(corpus.config_dict("data", **updates))
first = token_file.read_meta(folder)
assert first["request"]["extension"]
data_checks.warn_of_another_writer(config.data)
assert not said, said
edited("my_task.py")
data_checks.warn_of_another_writer(config.data)
assert "another version of the file that registers reversal" in said[0], said
try:
  preparation.prepare(**options)
except errors.UserError as error:
  assert "holds something else" in str(error)
else:
  raise AssertionError("the text of another version is taken")
shutil.rmtree(folder)
preparation.prepare(**options)
again = token_file.read_meta(folder)
assert again["recipe"] != first["recipe"]
said.clear()

# A run that goes on, and a trial of a study.
run_record.record(config, "run")
trial = variants.Trial(config, "trial")
before = trials._trained_with(config.recipe, config.data)
trials._require_same(trial, before)
edited("memory.py")
run_record.log_changes(config.as_saved(), "run")
assert "written with another version of memory.py" in said[0], said
run_record.record(config, "run", step=3)
sessions = json.loads(pathlib.Path("run/config.json").read_text())["sessions"]
hashes = [one["extensions"]["memory.py"] for one in sessions]
assert len({*hashes}) == 2
try:
  trials._require_same(trial, before)
except errors.UserError as error:
  assert "was trained with SHA-256 of mixer edited=" in str(error)
else:
  raise AssertionError("a trial of another version is taken")

# A class that is called otherwise in the changed file.
file = pathlib.Path("memory.py")
file.write_text(file.read_text().replace("class Edited", "class Renamed"))
extensions.load(["memory.py"])
assert registry.mixers["edited"].__name__ == "Renamed"
"""


def test_a_task_and_a_memory_from_outside_meet_in_the_lab(folder, results):
  assert results["study"]["status"] == 0, results["study"]["stderr"]
  meta = json.loads((folder / "data/reversal/meta.json").read_text())
  assert meta["dataset"] == "reversal"
  result = json.loads((folder / "study/results/study.json").read_text())
  assert [row["name"] for row in result["rows"]] == ["ema"]


IMPORTING = """
import my_memory
from transformer_xl.config import load

get_config = load.default
"""


NO_FIELD = "no field config.model.ema.decy; did you mean con"


@pytest.fixture(scope="module")
def package(folder):
  """A folder with what an installed package says of itself in its metadata."""
  package = folder / "site"
  info = package / "their_package-1.0.dist-info"
  info.mkdir(parents=True)
  (info / "METADATA").write_text("Name: their-package\nVersion: 1.0\n")
  entries = "[transformer_xl.extensions]\nema = my_memory\nold = gone\n"
  (info / "entry_points.txt").write_text(entries)
  return package


def test_installed_packages_are_found_without_a_flag(folder, package):
  program = (
    "from transformer_xl.config import load\n"
    "print(load.default().model.ema.decay)\n"
  )
  paths = os.pathsep.join(map(str, (ROOT, package, folder)))
  finished = subprocess.run(
    [sys.executable, "-c", program],
    cwd=folder,
    env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths},
    capture_output=True,
    text=True,
  )
  assert finished.stdout == "0.9\n", finished.stderr
  assert "extension gone of an installed package is left out" in finished.stderr


@pytest.mark.some(2)  # Both ways to register, and both outcomes.
@pytest.mark.parametrize(
  ("config", "field", "said"),
  [
    ("base", "model.ema.decay=0.8", "0.8"),
    ("base", "model.ema.decy=0.8", NO_FIELD),
    ("importing.py", "model.ema.decy=0.8", NO_FIELD),
    ("importing.py", "model.ema.decay=0.8", "0.8"),
  ],
)
def test_a_flag_sets_a_field_that_needs_no_extensions(
  folder, package, config, field, said
):
  """An entry point, or the configuration file itself, registers it."""
  (folder / "importing.py").write_text(IMPORTING)
  program = (
    "import sys\n"
    "from transformer_xl.config import config_flag\n"
    "config_flag.parse(sys.argv)\n"
    "print(config_flag.checked().model.ema.decay)\n"
  )
  places = [ROOT, folder]
  if config == "base":
    places.append(package)
  finished = subprocess.run(
    [
      *(sys.executable, "-c", program),
      f"--config={config}",
      f"--config.{field}",
    ],
    cwd=folder,
    env=os.environ
    | {
      "JAX_PLATFORMS": "cpu",
      "PYTHONPATH": os.pathsep.join(map(str, places)),
    },
    capture_output=True,
    text=True,
  )
  *_, last = (finished.stdout or finished.stderr).splitlines()
  assert said in last
