"""The package as pip installs it, beside a user's folders of the same names."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile

import pytest

pytestmark = [pytest.mark.rest, pytest.mark.slow]

ROOT = pathlib.Path(__file__).parents[1]
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg")
FOLDERS = ("data_prep", "experiments", "transformer_xl")
# Folders that a user may have. Nothing of ours may import them, and what the
# user's own configuration imports has to be theirs.
USERS_FILES = {
  "data_prep/__init__.py": 'raise ImportError("this is of the user")\n',
  "experiments/__init__.py": "",
  "experiments/sizes.py": "NUM_STEPS = 2\n",
  "experiments/mine.py": """
from experiments import sizes
from transformer_xl.experiments import quickstart

def get_config():
  config = quickstart.get_config()
  config.train.num_steps = sizes.NUM_STEPS
  return config
""",
}
SHORT = (
  "--config.train.warmup_steps=1",
  "--config.train.finish_with=()",
  "--config.train.eval_every_steps=0",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """The wheel, built of a copy: a build leaves folders in its sources."""
  source = tmp_path_factory.mktemp("source")
  for name in FILES:
    shutil.copy(ROOT / name, source)
  unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
  for name in FOLDERS:
    shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=unwanted)
  folder = tmp_path_factory.mktemp("wheel")
  pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
  subprocess.run([*pip, f"--wheel-dir={folder}", source], check=True)
  (path,) = folder.iterdir()
  return path


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory):
  """The programs of an environment that has the wheel and nothing else."""
  environment = tmp_path_factory.mktemp("environment")
  venv = [sys.executable, "-m", "venv", "--without-pip", environment]
  subprocess.run(venv, check=True)
  python = environment / "bin" / "python"
  pip = [sys.executable, "-m", "pip", f"--python={python}", "install"]
  subprocess.run([*pip, "--no-deps", "--quiet", wheel], check=True)
  return python.parent


@pytest.fixture
def users_folder(tmp_path):
  for name, text in USERS_FILES.items():
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
  return tmp_path


def run(words, folder):
  """Runs an installed program, with the libraries of this environment."""
  finished = subprocess.run(
    [*map(str, words)],
    capture_output=True,
    cwd=folder,
    env=os.environ
    | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": sysconfig.get_path("purelib")},
    text=True,
  )
  assert finished.returncode == 0, finished.stderr
  return finished.stdout + finished.stderr


def num_updates(workdir):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return json.loads(lines[-1])["step"]


def test_the_wheel_claims_one_name_and_has_every_file(wheel):
  names = zipfile.ZipFile(wheel).namelist()
  tops = {name.partition("/")[0].partition("-")[0] for name in names}
  assert tops == {"transformer_xl"}
  listed = ["git", "ls-files", *FOLDERS]
  tracked = subprocess.check_output(listed, cwd=ROOT, text=True).splitlines()
  for name in tracked:
    path = pathlib.Path(name)
    if path.parts[0] != "transformer_xl":
      path = "transformer_xl" / path
    if path.suffix in (".py", ".md", ".txt", ".bib", ".tsv"):
      assert str(path) in names, name
  page = [n for n in names if n.startswith("transformer_xl/report/page/")]
  assert page
  print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size:,} bytes")


def test_the_wheel_has_the_extras_of_the_project(wheel):
  with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
    metadata = archive.read(name).decode()
  extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
  ]
  for extra in extras:
    assert f"Provides-Extra: {extra}\n" in metadata


def test_the_quickstart_trains_beside_folders_of_the_same_names(
  binaries, users_folder
):
  workdir = users_folder / "run"
  said = run(
    [
      *(binaries / "transformer-xl", "--config=quickstart"),
      *(f"--workdir={workdir}", "--config.train.num_steps=20", *SHORT),
    ],
    users_folder,
  )
  assert num_updates(workdir) == 20
  assert str(ROOT) not in said
  print(said)


def test_a_users_configuration_imports_the_users_folder(binaries, users_folder):
  workdir = users_folder / "run"
  run(
    [
      *(binaries / "python", "-m", "transformer_xl.main"),
      *("--config=experiments/mine.py", f"--workdir={workdir}", *SHORT),
    ],
    users_folder,
  )
  assert num_updates(workdir) == 2


def test_text_is_prepared_beside_a_folder_of_the_same_name(
  binaries, users_folder
):
  (users_folder / "book.txt").write_text("a line of text\n" * 50)
  said = run(
    [
      *(binaries / "transformer-xl-data", "--dataset=text"),
      *("--source=book.txt", "--data_dir=data", "--name=mine"),
    ],
    users_folder,
  )
  assert said.startswith("data/mine is ready\n")
