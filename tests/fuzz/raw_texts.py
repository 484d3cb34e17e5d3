"""Texts as they come, alone and in archives."""

import gzip
import io
import pathlib
import tarfile
import tempfile

import pyarrow
from pyarrow import parquet

from tests.data_prep import layouts
from tests.fuzz import campaign
from tests.fuzz import files
from transformer_xl.data_prep import source as source_lib
from transformer_xl.data_prep.lm1b import lm1b_dataset_builder
from transformer_xl.data_prep.text import readers as readers_lib
from transformer_xl.data_prep.wikitext2 import wikitext2_dataset_builder
from transformer_xl.text import inputs


def readers() -> dict[str, campaign.Reader]:
  """By name, with shares of a thousand."""
  return {
    "texts to score": campaign.Reader(
      [b'{"text": "a b"}\n{"text": "c", "memory": "carry"}\n', b"a\nb\n"],
      _texts,
      60,
    ),
    "text as .jsonl": campaign.Reader(
      [b'{"text": "a b\\n"}\n' * 3], _jsonl, 40
    ),
    "text as .csv": campaign.Reader(
      [b'id,text\n1,"a ""b""\nc"\n2,d\n' * 2], _csv, 20
    ),
    "text as .parquet": campaign.Reader([_table("parquet")], _parquet, 20),
    "text as .arrow": campaign.Reader([_table("arrow")], _arrow, 20),
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


def _csv(content: bytes, folder: str) -> None:
  _read_text(pathlib.Path(files.write(folder, "text.csv", content)))


def _gzip(content: bytes, folder: str) -> None:
  _read_text(pathlib.Path(files.write(folder, "text.txt.gz", content)))


def _table(kind: str) -> bytes:
  rows = pyarrow.table({"id": [1, 2, 3], "text": ["a b\n", "", "c" * 50]})
  stream = io.BytesIO()
  if kind == "parquet":
    parquet.write_table(rows, stream)
  else:
    with pyarrow.ipc.new_stream(stream, rows.schema) as writer:
      writer.write_table(rows)
  return stream.getvalue()


def _parquet(content: bytes, folder: str) -> None:
  _read_text(pathlib.Path(files.write(folder, "text.parquet", content)))


def _arrow(content: bytes, folder: str) -> None:
  _read_text(pathlib.Path(files.write(folder, "text.arrow", content)))


def _read_text(path: pathlib.Path) -> None:
  for _ in readers_lib.read([path], field="text"):
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
    name = source.member(f"wiki.{split}.tokens", needed="the archive")
    for _ in wikitext2_dataset_builder.Builder.read(source, name):
      pass


def _lm1b(content: bytes, folder: str) -> None:
  source = source_lib.locate(files.write(folder, "lm1b.tar.gz", content))
  if isinstance(source, source_lib.Tar):
    where = pathlib.Path(folder, "scratch")
    unpacked = source_lib.unpack(
      source, where, wanted=lm1b_dataset_builder._is_wanted
    )
    for _ in unpacked.read(*unpacked.names):
      pass
  for _ in source.read(*lm1b_dataset_builder.names_of(source, "train")):
    pass
  for _ in source.read(source.names[0]):
    pass
