"""Which files of one's own are read as text."""

import functools
import gzip
import io
import json
import os
import tarfile

import numpy as np
import pytest

from tests.data_prep import layouts
from transformer_xl import errors

prepare = functools.partial(layouts.prepare, "text")
everything = layouts.everything


def lines(start, stop):
  return b"".join(b"line %d\n" % i for i in range(start, stop))


def test_prose_and_source_files_are_text_and_the_rest_is_reported(
  tmp_path, capsys
):
  files = {
    "a.md": b"# prose\n",
    "b/c.RST": b"more\n",
    "d.py": b"code\n",
    "e.txt": b"text\n",
    "f.pdf": b"%PDF",
    "g.pdf": b"%PDF",
    "Makefile": b"all:\n",
    ".git/h.txt": b"no\n",
  }
  folder = layouts.write_files(tmp_path / "mine", files)
  prepared = prepare(tmp_path, str(folder), **layouts.WHOLE)
  expected = {"train": b"# prose\nmore\ncode\ntext\n"}
  assert everything(prepared) == expected
  report = (
    "4 files read, 4 skipped (.pdf: 2, .git/: 1, no suffix: 1);"
    " train: a.md, c.RST, d.py and 1 more"
  )
  documents = "train: 4 documents of 5 to 8 tokens, 5 in the median"
  assert capsys.readouterr().err.splitlines() == [report, documents]


def test_a_folder_without_text_says_what_it_has(tmp_path):
  folder = layouts.write_files(tmp_path / "mine", {"a.pdf": b"%PDF"})
  with pytest.raises(
    errors.UserError, match=r"no files of text, but \.pdf: 1;"
  ):
    prepare(tmp_path, str(folder))


@pytest.mark.parametrize(
  ("files", "missing"),
  [
    (("a-00000-of-00003.txt", "a-00002-of-00003.txt"), "a-00001-of-00003"),
    (("a.00001-of-00002.jsonl",), r"a\.00000-of-00002"),
    (("b-00002-of-00002-f00.txt", "c.txt"), "b-00001-of-00002"),
  ],
)
def test_a_text_of_which_parts_are_missing_is_refused(tmp_path, files, missing):
  content = dict.fromkeys(files, b'{"text": "some text"}\n')
  folder = layouts.write_files(tmp_path / "mine", content)
  with pytest.raises(errors.UserError, match=f"lacks {missing} in"):
    prepare(tmp_path, str(folder))
  # Somebody who names files means these.
  prepare(tmp_path, f"{folder}/*", **layouts.WHOLE)


def test_a_file_beside_itself_in_gzip_is_refused(tmp_path):
  data = b"text\n"
  files = {"a.txt": data, "b.txt": data, "b.txt.gz": gzip.compress(data)}
  folder = layouts.write_files(tmp_path / "mine", files)
  with pytest.raises(errors.UserError, match=r"b\.txt and the same in "):
    prepare(tmp_path, str(folder))
  (folder / "b.txt").unlink()
  prepare(tmp_path, str(folder), **layouts.WHOLE)


