"""Where documents start: at files and records, or at lines that say so."""

import csv
import functools
import io
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data_prep import boundaries
from transformer_xl.data_prep import describe
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep.text import holdout

prepare = functools.partial(layouts.prepare, "text")

# WikiText as hubs store it, a row a line.
ROWS = [
  *("", " = One = \n", "", " One is 1 .\n", "", " = = More = = \n", ""),
  *(" Odd .\n", "", "", " = Two = \n", "", " Even .\n", ""),
]
TITLE = "^ = [^=]+ = $"


def write_jsonl(path):
  path.write_text("".join(json.dumps({"text": row}) + "\n" for row in ROWS))


def write_csv(path):
  with open(path, "w", newline="") as file:
    csv.writer(file).writerows([["id", "text"], *enumerate(ROWS)])


def write_column(path):
  """A table of one column, whose empty values are empty lines."""
  lines = ["text", *(f'"{row}"' if row else "" for row in ROWS)]
  path.write_text("\n".join(lines) + "\n")


def write_parquet(path):
  parquet.write_table(pyarrow.table({"text": ROWS}), path)


def write_arrow(path):
  rows = pyarrow.table({"text": ROWS})
  with pyarrow.ipc.new_stream(str(path), rows.schema) as writer:
    writer.write_table(rows)


WRITERS = {
  "a.jsonl": write_jsonl,
  "a.csv": write_csv,
  "b.csv": write_column,
  "a.parquet": write_parquet,
  "a.arrow": write_arrow,
}


@pytest.fixture(params=WRITERS)
def rows(request, tmp_path):
  path = tmp_path / request.param
  WRITERS[request.param](path)
  return str(path)


def documents(folder, split="train"):
  vocab_bytes = np.load(folder / f"{split}.npy").astype(np.uint8).tobytes()
  starts = np.load(folder / f"{split}_documents.npy").tolist()
  stops = [*starts[1:], len(vocab_bytes)]
  pairs = zip(starts, stops, strict=True)
  return [vocab_bytes[start:stop].decode() for start, stop in pairs]


def test_an_empty_record_is_a_blank_line_and_is_counted(tmp_path, rows, capsys):
  folder = prepare(tmp_path, rows, **layouts.WHOLE)
  expected = [row or "\n" for row in ROWS]
  if rows.endswith("b.csv"):  # An empty line at the end is no value.
    expected.pop()
  found = documents(folder)
  assert [one for one in found if one] == expected[: len(found)]
  assert len(found) >= len(ROWS) - 1
  shown = capsys.readouterr().err.splitlines()
  assert "documents of 1 to 15 tokens" in shown[1]
  empty = 8 if len(expected) == len(ROWS) else 7
  assert f"; {empty} empty, each a blank line" in shown[1]
  assert "--document_end='^$'" in shown[2]
  entry = layouts.meta(folder)["splits"]["train"]
  assert entry["num_empty_documents"] == empty


def test_words_of_rows_are_those_of_the_text_with_its_blank_lines(tmp_path):
  write_jsonl(tmp_path / "a.jsonl")
  options = {"tokenizer": "word", **layouts.WHOLE}
  through = prepare(tmp_path, str(tmp_path / "a.jsonl"), name="a", **options)
  text = "".join(row or "\n" for row in ROWS)
  (tmp_path / "b.txt").write_text(text)
  direct = prepare(tmp_path, str(tmp_path / "b.txt"), name="b", **options)
  for name in ("train.npy", "vocabulary.txt"):
    assert (through / name).read_bytes() == (direct / name).read_bytes()
  counts = [layouts.meta(one)["splits"]["train"] for one in (through, direct)]
  assert counts[0]["num_words"] == counts[1]["num_words"]
  assert counts[0]["num_lines"] == counts[1]["num_lines"] == len(ROWS)


def test_headings_make_articles_of_rows(tmp_path, rows, capsys):
  folder = prepare(tmp_path, rows, document_start=TITLE, **layouts.WHOLE)
  lines = [row or "\n" for row in ROWS]
  if rows.endswith("b.csv"):
    lines.pop()
  assert documents(folder) == [
    "\n",
    "".join(lines[1:10]),
    "".join(lines[10:]),
  ]
  shown = capsys.readouterr().err.splitlines()
  sizes = [len(text) for text in documents(folder)]
  assert shown[1:] == [
    f"train: 3 documents of 1 to {max(sizes)} tokens, {sizes[2]} in the median"
    + "; 1 empty, each a blank line"
  ]
  assert "3 documents of 1 to" in describe.describe(folder)


def test_blank_lines_end_documents_and_several_end_one(tmp_path):
  text = "\n\na\nb\n\n\nc\r\n\r\nd"
  (tmp_path / "a.txt").write_bytes(text.encode())
  folder = prepare(
    tmp_path, str(tmp_path / "a.txt"), document_end="^$", **layouts.WHOLE
  )
  assert documents(folder) == ["\n\na\nb\n\n\n", "c\r\n\r\n", "d"]


def test_a_document_may_span_files_of_records_and_not_of_text(tmp_path):
  for name in ("a", "b"):
    records = "".join(json.dumps({"text": t}) + "\n" for t in ("x", "y"))
    (tmp_path / f"{name}.jsonl").write_text(records)
    (tmp_path / f"{name}.txt").write_text("x\ny")
  options = {"document_start": "never", **layouts.WHOLE}
  rows = prepare(tmp_path, f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl", **options)
  assert documents(rows) == ["x\ny\nx\ny\n"]
  texts = prepare(
    tmp_path, f"{tmp_path}/a.txt,{tmp_path}/b.txt", name="texts", **options
  )
  assert documents(texts) == ["x\ny\n", "x\ny"]


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_documents_do_not_depend_on_pieces(monkeypatch, block):
  layouts.small_pieces(monkeypatch, block=block, longest=1 << 20)
  text = b"# a\none\n# b\n\n# c"
  rule = boundaries.parse("^# ", None)
  pieces = piece_lib.cut(io.BytesIO(text), origin="it")
  found = boundaries.divide(pieces, rule)
  assert [*piece_lib.documents(found)] == [b"# a\none\n", b"# b\n\n", b"# c"]


def test_a_pattern_that_is_none_is_refused(tmp_path):
  (tmp_path / "a.txt").write_text("text\n")
  with pytest.raises(errors.UserError, match="not a regular expression") as one:
    prepare(tmp_path, str(tmp_path / "a.txt"), document_end="(")
  assert "\n" not in str(one.value)
  assert "--document_end=(" in str(one.value)


def test_empty_files_are_counted_and_are_no_documents(tmp_path, capsys):
  files = {"a.txt": b"one\n", "b.txt": b"", "c.txt": b"two\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  prepared = prepare(tmp_path, str(folder), **layouts.WHOLE)
  assert documents(prepared) == ["one\n", "two\n"]
  assert "3 files read (1 empty: b.txt), 0 skip" in capsys.readouterr().err


@pytest.mark.parametrize("count", [3, 200])
def test_empty_documents_are_kept_when_text_is_held_out(count):
  texts = [b"one\n", b"", b"two", b""] * count

  def text():
    return (piece_lib.Piece(data, True, "it", 0) for data in texts)

  splits = holdout.divide(text, 0.1, 0.1)
  found = [p.data for split in splits.values() for p in split()]
  assert sorted(found) == sorted(texts)
