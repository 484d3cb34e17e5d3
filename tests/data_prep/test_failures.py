"""Bad input and full disks: one clear line, and a whole dataset or none."""

import gzip
import io
import resource
import subprocess
import sys
import tarfile
import zipfile

import pytest

from data_prep import download
from data_prep import preparation
from data_prep import source as source_lib
from data_prep import wikitext
from tests.data_prep import layouts
from transformer_xl import errors

NOT_UTF8 = b"fine\nnot \xff fine\n"


def command(tmp_path, *arguments, preexec_fn=None):
  return subprocess.run(
    [
      sys.executable,
      "-m",
      "data_prep.main",
      f"--data_dir={tmp_path / 'data'}",
      *arguments,
    ],
    capture_output=True,
    text=True,
    check=False,
    preexec_fn=preexec_fn,
  )


def error_line(result):
  """Returns the only line that is no progress, of a command that failed."""
  lines = [x for x in result.stderr.splitlines() if "MB/s" not in x]
  assert result.returncode == 2, result.stderr
  assert len(lines) == 1, result.stderr
  return lines[0]


def prepare_text(tmp_path, path, **options):
  return preparation.prepare(
    dataset="text", data_dir=str(tmp_path / "data"), source=str(path), **options
  )


def remains(tmp_path):
  folder = tmp_path / "data"
  return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_a_users_mistake_is_one_line_on_standard_error_and_status_two(tmp_path):
  result = command(tmp_path, "--dataset=text", "--source=/nowhere/at/all")
  assert error_line(result).startswith("error: /nowhere/at/all has no files")
  assert result.stdout == ""


