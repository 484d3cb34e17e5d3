"""Copies of folders in an emulated bucket, and what a bucket refuses."""

import concurrent.futures
import errno
import importlib.util
import os
import pathlib
import pwd
import re
import subprocess
import sys
import types

import gcsfs.retry
import pytest
from etils import epath

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.workdir import metrics_log

# The words of Google's answers; the addresses of accounts are made up.
FORBIDDEN = (
  "run@project.iam.gserviceaccount.com does not have storage.objects.get "
  "access to the Google Cloud Storage object. Permission "
  "'storage.objects.get' denied on resource (or it may not exist)."
)
ANONYMOUS = (
  "Anonymous caller does not have storage.objects.list access to the Google "
  "Cloud Storage bucket. Permission 'storage.objects.list' denied on resource "
  "(or it may not exist)."
)
ANSWERS = {
  "forbidden": (403, FORBIDDEN, "needs the role roles/storage.objectUser"),
  "anonymous": (401, ANONYMOUS, "gcloud auth application-default login"),
  "expired": (401, "Invalid Credentials", "application-default login"),
  "unavailable": (503, "Backend Error", "run the same command again"),
}
CALLS = {
  "local": storage.local,
  "publish": lambda folder: storage.publish(folder),
  "refresh": lambda folder: storage.refresh(folder, "log"),
  "require_writable": storage.require_writable,
  "cached": lambda folder: storage.cached(folder, "log", "0" * 64),
  "move": lambda folder: storage.move(folder, f"{folder}.moved"),
}


@pytest.fixture(autouse=True)
def _as_a_new_process(monkeypatch):
  storage._copies.clear()

  async def at_once(_):
    pass

  # Between the tries of a request half a minute passes.
  patched = types.SimpleNamespace(sleep=at_once)
  monkeypatch.setattr(gcsfs.retry, "asyncio", patched)


def put(folder, **files):
  """Writes files as another program would."""
  for name, text in files.items():
    epath.Path(folder, name).write_text(text)


def change(folder, name, text):
  path = pathlib.Path(storage.local(folder), name)
  path.parent.mkdir(exist_ok=True)
  path.write_text(text)


def uploads(server):
  """Names of the files that were uploaded, without their folder."""
  names = (re.search(r"name=([^&]*)", path) for _, path in server.requests)
  found = [name[1].rpartition("/")[2] for name in names if name]
  return [*dict.fromkeys(found)]


def in_another_process(program, *arguments):
  """Runs a program in Python; returns what it says and its status."""
  command = [sys.executable, "-c", f"import os\n{program}", *arguments]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  return done.stdout.strip(), done.stderr, done.returncode


def test_a_folder_on_disk_is_itself(tmp_path):
  folder = str(tmp_path / "run")
  assert storage.local(folder) == folder
  storage.publish(folder)
  storage.require_writable(folder)
  storage.refresh(folder, "log")
  assert storage.cached(folder, "x.npy", "0") == f"{folder}/x.npy"
  assert not list(tmp_path.iterdir())


def test_writers_at_the_same_time_leave_a_whole_file(tmp_path):
  """Each reader sees the text of one writer, from its start to its end."""
  path = str(tmp_path / "results" / "card.json")
  storage.write_text(path, "a" * 100_000)

  def write(letter):
    for _ in range(25):
      storage.write_text(path, letter * 100_000)
      text = storage.read_text(path)
      assert len(text) == 100_000
      assert len(set(text)) == 1

  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for finished in [pool.submit(write, letter) for letter in "abcd"]:
      finished.result()
  assert [entry.name for entry in os.scandir(tmp_path / "results")] == [
    "card.json"
  ]


