"""All processes of a run have one workdir, configuration, text and software."""

import json
import shutil

import pytest

from tests import commands
from tests import corpus
from tests import own_process
from tests import test_main
from tests.training.runs import steps
from transformer_xl.workdir import agreement

# Groups of processes: every case takes ten seconds of two cores.
pytestmark = [pytest.mark.slow, pytest.mark.rest]

DIFFERENCES = {  # What the last process of so many has, and what all say of it.
  "fields": (
    *(3, ["--config.seed=7", "--config.train.num_steps=9"]),
    "different --config: process 2 differs from process 0;",
  ),
  "mode and workdir": (
    *(2, ["--mode=eval", "--workdir=FOLDER/other"]),
    "different --mode and --workdir: process 1 differs from process 0;",
  ),
  "data": (
    *(3, ["--config.data.dir=FOLDER/changed"]),
    "different data in config.data.dir: process 2 differs from process 0;",
  ),
  "no data": (
    *(2, ["--config.data.dir=FOLDER/nowhere"]),
    "different data in config.data.dir: process 1 differs from process 0;",
  ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("agreement")
  corpus.write(folder / "data")
  for name in ("copied", "changed"):
    shutil.copytree(folder / "data", folder / name)
  meta = folder / "changed" / corpus.NAME / "meta.json"
  content = json.loads(meta.read_text())
  content["splits"]["valid"]["sha256"] = "0" * 64
  meta.write_text(json.dumps(content))
  return folder


def group(folder, count, last):
  """Command lines of processes, where the last one has other flags."""
  flags = [
    *(test_main.BASE, f"--workdir={folder}/run"),
    *corpus.config_flags(f"{folder}/data", **{"train.num_steps": 4}),
    f"--coordinator=localhost:{own_process.free_port()}",
    f"--num_processes={count}",
  ]
  own = [[]] * (count - 1) + [
    [flag.replace("FOLDER", str(folder)) for flag in last]
  ]
  return [
    {"arguments": [*flags, *extra, f"--process_id={index}"]}
    for index, extra in enumerate(own)
  ]


@pytest.fixture(scope="module")
def results(folder):
  """What becomes of each group, by name."""
  groups = {
    name: group(folder, count, last)
    for name, (count, last, _) in DIFFERENCES.items()
  }
  groups["none"] = group(folder, 2, ["--config.data.dir=FOLDER/copied"])
  finished = commands.finished([*groups.values()])
  return dict(zip(groups, finished, strict=True))


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_ends_all_processes_with_the_same_line(
  results, folder, name
):
  count, _, says = DIFFERENCES[name]
  said = {result["stderr"].splitlines()[-1] for result in results[name]}
  assert len(results[name]) == count
  assert len(said) == 1, said
  (line,) = said
  assert line.startswith("error: the processes of a run were started with ")
  assert says in line
  for result in results[name]:
    assert result["status"] == 2
    assert "Compiled" not in result["stderr"]
  assert not (folder / "other").exists()


def test_processes_that_agree_train_on_copies_of_the_data(results, folder):
  for result in results["none"]:
    assert result["status"] == 0, result["stderr"]
  assert steps(folder / "run") == [4]


def test_a_relative_start_is_compared_as_the_folder_that_it_means(
  folder, tmp_path, monkeypatch
):
  compared = []
  monkeypatch.setattr(agreement, "_require_same", compared.append)
  config = corpus.config(f"{folder}/data", **{"train.init_from": "source"})
  for name in ("here", "there"):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    agreement.require_same_command(config, str(tmp_path), "train")
  here, there = (fields.pop("--config") for fields in compared)
  assert compared[0] == compared[1]
  assert here["train"].pop("init_from") == str(tmp_path / "here" / "source")
  assert there["train"].pop("init_from") == str(tmp_path / "there" / "source")
  assert here == there
