"""Text in Parquet files and in the folders of HuggingFace datasets."""

import csv
import functools
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data_prep import source
from transformer_xl.data_prep.text import readers

prepare = functools.partial(layouts.prepare, "text")


def everything(folder):
  """Returns the text of each split, and where its documents start."""
  return {
    split: (text, np.load(folder / f"{split}_documents.npy").tolist())
    for split, text in layouts.everything(folder).items()
  }


def table(texts, column="text"):
  ids = pyarrow.array(range(len(texts)))
  return pyarrow.table({"id": ids, column: pyarrow.array(texts)})


def write_parquet(path, texts, **options):
  path.parent.mkdir(parents=True, exist_ok=True)
  parquet.write_table(table(texts, **options), path)
  return path


def write_arrow(folder, shards, *, stale=()):
  """Writes what `Dataset.save_to_disk` of HuggingFace's datasets writes."""
  folder.mkdir(parents=True)
  names = [
    f"data-{i:05d}-of-{len(shards):05d}.arrow" for i in range(len(shards))
  ]
  shards = {**dict(zip(names, shards, strict=True)), "cache-1f.arrow": stale}
  for name, texts in shards.items():
    rows = table(list(texts) or ["stale"])
    with pyarrow.ipc.new_stream(str(folder / name), rows.schema) as writer:
      writer.write_table(rows)
  state = {"_data_files": [{"filename": name} for name in names]}
  (folder / "state.json").write_text(json.dumps(state))
  (folder / "dataset_info.json").write_text("{}")


def test_every_row_of_a_parquet_file_is_a_document(tmp_path):
  path = write_parquet(tmp_path / "a.parquet", ["eins\n", "", "zw\u00f6lf"])
  folder = prepare(tmp_path, str(path), **layouts.WHOLE)
  text = "eins\n\nzw\u00f6lf".encode()
  assert everything(folder) == {"train": (text, [0, 5, 6])}


def test_a_column_can_be_named_and_a_wrong_one_is_answered(tmp_path):
  path = write_parquet(tmp_path / "a.parquet", ["a\n"] * 9, column="content")
  folder = prepare(tmp_path, str(path), field="content", **layouts.WHOLE)
  assert everything(folder)["train"][0] == b"a\n" * 9
  with pytest.raises(errors.UserError, match="no column 'text', only id, cont"):
    prepare(tmp_path, str(path), name="other")
  with pytest.raises(errors.UserError, match=r"row 1 of .* has no text in"):
    prepare(tmp_path, str(path), name="other", field="id")


@pytest.mark.parametrize(
  ("column", "kind"), [([["a", "b"], ["c"]], "list"), ([{"a": "b"}], "dict")]
)
def test_a_column_of_lists_is_not_called_damaged(tmp_path, column, kind):
  path = tmp_path / "a.parquet"
  parquet.write_table(pyarrow.table({"text": column}), path)
  with pytest.raises(errors.UserError, match=f"row 1 .*{kind}.*--field"):
    prepare(tmp_path, str(path))


@pytest.mark.parametrize(
  "names",
  [
    ["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"],
    ["train-00000-of-00001-a09b74b3ef9c3b56", "validation-00000-of-00001"],
    ["default/train/0000", "default/validation/0000", "default/test/0000"],
  ],
)
def test_files_of_the_hub_are_the_splits_that_they_are_named_for(
  tmp_path, names
):
  source = tmp_path / "hub"
  layouts.write_files(
    source, {"README.md": b"# A card\n", ".gitattributes": b""}
  )
  for name in names:
    write_parquet(source / "data" / f"{name}.parquet", [f"{name}\n"] * 2)
  found = everything(prepare(tmp_path, str(source)))
  expected = {}
  for name in names:
    split = next(s for s in ("train", "valid", "test") if s in name)
    text, _ = expected.get(split, (b"", []))
    starts = range(0, len(text) + 2 * len(name) + 2, len(name) + 1)
    expected[split] = (text + f"{name}\n".encode() * 2, list(starts))
  assert found == expected


def test_a_saved_dataset_is_read_without_its_stale_caches(tmp_path):
  write_arrow(tmp_path / "saved", [["a\n"] * 50, ["b\n"] * 50], stale=["no\n"])
  folder = prepare(tmp_path, str(tmp_path / "saved"), **layouts.WHOLE)
  assert everything(folder)["train"][0] == b"a\n" * 50 + b"b\n" * 50


def test_a_saved_dictionary_of_datasets_has_its_splits(tmp_path):
  saved = tmp_path / "saved"
  for split in ("train", "validation", "test"):
    write_arrow(saved / split, [[f"{split}\n"] * 3])
  (saved / "dataset_dict.json").write_text("{}")
  found = everything(prepare(tmp_path, str(saved)))
  assert {split: text for split, (text, _) in found.items()} == {
    "train": b"train\n" * 3,
    "valid": b"validation\n" * 3,
    "test": b"test\n" * 3,
  }


def test_arrow_files_with_a_footer_are_read_too(tmp_path):
  path = tmp_path / "a.arrow"
  rows = table(["a\n", "b\n"])
  with pyarrow.ipc.new_file(str(path), rows.schema) as writer:
    writer.write_table(rows, max_chunksize=1)
  folder = prepare(tmp_path, str(path), **layouts.WHOLE)
  assert everything(folder) == {"train": (b"a\nb\n", [0, 2])}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_damaged_tables_are_refused_in_one_line(tmp_path, suffix, part):
  path = tmp_path / f"a{suffix}"
  if suffix == ".parquet":
    write_parquet(path, ["some text\n"] * 500)
  else:
    rows = table(["some text\n"] * 500)
    with pyarrow.ipc.new_stream(str(path), rows.schema) as writer:
      writer.write_table(rows)
  data = path.read_bytes()
  path.write_bytes(data[: int(len(data) * part)])
  with pytest.raises(errors.UserError, match="damaged or cut short") as raised:
    prepare(tmp_path, str(path))
  assert "\n" not in str(raised.value)
  assert not (tmp_path / "data" / "text").exists()


