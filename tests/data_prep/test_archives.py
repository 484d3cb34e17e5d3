"""Archives: truncated, changed, hostile, or simply to be read."""

import functools
import gzip
import zipfile

import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data_prep import download
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep.wikitext103 import wikitext103_dataset_builder

prepare_text = functools.partial(layouts.prepare, "text")
prepare_wikitext = functools.partial(layouts.prepare, "wikitext103")
remains = layouts.remains


def wikitext_zip(tmp_path, monkeypatch, *, sha256=None):
  """Returns an archive that has the published size."""
  path = layouts.write_zip(
    tmp_path / "wikitext-103-v1.zip", layouts.wikitext_members()
  )
  archive = download.Archive(
    filename=path.name,
    urls=(),
    size=path.stat().st_size,
    sha256=sha256,
  )
  monkeypatch.setattr(
    wikitext103_dataset_builder.Builder, "ARCHIVES", [archive]
  )
  return path


def test_a_truncated_archive_is_refused_by_its_size(tmp_path, monkeypatch):
  path = wikitext_zip(tmp_path, monkeypatch)
  size = path.stat().st_size
  path.write_bytes(path.read_bytes()[: size // 2])
  with pytest.raises(errors.UserError, match=f"{size // 2} bytes, not {size}"):
    prepare_wikitext(tmp_path, path)
  assert remains(tmp_path) == []


def test_a_changed_archive_is_refused_by_its_hash(tmp_path, monkeypatch):
  path = wikitext_zip(tmp_path, monkeypatch, sha256="0" * 64)
  with pytest.raises(errors.UserError, match=r"SHA-256 is .*, not 0000"):
    prepare_wikitext(tmp_path, path)
  assert remains(tmp_path) == []


def test_an_archive_in_a_folder_is_verified_like_one_given(
  tmp_path, monkeypatch
):
  path = wikitext_zip(tmp_path, monkeypatch, sha256="0" * 64)
  with pytest.raises(errors.UserError, match="SHA-256 is"):
    prepare_wikitext(tmp_path, path.parent)


@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_truncated_archive_of_unknown_size_is_refused_too(tmp_path, part):
  members = layouts.wikitext_members()
  for write, name in (
    (layouts.write_zip, "w.zip"),
    (layouts.write_tar, "w.tgz"),
  ):
    path = write(tmp_path / name, members)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(errors.UserError, match="damaged or cut short"):
      prepare_wikitext(tmp_path, path)
  assert remains(tmp_path) == []


def test_damage_within_a_zip_is_found_by_its_check_sum(tmp_path, monkeypatch):
  path = wikitext_zip(tmp_path, monkeypatch)
  data = bytearray(path.read_bytes())
  data[70] ^= 0xFF  # In the first member's compressed text.
  path.write_bytes(data)
  with pytest.raises(errors.UserError, match="damaged or cut short"):
    prepare_wikitext(tmp_path, path)
  assert remains(tmp_path) == []


def test_a_truncated_gzip_is_refused(tmp_path):
  path = tmp_path / "a.txt.gz"
  path.write_bytes(gzip.compress(b"text\n" * 1000)[:-12])
  with pytest.raises(errors.UserError, match="damaged or cut short"):
    prepare_text(tmp_path, path)
  assert remains(tmp_path) == []


@pytest.mark.parametrize("kind", ["zip", "tar", "gzip"])
def test_what_unpacks_to_an_implausible_size_is_refused(
  tmp_path, kind, monkeypatch
):
  monkeypatch.setattr(source_lib, "_FREE_BYTES", 1000)
  layouts.small_pieces(monkeypatch, block=1 << 16, longest=1 << 16)
  data = b"0\n" * (1 << 20)
  if kind == "gzip":
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(data))
    with pytest.raises(errors.UserError, match="over 200 times its size"):
      prepare_text(tmp_path, path)
    return
  write = layouts.write_zip if kind == "zip" else layouts.write_tar
  path = write(tmp_path / f"a.{kind}", {"wiki.train.tokens": data})
  source = (source_lib.Zip if kind == "zip" else source_lib.Tar)(path)
  with (
    pytest.raises(errors.UserError, match="over 200 times its size"),
    source.open("wiki.train.tokens"),
  ):
    pytest.fail("the archive was opened")


def test_an_encrypted_zip_is_refused(tmp_path):
  path = layouts.write_zip(tmp_path / "a.zip", {"text8": b"abc"})
  data = bytearray(path.read_bytes())
  for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
    data[data.index(signature) + flags] |= 1
  path.write_bytes(data)
  with (
    pytest.raises(errors.UserError, match="text8 is encrypted"),
    source_lib.Zip(path).open("text8"),
  ):
    pytest.fail("the archive was opened")


def test_a_zip_is_known_by_its_content(tmp_path):
  path = layouts.write_zip(tmp_path / "no_suffix", {"text8": b"abc"})
  assert zipfile.is_zipfile(path)
  assert source_lib.locate(str(path)).names == ["text8"]


def test_a_source_that_does_not_exist_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match="does not exist"):
    source_lib.locate(str(tmp_path / "nothing"))
