"""Texts as they come, alone and in archives."""

import contextlib
import gzip
import io
import os
import pathlib
import tarfile
import tempfile

from data_prep import source as source_lib
from data_prep import wikitext
from data_prep.lm1b import corpus as lm1b_corpus
from data_prep.ptb import corpus as ptb_corpus
from data_prep.text import corpus as text_corpus
from tests.data_prep import layouts
from tests.fuzz import campaign
from tests.fuzz import files
from transformer_xl.text import inputs


def readers() -> dict[str, campaign.Reader]:
  """By name, with shares of a thousand."""
  return {
    "texts to score": campaign.Reader(
      [b'{"text": "a b"}\n{"text": "c", "memory": "carry"}\n', b"a\nb\n"],
      _texts,
      100,
    ),
    "text as .jsonl": campaign.Reader(
      [b'{"text": "a b\\n"}\n' * 3], _jsonl, 60
    ),
    "text as .gz": campaign.Reader([gzip.compress(b"a b c\n" * 99)], _gzip, 20),
    "wikitext archive (zip)": campaign.Reader([_zip()], _wikitext, 14),
    "lm1b archive (tar.gz)": campaign.Reader([_tar("w:gz")], _lm1b, 3),
    "lm1b archive (tar)": campaign.Reader([_tar("w")], _lm1b, 3),
  }


def _texts(content: bytes, folder: str) -> None:
  path = files.write(folder, "texts", content)
  inputs.parse(inputs.read_file(path, field="score.file"), memory="fresh")


def _jsonl(content: bytes, folder: str) -> None:
  _read_text(pathlib.Path(files.write(folder, "text.jsonl", content)))


def _gzip(content: bytes, folder: str) -> None:
  _read_text(pathlib.Path(files.write(folder, "text.txt.gz", content)))


def _read_text(path: pathlib.Path) -> None:
  for _ in text_corpus.read([path], field="text"):
    pass


def _zip() -> bytes:
  with tempfile.TemporaryDirectory() as folder:
    members = {
      f"wikitext-2/wiki.{split}.tokens": content.encode()
      for split, content in layouts.WIKITEXT.items()
    }
    path = pathlib.Path(folder, "wikitext.zip")
    return layouts.write_zip(path, members).read_bytes()


def _tar(mode: str) -> bytes:
  stream = io.BytesIO()
  with tarfile.open(fileobj=stream, mode=mode) as archive:
    for name in ("news.en-00001-of-00100", "news.en.heldout-00000-of-00050"):
      info = tarfile.TarInfo(f"lm1b/{name}")
      info.size = 8
      archive.addfile(info, io.BytesIO(b"a cat .\n"))
  return stream.getvalue()


def _wikitext(content: bytes, folder: str) -> None:
  source = source_lib.locate(files.write(folder, "wikitext.zip", content))
  for split in layouts.WIKITEXT:
    name = wikitext.member("wikitext2", source, split)
    for _ in wikitext.read(source, name):
      pass


def _lm1b(content: bytes, folder: str) -> None:
  source = source_lib.locate(files.write(folder, "lm1b.tar.gz", content))
  with contextlib.suppress(FileNotFoundError):
    os.unlink(os.path.join(folder, "scratch", "done"))
  if isinstance(source, source_lib.Tar):
    where = pathlib.Path(folder, "scratch")
    unpacked = source_lib.unpack(source, where, wanted=lm1b_corpus._is_wanted)
    for _ in lm1b_corpus.read(unpacked, unpacked.names()):
      pass
  for _ in lm1b_corpus.read(source, lm1b_corpus.names_of(source, "train")):
    pass
  for _ in ptb_corpus.read(source, source.names()[0]):
    pass