def test_a_stream_that_is_cut_between_batches_is_refused(tmp_path):
  path = tmp_path / "a.arrow"
  rows = table(["some text\n"] * 500)
  with (
    open(path, "wb") as file,
    pyarrow.ipc.new_stream(file, rows.schema) as writer,
  ):
    writer.write_table(rows)
    end_of_first_batch = file.tell()
    writer.write_table(rows)
  path.write_bytes(path.read_bytes()[:end_of_first_batch])
  with pytest.raises(errors.UserError, match="the stream has no end"):
    prepare(tmp_path, str(path))


def test_a_damaged_list_of_files_is_refused(tmp_path):
  write_arrow(tmp_path / "saved", [["a\n"]])
  (tmp_path / "saved" / "state.json").write_text("[]")
  with pytest.raises(errors.UserError, match=r"state\.json is damaged"):
    prepare(tmp_path, str(tmp_path / "saved"))


def test_every_row_of_a_csv_file_is_a_document(tmp_path):
  """Also with a byte order mark, quoted line ends, long values, empty lines."""
  rows = [['one, "two"\r\nthree', "1"], ["", "2"], ["x" * 200_000, "3"]]
  path = tmp_path / "a.csv"
  with open(path, "w", encoding="utf-8-sig", newline="") as file:
    csv.writer(file).writerows([["text", "id"], *rows])
    file.write("\r\n\n")
  folder = prepare(tmp_path, str(path), **layouts.WHOLE)
  text = 'one, "two"\r\nthree\n\n' + "x" * 200_000
  assert everything(folder) == {"train": (text.encode(), [0, 18, 19])}


@pytest.mark.parametrize(
  ("data", "says"),
  [
    (b"", "no column 'text', only none"),
    (b"id,body\n1,a\n", "no column 'text', only id, body; name the column"),
    (b"text,text\n1,a\n", "2 columns 'text'; give one of them another name"),
    (b"id,text\n1,a\n2\n", "after row 2 .1 values for 2 columns"),
    (b'id,text\n1,"a\n', "not CSV in UTF-8"),
    (b"id,text\n1,\xff\n", "not CSV in UTF-8"),
  ],
)
def test_a_damaged_csv_file_is_refused(tmp_path, data, says):
  path = tmp_path / "a.csv"
  path.write_bytes(data)
  with pytest.raises(errors.UserError, match=says):
    prepare(tmp_path, str(path), **layouts.WHOLE)
  assert layouts.remains(tmp_path) == []


@pytest.mark.parametrize(
  "kind",
  [
    pyarrow.string(),
    pyarrow.large_string(),
    pyarrow.string_view(),
    pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
  ],
  ids=str,
)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_every_type_of_text_is_read(tmp_path, kind, suffix):
  texts = ["eins\n", "", "zw\u00f6lf", "eins\n"] * 3
  rows = pyarrow.table({"text": pyarrow.array(texts).cast(kind)})
  path = tmp_path / f"a{suffix}"
  if suffix == ".parquet":
    parquet.write_table(rows, path, row_group_size=5)
  else:
    with pyarrow.ipc.new_stream(str(path), rows.schema) as writer:
      writer.write_table(rows, max_chunksize=12)
  text, starts = everything(prepare(tmp_path, str(path), **layouts.WHOLE))[
    "train"
  ]
  assert text.decode() == "eins\n\nzw\u00f6lf\neins\n" * 3
  assert len(starts) == 12


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_a_table_that_unpacks_to_very_much_is_refused_in_little_memory(
  tmp_path, use_dictionary, monkeypatch
):
  """By what it states, or by what was read."""
  path = tmp_path / "a.parquet"
  rows = pyarrow.table({"text": ["x" * 1_000_000 + "\n"] * 64})
  parquet.write_table(
    rows, path, compression="zstd", use_dictionary=use_dictionary
  )
  assert path.stat().st_size < 100_000
  monkeypatch.setattr(source, "_FREE_BYTES", 1 << 24)
  del rows
  before = pyarrow.total_allocated_bytes()
  seen = []
  document = readers._document

  def watched(*arguments):
    seen.append(pyarrow.total_allocated_bytes() - before)
    return document(*arguments)

  monkeypatch.setattr(readers, "_document", watched)
  with pytest.raises(errors.UserError, match="over 200 times its size") as one:
    prepare(tmp_path, str(path), **layouts.WHOLE)
  assert "\n" not in str(one.value)
  assert max(seen, default=0) < 10_000_000  # A batch was 64 times as long.
  assert layouts.remains(tmp_path) == []


def test_long_rows_are_read_a_few_at_a_time(tmp_path, monkeypatch):
  path = tmp_path / "a.parquet"
  generator = np.random.default_rng(0)
  texts = [generator.bytes(50_000).hex() + "\n" for _ in range(64)]
  parquet.write_table(pyarrow.table({"text": texts}), path)
  monkeypatch.setattr(readers, "_BYTES_AT_ONCE", 300_000)
  asked = []
  iter_batches = parquet.ParquetFile.iter_batches

  def counted(table, rows, **options):
    asked.append(rows)
    return iter_batches(table, rows, **options)

  monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
  folder = prepare(tmp_path, str(path), **layouts.WHOLE)
  assert everything(folder)["train"][0] == "".join(texts).encode()
  assert {*asked} == {2}
