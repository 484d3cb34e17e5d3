"""The command that imports, and the export of its run."""

import pytest

from tests import commands
from tests.importers import stored_files

MISTAKES = {
  "format": (["--format=keras"], "--format"),
  "nothing": ([], "error: --format, --source must be given; --help"),
  "cutoffs": (["--format=pytorch", "--cutoffs=a", "--source=x"], "--cutoffs=a"),
  "no file": (["--format=pytorch", "--source=none.pt"], "none.pt is missing"),
  "a word": (
    ["--format=pytorch", "--source=none.pt", "--pre_norm", "false"],
    "'false' belongs to no flag",
  ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
  return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def results(home):
  """What each command said, and its status."""
  stored_files.as_published("wt103", home / "source")
  environment = {
    "HOME": str(home),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",  # Else main starts again.
  }
  importing = {"module": "transformer_xl.importers.main"}
  cases = {
    "import": importing
    | {
      "arguments": [
        "--format=tensorflow",
        "--source=~/source",
        "--workdir=~/run",
      ],
    },
    "export": {
      "arguments": [
        *("--mode=export", f"--config=saved:{home}/run"),
        "--target=~/huggingface",
      ],
    },
  }
  for name, (arguments, _) in MISTAKES.items():
    cases[name] = importing | {"arguments": [*arguments, "--workdir=~/new"]}
  # Not the modules with flags, whose names clash.
  modules = [
    f"transformer_xl.importers.{name}" for name in ("import_run", "export_run")
  ]
  groups = [
    [case | {"environment": environment, "apart": True}]
    for case in cases.values()
  ]
  found = commands.finished(groups, modules)
  return {name: one for name, (one,) in zip(cases, found, strict=True)}


def test_the_commands_import_and_export(home, results):
  made, exported = results["import"], results["export"]
  assert made["status"] == 0, made["stderr"]
  assert "1,475 parameters: the sum of the tensors" in made["stdout"]
  assert f"saved:{home}/run" in made["stdout"]
  assert exported["status"] == 0, exported["stderr"]
  folder = home / "huggingface"
  assert sorted(path.name for path in folder.iterdir()) == [
    "README.md",
    "config.json",
    "model.safetensors",
    "modeling_transformer_xl.py",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocabulary",
  ]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(home, results, name):
  result, (_, message) = results[name], MISTAKES[name]
  assert result["status"] == 2
  assert message in result["stderr"]
  assert result["stderr"].startswith("error: ")
  assert result["stderr"].count("\n") == 1
  assert result["stdout"] == ""
  assert not (home / "new").exists()
