import os
import subprocess
import sys

import pytest

from tests.importers import stored_files


def run(module, *arguments, **environment):
  return subprocess.run(
    [sys.executable, "-m", f"transformer_xl.{module}", *arguments],
    capture_output=True,
    env=os.environ | environment,
    text=True,
    check=False,
  )


def test_the_commands_import_and_export(tmp_path):
  workdir, folder = tmp_path / "run", tmp_path / "huggingface"
  stored_files.as_published("wt103", tmp_path / "source")
  made = run(
    "importers.main",
    "--format=tensorflow",
    "--source=~/source",
    "--workdir=~/run",
    HOME=str(tmp_path),
  )
  assert made.returncode == 0, made.stderr
  assert "1,475 parameters: the sum of the tensors" in made.stdout
  assert f"saved:{workdir}" in made.stdout
  exported = run(
    *("main", "--mode=export", f"--config=saved:{workdir}"),
    "--target=~/huggingface",
    HOME=str(tmp_path),
  )
  assert exported.returncode == 0, exported.stderr
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


@pytest.mark.parametrize(
  ("module", "arguments", "message"),
  [
    pytest.param(
      "importers.main",
      ["--format=keras"],
      "--format",
      marks=pytest.mark.rest,
    ),
    ("importers.main", [], "error: --format, --source must be given; --help"),
    pytest.param(
      "importers.main",
      ["--format=pytorch", "--cutoffs=a", "--source=x"],
      "--cutoffs=a",
      marks=pytest.mark.rest,
    ),
    pytest.param(
      "importers.main",
      ["--format=pytorch", "--source=none.pt"],
      "none.pt is missing",
      marks=pytest.mark.rest,
    ),
    pytest.param(
      "importers.main",
      ["--format=pytorch", "--source=none.pt", "--pre_norm", "false"],
      "'false' belongs to no flag",
      marks=pytest.mark.rest,
    ),
  ],
)
def test_a_mistake_is_one_line_and_status_2(
  tmp_path, module, arguments, message
):
  result = run(module, *arguments, f"--workdir={tmp_path / 'run'}")
  assert result.returncode == 2
  assert message in result.stderr
  assert result.stderr.startswith("error: ")
  assert result.stderr.count("\n") == 1
  assert not (tmp_path / "run").exists()
