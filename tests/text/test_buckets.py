"""A command on a run, a text and a dataset that are all in a bucket."""

import json
import subprocess
import sys

import pytest
from etils import epath

from tests import corpus
from tests import emulator
from tests.analysis import runs


@pytest.mark.rest
@pytest.mark.slow
def test_a_command_needs_no_folder_on_disk(bucket, tmp_path):
  data_dir, folder = corpus.write(tmp_path / "data"), epath.Path(bucket)
  emulator.upload(data_dir, f"{bucket}/data")
  runs.write(f"{bucket}/data", f"{bucket}/run")
  (folder / "prompt.txt").write_text("abc def")
  command = [
    *(sys.executable, "-m", "transformer_xl.main", "--mode=generate"),
    f"--config=saved:{bucket}/run",
    f"--config.generate.prompt_file={bucket}/prompt.txt",
    "--config.generate.num_tokens=3",
  ]
  done = subprocess.run(
    command, capture_output=True, text=True, check=False, cwd=tmp_path
  )
  assert done.returncode == 0, done.stderr
  result = json.loads(
    (folder / "run" / "results" / "generate.json").read_text()
  )
  assert result["prompt"] == "abc def"
  assert result["num_tokens"] == 3
  assert f"{bucket}/run/results/generate.json" in done.stderr
  assert [path.name for path in tmp_path.iterdir()] == ["data"]
