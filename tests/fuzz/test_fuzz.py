"""A little of `make fuzz`, what it would find, and what it has found."""

import io
import json
import pickle
import struct
import subprocess
import zipfile

import numpy as np
import pytest

from tests.fuzz import campaign
from tests.fuzz import imported_files
from tests.fuzz import prepared_files
from tests.fuzz import readers
from tests.importers import stored_files
from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import source
from transformer_xl.formats import inert_pickle
from transformer_xl.formats import tensor_bundle
from transformer_xl.formats import torch_file
from transformer_xl.workdir import run_record

READERS = readers.all_readers()


def test_the_shares_are_thousandths():
  assert sum(reader.share for reader in READERS.values()) == 1000


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused_in_one_line(name):
  tally = campaign.run(name, READERS[name], count=25, seed=7)
  assert tally.crashes == {}
  assert tally.read + tally.refused == 25


def _evaluates(content, _):
  eval("1")


def _writes_elsewhere(content, _):
  with open("/dev/full", "w"):
    pass


def _runs(content, _):
  subprocess.run(["true"], check=True)


def _dies(content, _):
  raise SystemExit(content[0])


def _grows(content, _):
  np.ones((campaign.MEGABYTES + 32) << 20, np.uint8)


def _loops(content, _):
  while True:
    pass


@pytest.mark.parametrize(
  ("read", "kind"),
  [
    (_evaluates, "_Violation"),
    (_writes_elsewhere, "_Violation"),
    (_runs, "_Violation"),
    (_dies, "SystemExit"),
    (_grows, "memory"),
    (_loops, "_Violation"),
  ],
)
def test_what_a_reader_may_not_do_is_a_crash(read, kind, monkeypatch):
  if read is _loops:  # The others may need more on a busy machine.
    monkeypatch.setattr(campaign, "SECONDS", 1)
  reader = campaign.Reader([], read, 0)
  monkeypatch.setattr(campaign, "content", lambda *_, **__: b"x")
  tally = campaign.run("bad", reader, count=1, seed=0)
  assert tally.num_crashes == 1
  [found] = tally.crashes
  assert found.startswith(kind)


def test_a_pickle_that_asks_for_room_is_refused():
  for content in (
    b"\x80\x02Nr\xff\xff\xff\x7f.",  # Object number 2**31 of its memo.
    b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
    b"\x80\x05\x96" + struct.pack("<Q", 1 << 50) + b".",
  ):
    with pytest.raises(errors.UserError, match="truncated"):
      inert_pickle.load(content, "FILE")


def test_modules_that_hold_one_another_twice_are_refused():
  module = {"_modules": {}, "_parameters": {}, "_buffers": {}}
  for _ in range(60):
    parts = {"a": module, "b": module}
    module = {"_modules": parts, "_parameters": {}, "_buffers": {}}
  with pytest.raises(errors.UserError, match="damaged"):
    torch_file.TorchFile(module, {}, "FILE").tensors()


def test_a_torch_file_that_grows_when_it_is_read_is_refused(tmp_path):
  path = tmp_path / "model.pt"
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("model/data.pkl", pickle.dumps({}, protocol=2))
    archive.writestr("model/data/0", bytes(1 << 20))
  with pytest.raises(errors.UserError, match="damaged"):
    torch_file.read(str(path))


def test_an_index_of_more_files_than_tensors_is_refused(tmp_path, monkeypatch):
  header = b"\x08" + b"\xff" * 8 + b"\x01"  # num_shards, field 1.
  monkeypatch.setattr(
    tensor_bundle, "_table_records", lambda *_: [(b"", header)]
  )
  (tmp_path / "model.index").write_bytes(b"")
  with pytest.raises(errors.UserError, match="not an index"):
    tensor_bundle.Bundle(str(tmp_path / "model"))


def test_an_index_with_text_where_a_number_belongs_is_refused(
  tmp_path, monkeypatch
):
  header, entry = b"\x08\x01", b"\x22\x01a"  # Field 4, the offset, is "a".
  monkeypatch.setattr(
    tensor_bundle, "_table_records", lambda *_: [(b"", header), (b"w", entry)]
  )
  (tmp_path / "model.index").write_bytes(b"")
  with pytest.raises(errors.UserError, match="not an index"):
    tensor_bundle.Bundle(str(tmp_path / "model"))


def test_a_member_without_a_name_harms_no_archive(tmp_path):
  path = tmp_path / "text.zip"
  with zipfile.ZipFile(path, "w") as archive:
    archive.writestr("a.txt", "a")
    archive.writestr("@", "b")
  # The zero ends the name, before it has begun.
  path.write_bytes(path.read_bytes().replace(b"@", b"\0"))
  with zipfile.ZipFile(path) as archive:
    assert [info.filename for info in archive.infolist()] == ["a.txt", ""]
  assert source.Zip(path).names == ["", "a.txt"]


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname"])
def test_a_dataset_names_no_file_outside_of_its_folder(name, tmp_path):
  data = tmp_path / "data"
  data.mkdir()
  (tmp_path / "secret.txt").write_text("secret\n")
  meta = {"vocabulary": {"file": name, "sha256": "", "size": 1}}
  (data / "meta.json").write_text(json.dumps(meta))
  with pytest.raises(errors.UserError):
    vocabulary.load(str(data))
  with pytest.raises(FileNotFoundError):
    run_record.keep_vocabulary(str(data), str(tmp_path / "run"))
  assert not list(tmp_path.glob("run/**/secret.txt"))


def test_an_id_of_a_subword_beyond_all_bounds_is_refused():
  content = prepared_files._subwords().replace(b":21}", b":2000000000}")
  assert b"2000000000" in content
  with pytest.raises(ValueError, match="an id is"):
    vocabulary.parse(
      content, tokenizer={"kind": "subword", "lower_case": False}
    )


def test_valid_files_are_read(tmp_path):
  content = (stored_files.ORIGINAL / "model.pt").read_bytes()
  assert inert_pickle.load(io.BytesIO(pickle.dumps([1, 2])), "F") == [1, 2]
  imported_files._torch(content, str(tmp_path))
