"""Which files of one's own are read, and which splits they are."""

import functools
import gzip
import json

import numpy as np
import pytest

from tests.data_prep import layouts
from transformer_xl import errors

prepare = functools.partial(layouts.prepare, "text")
everything = layouts.everything


def lines(start, stop):
  return b"".join(b"line %d\n" % i for i in range(start, stop))


def test_files_named_for_splits_are_those_splits(tmp_path):
  files = {"train.txt": b"a b\n", "valid.txt": b"b a\n", "test.txt": b"c\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  splits = everything(prepare(tmp_path, str(folder)))
  assert splits == {"train": b"a b\n", "valid": b"b a\n", "test": b"c\n"}


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
  report = "4 files read, 3 skipped (.pdf: 2, no suffix: 1)"
  assert capsys.readouterr().err.splitlines() == [report]


def test_a_folder_without_text_says_what_it_has(tmp_path):
  folder = layouts.write_files(tmp_path / "mine", {"a.pdf": b"%PDF"})
  with pytest.raises(
    errors.UserError, match=r"no files of text, but \.pdf: 1;"
  ):
    prepare(tmp_path, str(folder))


@pytest.mark.parametrize(
  ("files", "splits"),
  [
    (("train.txt", "test.txt", "README.md"), {"train", "test"}),
    (("train.jsonl", "validation.jsonl"), {"train", "valid"}),
    (("train-00000-of-00002.txt", "train-00001-of-00002.txt"), None),
    (("train.py", "test.py", "model.py"), None),
    (("train.txt", "notes.txt"), None),
  ],
)
def test_only_files_named_for_splits_are_splits(tmp_path, files, splits):
  line = b'{"text": "some text"}\n'
  folder = layouts.write_files(
    tmp_path / "mine", dict.fromkeys(files, line * 99)
  )
  found = everything(prepare(tmp_path, str(folder)))
  if splits is None:  # A part of all text is held out.
    assert len(b"".join(found.values())) == len(files) * 99 * len(line)
    splits = {"train", "valid", "test"}
  assert set(found) == splits


def test_splits_can_be_given_as_patterns(tmp_path):
  files = {"a/1.txt": b"one\n", "a/2.txt": b"two\n", "b/1.txt": b"three\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  prepared = prepare(
    tmp_path, f"{folder}/a/*.txt", valid_source=f"{folder}/b/1.txt"
  )
  assert everything(prepared) == {"train": b"one\ntwo\n", "valid": b"three\n"}


def test_held_out_files_are_no_training_text(tmp_path):
  files = {"a.txt": b"one\n", "v.txt": b"two\n", "t.txt": b"three\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  held_out = {
    "valid_source": f"{folder}/v.txt",
    "test_source": f"{folder}/../mine/t.txt",
  }
  prepared = prepare(tmp_path, str(folder), **held_out)
  expected = {"train": b"one\n", "valid": b"two\n", "test": b"three\n"}
  assert everything(prepared) == expected
  with pytest.raises(errors.UserError, match="all files of --source are valid"):
    prepare(tmp_path / "b", str(folder / "v.txt"), **held_out)


def test_a_fraction_of_text_with_splits_is_refused(tmp_path):
  files = {"train.txt": b"one\n", "test.txt": b"two\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  with pytest.raises(errors.UserError, match="valid_fraction holds a part of"):
    prepare(tmp_path, str(folder), valid_fraction=0.1)


def test_gzip_and_json_lines_are_read_as_text(tmp_path):
  folder = tmp_path / "mine"
  records = [{"body": "erste\nzeile"}, {"body": "zweite \u00fc"}]
  body = "\n".join(json.dumps(record) for record in records)
  files = {"b.jsonl": body.encode(), "a.txt.gz": gzip.compress(b"first\n")}
  layouts.write_files(folder, files)
  prepared = prepare(tmp_path, str(folder), field="body", **layouts.WHOLE)
  expected = "first\nerste\nzeile\nzweite \u00fc"
  assert everything(prepared) == {"train": expected.encode()}
  starts = np.load(prepared / "train_documents.npy").tolist()
  assert starts == [0, len("first\n"), len("first\nerste\nzeile\n")]