def test_a_name_may_have_commas(tmp_path):
  files = {"war, and peace.txt": b"one\n", "emma.txt": b"two\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  source = f"{folder}/war, and peace.txt"
  prepared = prepare(tmp_path, source, **layouts.WHOLE)
  assert everything(prepared) == {"train": b"one\n"}


def test_records_may_begin_with_a_byte_order_mark(tmp_path):
  marked = b'\xef\xbb\xbf{"text": "one"}\n{"text": "two"}\n'
  folder = layouts.write_files(tmp_path / "mine", {"a.jsonl": marked})
  prepared = prepare(tmp_path, str(folder), **layouts.WHOLE)
  assert everything(prepared) == {"train": b"one\ntwo"}


@pytest.mark.parametrize("tokenizer", ["byte", "character", "word"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.md"])
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path, tokenizer, name):
  data = "\ufeffone two\n\ufeffthree\n".encode()
  file = gzip.compress(data) if name.endswith(".gz") else data
  folder = layouts.write_files(tmp_path / "mine", {name: file, "b.txt": data})
  options = {"tokenizer": tokenizer, **layouts.WHOLE}
  prepared = prepare(tmp_path, str(folder), **options)
  text = "one two\n\ufeffthree\n" * 2
  found = everything(prepared)["train"].decode()
  assert found == text  # Within a text it is a character.


def test_offsets_of_a_text_with_a_byte_order_mark_are_those_of_the_file(
  tmp_path,
):
  path = tmp_path / "a.txt"
  path.write_bytes(b"\xef\xbb\xbfab\xff\n")
  with pytest.raises(errors.UserError, match="byte 0xff at offset 5"):
    prepare(tmp_path, str(path), tokenizer="word", **layouts.WHOLE)


@pytest.mark.parametrize("tokenizer", ["character", "word", "subword"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_refused(tmp_path, tokenizer, encoding):
  path = tmp_path / "a.txt"
  path.write_bytes("one two three\n".encode(encoding) * 20)
  options = {"tokenizer": tokenizer, **layouts.WHOLE}
  if tokenizer == "subword":
    options["max_size"] = 300
  with pytest.raises(errors.UserError, match="many NULs") as caught:
    prepare(tmp_path, str(path), **options)
  order = encoding[-2:].upper()
  assert f"iconv -f UTF-16{order} -t UTF-8" in str(caught.value)
  assert "\n" not in str(caught.value)
  # Bytes take anything, and a text may have a NUL.
  bytes_of = prepare(tmp_path, str(path), name="bytes", **layouts.WHOLE)
  assert everything(bytes_of)["train"] == path.read_bytes()
  path.write_text("one two three \0 four five six\n")
  prepare(tmp_path, str(path), name="few", **options)


def test_brackets_that_are_taken_for_a_pattern_are_explained(tmp_path):
  folder = tmp_path / "runs [lr=1e-3]"
  layouts.write_files(folder, {"a.txt": b"text\n"})
  with pytest.raises(errors.UserError, match="Brackets are a pat") as caught:
    prepare(tmp_path, f"{folder}/*.txt", **layouts.WHOLE)
  message = str(caught.value)
  assert "\n" not in message
  source = message.split("write --source='")[1].split("'")[0]
  prepared = prepare(tmp_path, source, **layouts.WHOLE)
  assert everything(prepared) == {"train": b"text\n"}
  with pytest.raises(errors.UserError, match=r"write \[\[\] for a bracket"):
    prepare(tmp_path, f"{tmp_path}/none[a]/*.txt", name="none")
  with pytest.raises(errors.UserError, match=r"'\*\.txt'\.$"):
    prepare(tmp_path, f"{tmp_path}/none/*.txt", name="none")


def test_a_file_that_is_named_twice_is_read_once(tmp_path, capsys):
  files = {"a.txt": b"one\n", "b.txt": b"two\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  (folder / "c.txt").symlink_to("a.txt")
  source = f"{folder},{folder}/a.txt,{folder}/../mine/*.txt"
  prepared = prepare(tmp_path, source, **layouts.WHOLE)
  assert everything(prepared) == {"train": b"one\ntwo\n"}
  report = capsys.readouterr().err
  assert report.startswith("2 files read, 5 skipped (named twice: 5);")


def test_linked_folders_are_read_each_once(tmp_path):
  elsewhere = layouts.write_files(tmp_path / "other", {"b.txt": b"two\n"})
  folder = layouts.write_files(tmp_path / "mine", {"sub/a.txt": b"one\n"})
  (folder / "linked").symlink_to(elsewhere)
  (folder / "sub" / "loop").symlink_to(folder)
  prepared = prepare(tmp_path, str(folder), **layouts.WHOLE)
  assert sorted(everything(prepared)["train"].split()) == [b"one", b"two"]


def test_what_was_prepared_is_no_text(tmp_path, capsys):
  """The folder of the text may be that of the data and of runs, too."""
  layouts.write_files(tmp_path, {"a.txt": b"the cat sat\n"})
  folder = prepare(tmp_path, str(tmp_path), tokenizer="word", **layouts.WHOLE)
  meta = (folder / "meta.json").read_bytes()
  kept = {"run/vocabulary/meta.json": meta, "run/vocabulary/words.txt": b"x\n"}
  layouts.write_files(tmp_path, kept)
  again = prepare(
    tmp_path, str(tmp_path), name="b", tokenizer="word", **layouts.WHOLE
  )
  assert "1 file read" in capsys.readouterr().err
  assert everything(again) == everything(folder)


def test_a_link_to_nothing_is_refused(tmp_path):
  folder = layouts.write_files(tmp_path / "mine", {"a.txt": b"one\n"})
  (folder / "b.txt").symlink_to("gone.txt")
  with pytest.raises(errors.UserError, match=r"b\.txt is a link to gone\.txt"):
    prepare(tmp_path, str(folder))


@pytest.mark.parametrize("pattern", ["", "/**/*.txt"])
def test_a_folder_that_cannot_be_read_is_not_left_out(
  tmp_path, monkeypatch, pattern
):
  files = {"a.txt": b"one\n" * 99, "locked/b.txt": b"two\n" * 99}
  folder = layouts.write_files(tmp_path / "mine", files)
  genuine = os.scandir

  def scandir(path):
    if str(path).endswith("locked"):
      raise PermissionError(13, "Permission denied", path)
    return genuine(path)

  monkeypatch.setattr(os, "scandir", scandir)
  with pytest.raises(PermissionError, match="locked"):
    prepare(tmp_path, f"{folder}{pattern}")


def test_hidden_files_and_those_of_other_programs_are_no_text(tmp_path, capsys):
  files = {
    "a.txt": b"text\n",
    ".hidden.txt": b"no\n",
    ".DS_Store": b"no\n",
    ".ipynb_checkpoints/a-checkpoint.txt": b"no\n",
    "__MACOSX/._a.txt": b"no\n",
    "node_modules/b.js": b"no\n",
  }
  folder = layouts.write_files(tmp_path / "mine", files)
  prepared = prepare(tmp_path, str(folder), **layouts.WHOLE)
  assert everything(prepared) == {"train": b"text\n"}
  report = capsys.readouterr().err
  for reason in (
    *("hidden: 2", ".ipynb_checkpoints/: 1", "__MACOSX/: 1"),
    "node_modules/: 1",
  ):
    assert reason in report


def packed_tar(mode):
  stream = io.BytesIO()
  with tarfile.open(fileobj=stream, mode=mode) as archive:
    archive.addfile(tarfile.TarInfo("a.txt"))
  return stream.getvalue()


NOT_TEXT = [
  ("a.zip", b"PK\x03\x04 and more", "a zip archive"),
  ("a.txt", b"PK\x03\x04 and more", "a zip archive"),
  ("a.docx", b"PK\x03\x04 and more", "an office document"),
  ("a.pdf", b"%PDF-1.7\n", "a PDF document"),
  ("a.tar", packed_tar("w"), "a tar archive"),
  ("a.tar.gz", packed_tar("w:gz"), "a tar archive"),
  ("a.tgz", packed_tar("w:gz"), "compressed by gzip"),
  ("a.tar.bz2", packed_tar("w:bz2"), "compressed by bzip2"),
  ("a.txt.xz", packed_tar("w:xz"), "compressed by xz"),
  ("a.zst", b"\x28\xb5\x2f\xfd and more", "compressed by zstd"),
  ("a.parquet.gz", gzip.compress(b"PAR1 and more"), "a Parquet table"),
  ("._a.txt", b"\x00\x05\x16\x07\x00\x02", "what macOS keeps"),
]


# An archive has the time in it, so it cannot be in the name of a test: two
# processes have to collect the same names.
@pytest.mark.parametrize(
  ("name", "content", "kind"),
  NOT_TEXT,
  ids=[name for name, _, _ in NOT_TEXT],
)
def test_what_is_not_text_is_refused(tmp_path, name, content, kind):
  path = tmp_path / name
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match=f"is not text, but .*{kind}"):
    prepare(tmp_path, str(path))
  assert not (tmp_path / "data" / "text").exists()


def test_a_field_without_records_is_refused(tmp_path):
  path = tmp_path / "a.json"
  path.write_text('{"body": "text"}')
  with pytest.raises(errors.UserError, match="--field=body is for records and"):
    prepare(tmp_path, str(path), field="body")


@pytest.mark.parametrize("flag", ["source", "valid_source"])
@pytest.mark.parametrize("end", [",", ", ", ",,{}"])
def test_an_empty_part_is_not_the_current_folder(
  tmp_path, monkeypatch, flag, end
):
  layouts.write_files(tmp_path, {"a.txt": b"one\n", "secret/b.md": b"two\n"})
  monkeypatch.chdir(tmp_path)
  sources = {"source": "a.txt", flag: "a.txt" + end.format("a.txt")}
  with pytest.raises(errors.UserError, match=f"--{flag}=.* has an empty part"):
    prepare(tmp_path, **sources)


def test_a_stream_is_refused_because_text_is_read_twice(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  with pytest.raises(errors.UserError, match="neither a file nor a folder"):
    prepare(tmp_path, str(tmp_path / "pipe"))


def test_gzip_and_json_lines_are_read_as_text(tmp_path):
  folder = tmp_path / "mine"
  records = [{"body": "erste\nzeile"}, {"body": "zweite \u00fc"}]
  body = "\n".join(json.dumps(record) for record in records)
  files = {
    "a.txt.gz": gzip.compress(b"first\n"),
    "b.jsonl": body.encode(),
    "c.jsonl.gz": gzip.compress(body.encode()),
  }
  layouts.write_files(folder, files)
  prepared = prepare(tmp_path, str(folder), field="body", **layouts.WHOLE)
  expected = "first\n" + 2 * "erste\nzeile\nzweite \u00fc\n"
  assert everything(prepared) == {"train": expected[:-1].encode()}
  starts = np.load(prepared / "train_documents.npy").tolist()
  first, second = len("erste\nzeile\n"), len("zweite \u00fc\n".encode())
  assert starts == np.cumsum([0, len("first\n"), first, second, first]).tolist()


def test_bytes_that_are_not_utf8_are_said_with_their_place(tmp_path, capsys):
  latin1 = "caf\u00e9 au lait\n".encode("latin-1")
  files = {f"{name}.txt": "caf\u00e9\n".encode() * 9 for name in "acd"}
  files |= {"b.txt": b"fine\n" + latin1 * 9, "e.txt": latin1 * 9}
  source = layouts.write_files(tmp_path / "source", files)
  layouts.prepare("text", tmp_path, source, **layouts.WHOLE)
  said = capsys.readouterr().err
  assert (
    f"2 files are not UTF-8, first {source}/b.txt (byte 0xe9 at offset 8): such"
    " bytes are tokens as they are; convert"
  ) in said
  for name in "be":
    (source / f"{name}.txt").unlink()
  layouts.prepare("text", tmp_path, source, name="mended", **layouts.WHOLE)
  assert "UTF-8" not in capsys.readouterr().err
