"""What no file of this project may do, and what hostile files cannot."""

import ast
import io
import json
import pathlib
import tarfile

import pytest

from tests import tiny
from transformer_xl.config import load
from transformer_xl.data_prep import source as source_lib
from transformer_xl.workdir import run_record

ROOT = pathlib.Path(__file__).parents[1]
# Not benchmarks: one there runs other projects' published code, to time it.
FOLDERS = ("transformer_xl", "data_prep", "experiments")
# Each runs what it is given, or writes where an archive says.
FORBIDDEN = {
  *("eval", "exec", "compile", "__import__", "os.system", "os.popen"),
  *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads"),
  *("shelve.open", "dill.load", "joblib.load", "cloudpickle.load"),
  *("yaml.load", "yaml.unsafe_load", "tempfile.mktemp"),
}
METHODS = {"extractall", "extract", "unpack_archive"}


def calls(tree):
  for node in ast.walk(tree):
    if isinstance(node, ast.Call):
      yield ast.unparse(node.func), node


def problem(name, call):
  options = {option.arg: ast.unparse(option.value) for option in call.keywords}
  if name in FORBIDDEN or name.rpartition(".")[2] in METHODS:
    return name
  if options.get("shell", "False") != "False":
    return f"{name} with shell"
  if options.get("allow_pickle", "False") != "False":
    return f"{name} with allow_pickle"
  if name == "torch.load" and options.get("weights_only") != "True":
    return "torch.load without weights_only=True"
  return None


def problems(source):
  found = (problem(*call) for call in calls(ast.parse(source)))
  return [one for one in found if one]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_code_runs_or_unpickles_what_is_in_files(folder):
  paths = list((ROOT / folder).rglob("*.py"))
  assert len(paths) > 5
  found = {
    str(path): wrong
    for path in paths
    if (wrong := problems(path.read_text("utf-8")))
  }
  assert found == {}


@pytest.mark.parametrize(
  "line",
  [
    "eval(text)",
    "pickle.load(file)",
    "np.load(path, allow_pickle=True)",
    "subprocess.run(command, shell=True)",
    "torch.load(path)",
    "archive.extractall(folder)",
  ],
)
def test_the_check_would_find_it(line):
  assert len(problems(line)) == 1


def test_addresses_are_https():
  for folder in FOLDERS:
    for path in (ROOT / folder).rglob("*.py"):
      assert "http://" not in path.read_text("utf-8"), path


def _member(name, kind=tarfile.REGTYPE, link=""):
  info = tarfile.TarInfo(name)
  info.type, info.linkname = kind, link
  info.size = 6 if kind == tarfile.REGTYPE else 0
  return info


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_an_archive_writes_nothing_outside_of_its_folder(kind, tmp_path):
  secret = tmp_path / "secret"
  secret.write_text("secret")
  path = tmp_path / "hostile.tar"
  with tarfile.open(path, "w") as archive:
    for info in (
      _member("../../up.txt"),
      _member(str(tmp_path / "absolute.txt")),
      _member("link.txt", kind, str(secret)),
      _member("pipe.txt", tarfile.FIFOTYPE),
      _member("folder", tarfile.SYMTYPE, str(tmp_path)),
      _member("folder/through.txt"),
    ):
      archive.addfile(info, io.BytesIO(b"words\n"))
  links = {"link.txt", "pipe.txt", "folder"}
  assert links.isdisjoint(source_lib.Tar(path).names)
  folder = tmp_path / "a" / "b"
  before = set(tmp_path.iterdir())
  unpacked = source_lib.unpack(
    source_lib.Tar(path), folder, wanted=lambda name: name.endswith(".txt")
  )
  assert set(tmp_path.iterdir()) - before == {tmp_path / "a"}
  assert list((tmp_path / "a").iterdir()) == [folder]
  names = {"up.txt", "absolute.txt", "through.txt"}
  assert set(unpacked.names) == names
  assert not any(file.is_symlink() for file in folder.iterdir())
  assert secret.read_text() == "secret"


def test_what_a_run_records_has_no_environment_and_no_command_line(
  tmp_path, monkeypatch
):
  monkeypatch.setenv("SECRET_TOKEN", "hunter2")
  monkeypatch.setattr("sys.argv", ["main", "--token=hunter2"])
  config = load.from_config_dict(tiny.config_dict())
  run_record.record(config, str(tmp_path))
  content = (tmp_path / "config.json").read_text()
  assert set(json.loads(content)) == {
    *("config", "versions", "git_commit", "initialised_from", "sessions"),
    "extensions",
  }
  assert "hunter2" not in content


def test_every_published_file_is_checked_by_hash_or_by_counts():
  """No hash is known for text8 and lm1b's list of words: they are counted."""
  from transformer_xl.config import registry
  from transformer_xl.data_prep import catalog
  from transformer_xl.data_prep.lm1b import lm1b_dataset_builder as lm1b
  from transformer_xl.data_prep.text8 import text8_dataset_builder as text8

  classes = map(catalog.builder_class, (*registry.datasets, "text"))
  archives = [archive for builder in classes for archive in builder.ARCHIVES]
  archives.remove(text8.ARCHIVE)
  assert len(archives) == 7
  assert all(len(archive.sha256) == 64 for archive in archives)
  assert text8.PUBLISHED
  assert lm1b.VOCABULARY_SIZE
  archives += [text8.ARCHIVE, lm1b.VOCABULARY]
  urls = [url for archive in archives for url in archive.urls]
  assert all(url.startswith("https://") for url in urls)
