"""Which splits the files of one's own text are."""

import functools
import gzip
import pathlib

import pytest

from tests.data_prep import layouts
from tests.data_prep import test_tables
from transformer_xl import errors

prepare = functools.partial(layouts.prepare, "text")
everything = layouts.everything


def test_files_named_for_splits_are_those_splits(tmp_path):
  files = {"train.txt": b"a b\n", "valid.txt": b"b a\n", "test.txt": b"c\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  splits = everything(prepare(tmp_path, str(folder)))
  assert splits == {"train": b"a b\n", "valid": b"b a\n", "test": b"c\n"}


@pytest.mark.parametrize(
  ("files", "splits"),
  [
    (("train.txt", "test.txt", "README.md"), {"train", "test"}),
    (("train.jsonl", "validation.jsonl"), {"train", "valid"}),
    (("train-00000-of-00002.txt", "train-00001-of-00002.txt"), None),
    (("train.py", "test.py", "model.py"), None),
    (("train.md", "test.md", "README.md"), {"train", "test"}),
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


@pytest.mark.parametrize("name", ["README.txt", "LICENSE.txt", "readme.jsonl"])
def test_a_readme_of_any_type_is_skipped_beside_named_splits(
  tmp_path, capsys, name
):
  files = {f"{s}.txt": f"{s}\n".encode() for s in ("train", "valid", "test")}
  folder = layouts.write_files(tmp_path / "mine", {**files, name: b"About.\n"})
  found = everything(prepare(tmp_path, str(folder)))
  assert found == {"train": b"train\n", "valid": b"valid\n", "test": b"test\n"}
  assert capsys.readouterr().err.splitlines() == [
    "3 files read, 1 skipped (not named for a split: 1);"
    " train: train.txt; valid: valid.txt; test: test.txt",
    "train: one document of 6 tokens",
    "valid: one document of 6 tokens",
    "test: one document of 5 tokens",
  ]


@pytest.mark.parametrize(
  ("names", "unnamed"),
  [
    (("train.txt", "test.txt", "vocab.txt"), "vocab.txt"),
    (("train.txt", "valid.txt", "notes.txt"), "notes.txt"),
    (("train.jsonl", "dev.jsonl", "other.jsonl.gz"), "other.jsonl.gz"),
    (("books_train.txt", "books_test.txt", "more.txt"), "more.txt"),
    (("a.txt", "b.txt", "test.txt"), "a.txt, b.txt"),
    # No training text is named, and the programs may be it.
    (("test.txt", "main.py"), "main.py"),
  ],
)
def test_held_out_text_is_not_merged_with_files_of_other_names(
  tmp_path, names, unnamed
):
  folder = layouts.write_files(tmp_path / "mine", dict.fromkeys(names, b"a\n"))
  with pytest.raises(errors.UserError, match=rf"are not \({unnamed}\)"):
    prepare(tmp_path, str(folder))
  assert not (tmp_path / "data" / "text").exists()


@pytest.mark.parametrize(
  ("train", "valid"),
  [
    (("books_train.txt",), ("books_dev.txt",)),
    (("wiki.train.txt",), ("wiki.valid.txt",)),
    (("train1.txt", "train_2.txt"), ("valid_1.txt",)),
    (("train/a.txt", "train/b/c.txt"), ("valid/a.txt",)),
    (("train.jsonl.gz",), ("validation.jsonl",)),
    (("wiki_train_1.txt", "wiki_train_2.txt"), ("wiki_valid_1.txt",)),
    (("data/train/a.txt", "data/train/b.txt"), ("data/valid/a.txt",)),
    (
      ("c4-train.00000-of-00002.jsonl", "c4-train.00001-of-00002.jsonl"),
      ("c4-validation.00000-of-00001.jsonl",),
    ),
  ],
)
def test_splits_can_be_named_in_longer_names_and_in_folders(
  tmp_path, train, valid
):
  folder = tmp_path / "mine"
  for split, names in {"train": train, "valid": valid}.items():
    data = b'{"text": "%s"}\n' % split.encode()
    packed = gzip.compress(data)
    files = {n: packed if n.endswith(".gz") else data for n in names}
    layouts.write_files(folder, files)
  found = everything(prepare(tmp_path, str(folder)))
  assert list(found) == ["train", "valid"]
  assert found["train"].count(b"train") == len(train)
  assert found["valid"].count(b"valid") == len(valid)
  assert found["train"].count(b"valid") == 0


SPLIT_FOLDERS = ("train/a.txt", "train/b.txt", "valid/a.txt", "test/a.txt")


@pytest.mark.parametrize(
  "source",
  [
    "{0}",
    "{0}/*/*.txt",
    "{0}/**/*.txt",
    "{0}/train,{0}/valid,{0}/test",
    "{0}/tr*/*.txt,{0}/valid/a.txt,{0}/test",
  ],
)
def test_folders_of_splits_count_however_they_are_named(tmp_path, source):
  # A folder above all of them says nothing.
  folder = tmp_path / "test"
  files = {name: name.split("/")[0].encode() for name in SPLIT_FOLDERS}
  layouts.write_files(folder, files)
  found = everything(prepare(tmp_path, source.format(folder)))
  assert found == {"train": b"train\ntrain", "valid": b"valid", "test": b"test"}


def test_a_pattern_with_validation_text_has_no_test_text_to_train_on(tmp_path):
  folder = tmp_path / "mine"
  layouts.write_files(folder, dict.fromkeys(SPLIT_FOLDERS, b"a\n"))
  with pytest.raises(errors.UserError, match=r"a\.txt is named for the test "):
    prepare(tmp_path, f"{folder}/*/*.txt", valid_source=f"{folder}/valid")


@pytest.mark.parametrize(
  ("files", "train", "valid", "test"),
  [
    # Titles do not count where a folder has the training text.
    (
      ("train/a.txt", "train/dev_notes.txt", "test/t.txt", "test/train_2.txt"),
      ("a", "dev_notes"),
      (),
      ("t", "train_2"),
    ),
    # They do in a folder that happens to have such a name.
    (
      ("dev/books_train.txt", "dev/books_test.txt"),
      ("books_train",),
      (),
      ("books_test",),
    ),
  ],
)
def test_folders_count_before_titles_if_one_has_the_training_text(
  tmp_path, files, train, valid, test
):
  folder = tmp_path / "mine"
  contents = {name: pathlib.Path(name).stem.encode() for name in files}
  layouts.write_files(folder, contents)
  found = everything(prepare(tmp_path, str(folder)))
  expected = {"train": train, "valid": valid, "test": test}
  assert found == {
    split: "\n".join(names).encode()
    for split, names in expected.items()
    if names
  }


def test_a_book_may_have_the_name_of_a_split_in_its_title(tmp_path):
  files = {"emma.txt": b"one\n", "turing_test.txt": b"two\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  prepared = prepare(tmp_path, str(folder), **layouts.WHOLE)
  assert everything(prepared) == {"train": b"one\ntwo\n"}


def test_text_that_is_named_for_a_split_is_not_trained_on_unasked(tmp_path):
  files = {"train.txt": b"one\n", "test.txt": b"two\n", "v.txt": b"three\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  with pytest.raises(
    errors.UserError, match=r"test\.txt is named for the test split"
  ):
    prepare(tmp_path, str(folder), valid_source=f"{folder}/v.txt")
  prepared = prepare(
    tmp_path,
    str(folder),
    valid_source=f"{folder}/v.txt",
    test_source=f"{folder}/test.txt",
  )
  expected = {"train": b"one\n", "valid": b"three\n", "test": b"two\n"}
  assert everything(prepared) == expected


def test_text_is_not_both_for_validation_and_for_the_test(tmp_path):
  files = {"a.txt": b"one\n", "b.txt": b"two\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  with pytest.raises(errors.UserError, match=r"both have .*b\.txt; name other"):
    prepare(
      tmp_path,
      f"{folder}/a.txt",
      valid_source=f"{folder}/b.txt",
      test_source=f"{folder}/*.txt",
    )


def test_the_folder_of_a_table_says_nothing_above_the_source(tmp_path):
  """As where the user's own folder is called dev."""
  for name in ("a", "b"):
    test_tables.write_parquet(tmp_path / f"dev/{name}.parquet", [name])
  folder = prepare(tmp_path, str(tmp_path / "dev"), **layouts.WHOLE)
  assert [*everything(folder)] == ["train"]


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


@pytest.mark.parametrize("name", ["valid.txt", "test.txt"])
def test_a_single_file_is_training_text_whatever_its_name(tmp_path, name):
  folder = layouts.write_files(tmp_path / "mine", {name: b"one\n" * 99})
  prepared = prepare(tmp_path, str(folder / name))
  assert {*everything(prepared)} == {"train", "valid", "test"}