def test_no_link_in_a_folder_is_written_through(tmp_path):
  victim = tmp_path / "victim"
  victim.write_text("mine")
  folder = tmp_path / "run"
  folder.mkdir()
  for name in ("card.json", "card.json.tmp", "lines.jsonl"):
    (folder / name).symlink_to(victim)
  storage.write_text(str(folder / "card.json"), "theirs")
  with pytest.raises(OSError, match="symbolic links"):
    metrics_log.append_lines(str(folder), "lines.jsonl", ["theirs"])
  assert victim.read_text() == "mine"
  assert (folder / "card.json").read_text() == "theirs"


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
  def refuse(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  storage.write_text(str(tmp_path / "card"), "before")
  monkeypatch.setattr(os, "fsync", refuse)
  with pytest.raises(OSError, match="No space left"):
    storage.write_text(str(tmp_path / "card"), "after")
  assert [path.name for path in tmp_path.iterdir()] == ["card"]
  assert (tmp_path / "card").read_text() == "before"


def test_addresses_and_paths():
  assert storage.is_bucket("gs://b/c")
  assert not storage.is_bucket("/gs://b")
  assert errors.bucket("gs://b/c/d") == errors.bucket("gs://b") == "gs://b"
  assert storage.absolute("gs://b/c/") == "gs://b/c"
  assert storage.absolute("c") == os.path.abspath("c")


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_of_two_only_one_makes_a_file(place, bucket, tmp_path):
  path = f"{bucket if place == 'bucket' else tmp_path}/.lock"
  storage.create_text(path, "first")
  with pytest.raises(FileExistsError):
    storage.create_text(path, "second")
  assert storage.read_text(path) == "first"


def test_a_copy_has_the_small_files(bucket):
  put(bucket, log="1", **{"results/card": "2", "results/old/card": "3"})
  put(bucket, **{"checkpoints/8/params": "4", "wandb/5": "5", ".lock": "6"})
  put(bucket, **{"train.npy": "7", "damaged/4.1/params": "8"})
  folder = pathlib.Path(storage.local(bucket))
  found = {
    str(path.relative_to(folder)): path.read_text()
    for path in folder.rglob("*")
    if path.is_file()
  }
  assert found == {"log": "1", "results/card": "2", "results/old/card": "3"}
  assert storage.local(f"{bucket}/") == str(folder)


def test_a_new_folder_is_an_empty_copy(bucket):
  assert os.listdir(storage.local(bucket)) == []


def test_only_what_changed_is_uploaded(bucket, faulty):
  put(bucket, log="1", kept="2")
  change(bucket, "log", "3")
  change(bucket, "new", "4")
  change(bucket, "half.tmp", "5")
  change(bucket, "card.lock", "6")
  faulty.requests.clear()
  storage.publish(bucket)
  assert uploads(faulty) == ["log", "new"]
  faulty.requests.clear()
  storage.publish(bucket)
  assert not uploads(faulty)
  assert epath.Path(bucket, "log").read_text() == "3"


def test_a_file_that_vanishes_meanwhile_keeps_no_other_back(
  bucket, monkeypatch
):
  """A tracker's thread may still rename and remove what it writes."""
  folder = f"{bucket}/run"
  change(folder, "a.tmp.gone", "of a tracker")
  change(folder, "metrics.jsonl", "mine")
  state = storage._state

  def looks_late(path):
    if path.name == "a.tmp.gone":
      path.unlink()
    return state(path)

  monkeypatch.setattr(storage, "_state", looks_late)
  storage.publish(folder)
  assert epath.Path(folder, "metrics.jsonl").read_text() == "mine"


def test_a_failed_upload_is_made_up_for(bucket, faulty):
  change(bucket, "first", "1")
  change(bucket, "second", "2")
  with (
    faulty.failing("answer", status=403, methods=("POST",)),
    pytest.raises(errors.UserError),
  ):
    storage.publish(bucket)
  storage.publish(bucket)
  names = {path.name for path in epath.Path(bucket).iterdir()}
  assert names == {"first", "second"}


def test_a_folder_that_cannot_be_written_is_found_before_the_work(
  tmp_path, monkeypatch
):
  storage.require_writable(f"{tmp_path}/new/run")
  assert not (tmp_path / "new").exists()
  (tmp_path / "file").write_text("")
  with pytest.raises(NotADirectoryError, match=f"{tmp_path}/file/run"):
    storage.require_writable(f"{tmp_path}/file/run")
  monkeypatch.setattr(os, "access", lambda *_: False)  # Root may do anything.
  with pytest.raises(PermissionError, match=f"{tmp_path}/new/run"):
    storage.require_writable(f"{tmp_path}/new/run")


def test_a_link_to_nothing_is_named(tmp_path):
  (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
  text = "is a link to .*/nowhere, which does not exist; make that folder"
  with pytest.raises(errors.UserError, match=text):
    storage.require_writable(f"{tmp_path}/gone")


def test_processes_do_not_overwrite_what_others_wrote(bucket):
  put(bucket, log="old", card="old")
  change(bucket, "log", "of this process")
  change(bucket, "new/mine", "of this process")
  program = (
    "import pathlib, sys; from transformer_xl import storage\n"
    "folder = pathlib.Path(storage.local(sys.argv[1]))\n"
    "(folder / 'card').write_text('of the other')\n"
    "(folder / 'new').mkdir()\n"
    "(folder / 'new/yours').write_text('of the other')\n"
    "storage.publish(sys.argv[1], is_last=True); print(folder)"
  )
  folder, says, status = in_another_process(program, bucket)
  assert status == 0, says
  assert not os.path.exists(folder)  # Removed as the process ended.
  storage.publish(bucket)
  there = {
    name: epath.Path(bucket, name).read_text()
    for name in ("log", "card", "new/mine", "new/yours")
  }
  mine, yours = "of this process", "of the other"
  assert there == dict(zip(there, (mine, yours, mine, yours), strict=True))
  assert pathlib.Path(storage.local(bucket), "card").read_text() == "old"
  storage.refresh(bucket, "card")
  assert pathlib.Path(storage.local(bucket), "card").read_text() == yours


def test_what_could_not_be_uploaded_at_the_end_is_kept(bucket, faulty):
  program = (
    "import pathlib, sys; from transformer_xl import errors, storage\n"
    "folder = pathlib.Path(storage.local(sys.argv[1]))\n"
    "(folder / 'card').write_text('measured')\n"
    "try: storage.publish(sys.argv[1], is_last=True)\n"
    "except errors.UserError as error: print(folder, error, sep='|')"
  )
  with faulty.failing("answer", status=403, methods=("POST",)):
    says, problems, status = in_another_process(program, bucket)
  assert (status, "Traceback" in problems) == (0, False), problems
  folder, _, message = says.partition("|")
  assert message.endswith(f"What this command wrote is in {folder}.")
  assert pathlib.Path(folder, "card").read_text() == "measured"


def test_refreshing_what_is_not_there(bucket):
  storage.refresh(bucket, "log")
  assert os.listdir(storage.local(bucket)) == []


def test_a_large_file_is_copied_once(bucket, faulty, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  content = bytes(range(256)) * 2048
  epath.Path(bucket, "train.npy").write_bytes(content)
  path = storage.cached(bucket, "train.npy", "ab12")
  assert pathlib.Path(path).read_bytes() == content
  assert path.startswith(str(tmp_path))
  faulty.requests.clear()
  assert storage.cached(bucket, "train.npy", "ab12") == path
  assert not faulty.requests
  assert storage.cached(bucket, "train.npy", "cd34") != path


def test_half_a_download_is_no_copy(bucket, faulty, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  content = bytes(range(256)) * 2048
  epath.Path(bucket, "train.npy").write_bytes(content)
  with (
    faulty.failing("drop", methods=("GET",)) as fault,
    pytest.raises(errors.UserError, match="run the same command again"),
  ):
    storage.cached(bucket, "train.npy", "ab12")
  assert fault.hits
  assert not [path for path in tmp_path.rglob("*") if path.is_file()]
  with faulty.failing("drop", methods=("GET",), requests=2) as fault:
    path = storage.cached(bucket, "train.npy", "ab12")
  assert fault.hits == 2
  assert pathlib.Path(path).read_bytes() == content


def test_a_folder_is_moved_with_all_that_is_in_it(bucket):
  names = ("a", "checkpoints/8/params.npy", ".b")
  put(f"{bucket}/old", **dict.fromkeys(names, "1"))
  storage.move(f"{bucket}/old", f"{bucket}/damaged/new")
  assert not epath.Path(bucket, "old").exists()
  moved = [epath.Path(bucket, "damaged/new", name) for name in names]
  assert [path.read_text() for path in moved] == ["1"] * 3


def test_a_bucket_is_asked_whether_it_can_be_written(bucket):
  storage.require_writable(bucket)
  assert not epath.Path(bucket).exists()  # And nothing is left there.


@pytest.mark.parametrize(
  "call", ["local", "publish", "refresh", "require_writable", "cached"]
)
def test_a_bucket_that_does_not_exist(call, bucket_server):
  with pytest.raises(errors.UserError) as raised:
    CALLS[call]("gs://mistyped/run")
  message = str(raised.value)
  file = "/log" if call == "cached" else ""
  assert f"gs://mistyped/run{file}: there is no such bucket" in message
  assert message.endswith("gcloud storage buckets create gs://mistyped")


@pytest.mark.some(12)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_bucket_that_refuses(answer, call, bucket, faulty):
  put(bucket, log="1")
  status, message, remedy = ANSWERS[answer]
  if call in ("publish", "refresh"):
    change(bucket, "log", "2")
  with (
    faulty.failing("answer", status=status, message=message) as fault,
    pytest.raises(errors.UserError) as raised,
  ):
    CALLS[call](bucket)
  assert fault.hits
  assert_one_line(str(raised.value), bucket, remedy)
  assert message[:60] in str(raised.value)
  assert epath.Path(bucket, "log").read_text() == "1"


@pytest.mark.parametrize("call", CALLS)
def test_a_bucket_that_cannot_be_reached(call, bucket, faulty, caplog):
  put(bucket, log="1")
  if call in ("publish", "refresh"):
    change(bucket, "log", "2")
  faulty.refuse()
  try:
    with pytest.raises(errors.UserError) as raised:
      CALLS[call](bucket)
  finally:
    faulty.accept()
  assert_one_line(str(raised.value), bucket, "run the same command again")
  assert not [log for log in caplog.records if log.exc_info]  # Tracebacks.
  assert epath.Path(bucket, "log").read_text() == "1"


def assert_one_line(message, address, remedy):
  assert message.startswith("cannot ")
  assert "\n" not in message
  assert message.count("cannot ") == 1 + message.count("cannot connect")
  assert address in message
  assert remedy in message
  assert len(message) < 480


def test_without_gcsfs_the_extra_is_named(bucket, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(errors.UserError, match=r"pip install .*\[gcs\]"):
    storage.local(bucket)


def test_a_tilde_without_a_home_is_one_line(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", "/home/somebody")
  assert storage.expanded("~/books") == "/home/somebody/books"
  assert storage.expanded(pathlib.Path("~")) == "/home/somebody"
  for path in ("a/~/b", "gs://bucket/~", "/x", ""):
    assert storage.expanded(path) == path

  def unknown(user):
    raise KeyError(user)

  monkeypatch.delenv("HOME")
  monkeypatch.setattr(pwd, "getpwuid", unknown)
  with pytest.raises(errors.UserError, match="home folder of ~ is not") as one:
    storage.expanded("~/books")
  assert str(one.value).startswith("~/books: ")
  assert "\n" not in str(one.value)
  monkeypatch.chdir(tmp_path)
  pathlib.Path("~").mkdir()  # As a shell makes it of a quoted name.
  assert storage.expanded("~/books") == "~/books"