def test_text_that_is_not_utf8_is_refused_with_its_place(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(NOT_UTF8)
  for kind in ("word", "character"):
    with pytest.raises(errors.UserError, match="byte 0xff at offset 9"):
      prepare_text(tmp_path, path, tokenizer=kind)
  with pytest.raises(errors.UserError, match="byte 0xff at offset 9"):
    prepare_text(tmp_path, path, tokenizer="subword", max_size=300)
  assert remains(tmp_path) == []


def test_text_that_is_not_utf8_is_fine_as_bytes(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(NOT_UTF8)
  options = {"valid_fraction": 0.0, "test_fraction": 0.0}
  folder = prepare_text(tmp_path, path, **options)
  assert (folder / "train.npy").read_bytes().endswith(NOT_UTF8)


def test_an_empty_file_is_refused(tmp_path):
  path = tmp_path / "a.txt"
  path.touch()
  with pytest.raises(errors.UserError, match=r"train split of .* is empty"):
    prepare_text(tmp_path, path)
  assert remains(tmp_path) == []


def test_a_single_byte_is_refused_since_it_predicts_nothing(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"a")
  with pytest.raises(errors.UserError, match="has 1 tokens"):
    prepare_text(tmp_path, path, valid_fraction=0, test_fraction=0)
  assert remains(tmp_path) == []


def test_one_gigantic_line_is_cut_between_words(tmp_path, monkeypatch):
  layouts.small_pieces(monkeypatch, block=16, longest=64)
  path = tmp_path / "a.txt"
  path.write_text("wort \u00fc " * 500)
  folder = prepare_text(
    tmp_path, path, tokenizer="word", valid_fraction=0, test_fraction=0
  )
  tokens, documents = layouts.read(folder, "train")
  assert tokens == ["wort", "\u00fc"] * 500 + ["<eos>"]
  assert documents == [0]


def test_one_gigantic_word_is_text_for_bytes_and_characters_only(
  tmp_path, monkeypatch
):
  layouts.small_pieces(monkeypatch, block=16, longest=64)
  path = tmp_path / "a.txt"
  text = "\u00fc\U0001f600x" * 100
  path.write_text(text)
  options = {"valid_fraction": 0.0, "test_fraction": 0.0}
  with pytest.raises(errors.UserError, match="no white space in the"):
    prepare_text(tmp_path, path, tokenizer="word", **options)
  folder = prepare_text(tmp_path, path, tokenizer="character", **options)
  assert layouts.read(folder, "train")[0] == list(text)


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
  monkeypatch.setitem(wikitext.ARCHIVES, "wikitext103", archive)
  return path


def prepare_wikitext(tmp_path, path):
  return preparation.prepare(
    dataset="wikitext103", data_dir=str(tmp_path / "data"), source=str(path)
  )


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


def test_links_in_an_archive_are_not_followed(tmp_path):
  secret = tmp_path / "secret"
  secret.write_text("secret")
  path = tmp_path / "a.tgz"
  with tarfile.open(path, "w:gz") as archive:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
      link = tarfile.TarInfo(f"ptb.train.txt{kind.decode()}")
      link.type, link.linkname = kind, str(secret)
      archive.addfile(link)
  assert source_lib.Tar(path).names() == []


def test_an_archive_cannot_write_outside_the_folder(tmp_path):
  path = layouts.write_tar(
    tmp_path / "a.tgz", {"../../x/news.en-00001-of-00100": b"a\n"}
  )
  folder = source_lib.unpack(
    source_lib.Tar(path), tmp_path / "in" / "side", wanted=lambda name: True
  )
  assert "news.en-00001-of-00100" in folder.names()
  assert {p.name for p in tmp_path.iterdir()} == {"a.tgz", "in"}


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


def limit_file_size():
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"some text\n" * 50_000)
  arguments = ("--dataset=text", f"--source={path}")
  result = command(tmp_path, *arguments, preexec_fn=limit_file_size)
  line = error_line(result)
  assert line.startswith(f"error: {tmp_path / 'data'}: File too large;")
  assert line.endswith("run the same command again, it goes on.")
  assert remains(tmp_path) == ["text.partial"]
  assert not list((tmp_path / "data").rglob("meta.json"))
  result = command(tmp_path, *arguments)
  assert result.returncode == 0, result.stderr
  assert result.stdout == f"{tmp_path / 'data' / 'text'} is ready\n"
  assert remains(tmp_path) == ["text"]


def test_another_dataset_is_never_overwritten(tmp_path):
  one, two = tmp_path / "1.txt", tmp_path / "2.txt"
  one.write_bytes(b"one\n" * 99)
  two.write_bytes(b"two\n" * 99)
  folder = prepare_text(tmp_path, one)
  before = (folder / "train.npy").read_bytes()
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare_text(tmp_path, two)
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare_text(tmp_path, one, tokenizer="word")
  assert prepare_text(tmp_path, one) == folder
  assert (folder / "train.npy").read_bytes() == before


def test_a_downloaded_dataset_is_not_downloaded_again(tmp_path, monkeypatch):
  data_dir = str(tmp_path / "data")
  options = {"dataset": "python_stdlib", "data_dir": data_dir}
  folder = preparation.prepare(**options)
  monkeypatch.setattr(preparation.catalog, "open_corpus", None)
  assert preparation.prepare(**options) == folder
  with pytest.raises(TypeError):  # Another request opens the corpus.
    preparation.prepare(**options, tokenizer="character")


def test_a_folder_of_the_users_is_never_overwritten(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(b"one\n" * 99)
  mine = tmp_path / "data" / "text" / "thesis.tex"
  layouts.write_files(mine.parent, {mine.name: b"my only copy"})
  with pytest.raises(errors.UserError, match="holds something else"):
    prepare_text(tmp_path, path)
  assert mine.read_bytes() == b"my only copy"


class Page(io.BytesIO):
  url = "https://mirror.example"


class Refusing(Page):
  """A server that breaks off."""

  def read(self, size=-1, /):
    raise ConnectionResetError("connection reset")


def serve(monkeypatch, pages):
  """Makes downloads find these pages instead of the network."""

  def urlopen(request, timeout):
    assert timeout > 0
    return pages[request.full_url]

  monkeypatch.setattr(download.urllib.request, "urlopen", urlopen)


def archive(content_hash, urls):
  return download.Archive(
    filename="a.zip", urls=urls, size=4, sha256=content_hash
  )


HASH_OF_DATA = (
  "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"
)


def test_a_mirror_serves_when_the_original_fails(tmp_path, monkeypatch):
  urls = ("https://one/a.zip", "https://two/a.zip", "https://three/a.zip")
  pages = {
    urls[0]: Refusing(),
    urls[1]: Page(b"else"),
    urls[2]: Page(b"data"),
  }
  serve(monkeypatch, pages)
  path = download.fetch(archive(HASH_OF_DATA, urls), tmp_path / "cache")
  assert path.read_bytes() == b"data"
  assert remains_in(tmp_path / "cache") == ["a.zip"]
  # A second call finds it there, and so takes no page.
  assert download.fetch(archive(HASH_OF_DATA, ()), tmp_path / "cache") == path


def remains_in(folder):
  return sorted(path.name for path in folder.iterdir())


def test_a_failed_download_says_why_and_how_to_do_without(
  tmp_path, monkeypatch
):
  urls = ("https://one/a.zip", "https://two/a.zip")
  serve(monkeypatch, {urls[0]: Refusing(), urls[1]: Page(b"else")})
  with pytest.raises(errors.UserError) as raised:
    download.fetch(archive(HASH_OF_DATA, urls), tmp_path / "cache")
  message = str(raised.value)
  assert "https://one/a.zip: connection reset" in message
  assert "https://two/a.zip: " in message
  assert "SHA-256" in message
  assert message.endswith("give it with --source=PATH.")
  assert remains_in(tmp_path / "cache") == []


def test_downloads_are_encrypted(tmp_path):
  with pytest.raises(ValueError, match="https only"):
    download.fetch(archive(None, ("http://one/a.zip",)), tmp_path)


def test_a_zip_is_known_by_its_content(tmp_path):
  path = layouts.write_zip(tmp_path / "no_suffix", {"text8": b"abc"})
  assert zipfile.is_zipfile(path)
  assert source_lib.locate(str(path)).names() == ["text8"]


def test_a_source_that_does_not_exist_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match="does not exist"):
    source_lib.locate(str(tmp_path / "nothing"))
