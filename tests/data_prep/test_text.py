"""Anybody's own text: how it is split and cut into tokens."""

import functools

import numpy as np
import pytest
import tokenizers

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import describe

prepare = functools.partial(layouts.prepare, "text")
everything = layouts.everything


def lines(start, stop):
  return b"".join(b"line %d\n" % i for i in range(start, stop))


def test_one_file_is_cut_at_ends_of_lines_and_nothing_is_lost(tmp_path):
  path = tmp_path / "book.txt"
  path.write_bytes(lines(0, 1000)[:-1])
  splits = everything(prepare(tmp_path, str(path)))
  assert list(splits) == ["train", "valid", "test"]
  assert b"".join(splits.values()) == path.read_bytes()
  for text in (splits["train"], splits["valid"]):
    assert text.endswith(b"\n")
  assert 0.03 < len(splits["valid"]) / len(path.read_bytes()) < 0.07


@pytest.mark.parametrize(
  "text",
  [
    b"word " * 2000 + b"\n",  # One line.
    (b"word " * 100 + b"\n") * 10,
    (b"w" * 99 + b"\n") * 15,
    b"word " * 2000 + b"\nend\n",  # No cut so near to the end.
    "\u00e9".encode() * 1000,
  ],
)
def test_every_split_of_a_text_with_few_lines_has_about_its_share(
  tmp_path, text
):
  path = tmp_path / "book.txt"
  path.write_bytes(text)
  splits = everything(prepare(tmp_path, str(path)))
  assert list(splits) == ["train", "valid", "test"]
  assert b"".join(splits.values()) == text
  for split in ("valid", "test"):
    splits[split].decode("utf-8")  # Characters are whole.
    assert 0.02 < len(splits[split]) / len(text) < 0.1


def test_pieces_and_not_files_are_what_memory_holds(tmp_path, monkeypatch):
  path = tmp_path / "book.txt"
  path.write_bytes(lines(0, 300))
  whole = everything(prepare(tmp_path, str(path), name="whole"))
  layouts.small_pieces(monkeypatch, block=64, longest=128)
  assert everything(prepare(tmp_path, str(path), name="pieces")) == whole


def test_whole_documents_are_held_out_where_there_are_many(tmp_path):
  files = {f"{i:03d}.txt": b"document %d\n" % i for i in range(200)}
  folder = layouts.write_files(tmp_path / "books", files)
  prepared = prepare(tmp_path, str(folder), valid_fraction=0.1)
  splits = everything(prepared)
  found = [line for text in splits.values() for line in text.splitlines(True)]
  assert sorted(found) == sorted(files.values())
  assert len(splits["valid"].splitlines()) == pytest.approx(20, abs=2)
  assert len(splits["test"].splitlines()) == pytest.approx(10, abs=2)
  for split, text in splits.items():
    starts = np.load(prepared / f"{split}_documents.npy")
    assert len(starts) == len(text.splitlines())
    assert all(text[start:].startswith(b"document") for start in starts)


@pytest.mark.parametrize("large", [2, 25, 49])
def test_held_out_text_is_a_share_of_the_bytes_and_not_of_the_documents(
  tmp_path, large
):
  files = {f"{i:03d}.txt": b"document %d\n" % i for i in range(50)}
  files[f"{large:03d}.txt"] = lines(0, 20_000)
  folder = layouts.write_files(tmp_path / "books", files)
  splits = everything(prepare(tmp_path, str(folder)))
  num_bytes = sum(map(len, splits.values()))
  assert b"".join(splits.values()) == b"".join(files[n] for n in sorted(files))
  for split in ("valid", "test"):
    assert len(splits[split]) / num_bytes == pytest.approx(0.05, rel=0.01)


def test_words_get_ids_by_frequency_and_the_rest_is_unknown(tmp_path):
  files = {"train.txt": b"B b b c c d\n", "valid.txt": b"b new\n"}
  folder = layouts.write_files(tmp_path / "mine", files)
  prepared = prepare(
    tmp_path, str(folder), tokenizer="word", lower_case=True, min_freq=2
  )
  symbols, _ = layouts.read(prepared, "valid")
  assert vocabulary.load(str(prepared)).symbols == ("<eos>", "<unk>", "b", "c")
  assert symbols == ["b", "<unk>", "<eos>"]
  assert layouts.read(prepared, "train")[0][-2:] == ["<unk>", "<eos>"]


@pytest.mark.parametrize("kind", ["word", "subword"])
def test_unknown_tokens_are_counted_and_many_are_warned_of(
  tmp_path, kind, capsys
):
  text = tmp_path / "a.txt"
  text.write_text("a b zz yy xx ww vv uu a\n")
  given = tmp_path / "words"
  if kind == "word":
    given.write_text("<eos>\n<unk>\na\nb\n")
  else:
    ids = {"a": 0, "b": 1, "<unk>": 2, "zz": 3}
    model = tokenizers.Tokenizer(
      tokenizers.models.WordLevel(ids, unk_token="<unk>")
    )
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.save(str(given))
  options = {"tokenizer": kind, "vocabulary_file": str(given)}
  folder = prepare(tmp_path, str(text), **options, **layouts.WHOLE)
  entry = layouts.meta(folder)["splits"]["train"]
  found = (entry["num_unknown"], entry["num_tokens"])
  assert found == {"word": (6, 10), "subword": (5, 9)}[kind]
  share = {"word": "60.0%", "subword": "55.6%"}[kind]
  assert f"{share} of the tokens of the train split are" in (
    capsys.readouterr().err
  )
  assert f"tokens are unknown ({found[0] / found[1]:.2%})" in (
    describe.describe(folder)
  )
  text.write_text("a b zz a a b\n" * 9)  # A seventh and a sixth.
  prepare(tmp_path, str(text), name="fits", **options, **layouts.WHOLE)
  assert "unknown" not in capsys.readouterr().err


def test_equal_counts_keep_the_order_in_which_words_were_met(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text("z y x y z x w\n")
  prepared = prepare(tmp_path, str(path), tokenizer="word", **layouts.WHOLE)
  symbols = vocabulary.load(str(prepared)).symbols
  assert symbols == ("<eos>", "<unk>", "z", "y", "x", "w")


def test_max_size_counts_all_symbols(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text("a a a b b c\n")
  prepared = prepare(
    tmp_path, str(path), tokenizer="word", max_size=3, **layouts.WHOLE
  )
  assert vocabulary.load(str(prepared)).symbols == ("<eos>", "<unk>", "a")


def test_a_last_line_without_newline_has_its_end_marker(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text("a b\nc")
  prepared = prepare(tmp_path, str(path), tokenizer="word", **layouts.WHOLE)
  tokens, _ = layouts.read(prepared, "train")
  assert tokens == ["a", "b", "<eos>", "c", "<eos>"]


def test_characters_of_all_splits_have_ids(tmp_path):
  files = {"train.txt": b"ab\n", "valid.txt": "é\n".encode()}
  folder = layouts.write_files(tmp_path / "mine", files)
  prepared = prepare(tmp_path, str(folder), tokenizer="character")
  assert everything(prepared)["valid"] == "é\n".encode()


def test_subwords_come_back_exactly_and_count_the_same_words(tmp_path):
  text = "low lower lowest \u00fc\U0001f600\n" * 50
  path = tmp_path / "a.txt"
  path.write_text(text)
  words = prepare(
    tmp_path, str(path), tokenizer="word", name="w", **layouts.WHOLE
  )
  subwords = prepare(
    tmp_path,
    str(path),
    tokenizer="subword",
    max_size=300,
    name="s",
    **layouts.WHOLE,
  )
  assert everything(subwords)["train"].decode() == text
  ours, theirs = (
    layouts.meta(folder)["splits"]["train"] for folder in (subwords, words)
  )
  # What word perplexity and bits per byte are divided by.
  assert ours["num_words"] == theirs["num_words"] == 50 * 5
  assert ours["num_words"] == theirs["num_tokens"] != ours["num_tokens"]
  assert ours["num_bytes"] == theirs["num_bytes"] == len(text.encode())
  assert ours["num_characters"] == len(text)


def test_a_prepared_vocabulary_can_be_used_again(tmp_path):
  first, second = tmp_path / "a.txt", tmp_path / "b.txt"
  first.write_text("a b\n")
  second.write_text("b x\n")
  options = {"tokenizer": "word", "valid_fraction": 0, "test_fraction": 0}
  one = prepare(tmp_path, str(first), name="one", **options)
  two = prepare(
    tmp_path, str(second), name="two", vocabulary_file=str(one), **options
  )
  names = ("vocabulary.txt",)
  assert all(
    (one / name).read_bytes() == (two / name).read_bytes() for name in names
  )
  assert layouts.read(two, "train")[0] == ["b", "<unk>", "<eos>"]


def test_a_changed_vocabulary_makes_another_dataset(tmp_path):
  # The call names the file alone, and no source.
  make = functools.partial(
    layouts.prepare, "parity", tmp_path, None, num_tokens=10_000
  )
  words = tmp_path / "words.txt"
  words.write_bytes((make() / "vocabulary.txt").read_bytes())
  folder = make(name="given", vocabulary_file=str(words))
  before = layouts.meta(folder)
  with words.open("a") as file:
    file.write("another\n")
  with pytest.raises(errors.UserError, match="holds something else"):
    make(name="given", vocabulary_file=str(words))
  assert layouts.meta(folder) == before


@pytest.mark.parametrize("kind", ["byte", "character", "word", "subword"])
def test_the_vocabulary_file_of_a_prepared_dataset_is_its_vocabulary(
  tmp_path, kind
):
  path = tmp_path / "a.txt"
  path.write_text("a\\b c\u200bd X\n" * 9, "utf-8")
  options = {"tokenizer": kind, **layouts.WHOLE}
  if kind != "byte":
    options["lower_case"] = True
  if kind == "subword":
    options["max_size"] = 280
  one = prepare(tmp_path, str(path), name="one", **options)
  name = "vocabulary.json" if kind == "subword" else "vocabulary.txt"
  two = prepare(
    tmp_path,
    str(path),
    name="two",
    vocabulary_file=str(one / name),
    **layouts.WHOLE,
  )
  for file in (name, "train.npy"):
    assert (one / file).read_bytes() == (two / file).read_bytes()
  assert layouts.meta(one)["tokenizer"] == layouts.meta(two)["tokenizer"]


@pytest.mark.parametrize(
  ("prepared", "options", "message"),
  [
    ("byte", {"tokenizer": "word"}, "--tokenizer is word, but .* has byte"),
    ("word", {"lower_case": True}, "--lower_case is True, but .* has False"),
    ("word", {"max_size": 5}, "--max_size=5 limits a vocabulary that is made"),
    ("word", {"min_freq": 9}, "--min_freq=9 limits a vocabulary that is made"),
    ("list", {"max_size": 5}, "--max_size=5 limits a vocabulary that is made"),
  ],
)
def test_a_flag_that_a_given_vocabulary_overrides_is_refused(
  tmp_path, prepared, options, message
):
  path = tmp_path / "a.txt"
  path.write_text("a b c\n" * 99)
  if prepared == "list":
    given = tmp_path / "words.txt"
    given.write_text("<eos>\n<unk>\na\n")
    options = {"tokenizer": "word", **options}
  else:
    given = prepare(tmp_path, str(path), name="one", tokenizer=prepared)
  with pytest.raises(errors.UserError, match=message):
    prepare(tmp_path, str(path), vocabulary_file=str(given), **options)
  assert not (tmp_path / "data" / "text").exists()


@pytest.mark.parametrize("lower_case", [False, True])
def test_the_end_of_a_line_is_not_a_word_of_the_text(tmp_path, lower_case):
  path = tmp_path / "a.txt"
  path.write_text("one <EOS> two\n" if lower_case else "one <eos> two\n")
  options = {"lower_case": lower_case, **layouts.WHOLE}
  with pytest.raises(errors.UserError, match=r"a\.txt has the word '<eos>'"):
    prepare(tmp_path, str(path), tokenizer="word", **options)
  path.write_text("one x<eos> two\n")
  prepare(tmp_path, str(path), tokenizer="word", **options)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_list_of_words_gives_the_ids(tmp_path, encoding):
  path = tmp_path / "a.txt"
  path.write_text("the \\ cat\n")
  listed = tmp_path / "words.txt"
  listed.write_text("cat 12\n<eos> 9\n\\ 5\n<unk>\n", encoding)
  prepared = prepare(
    tmp_path,
    str(path),
    tokenizer="word",
    vocabulary_file=str(listed),
    **layouts.WHOLE,
  )
  tokens = np.load(prepared / "train.npy").tolist()
  assert tokens == [3, 2, 0, 1]


@pytest.mark.parametrize(
  ("listed", "message"),
  [
    ("cat\n<unk>\n", "'<eos>' is missing"),
    ("cat\n<eos>\n<unk>\ncat\n", "'cat' is there twice"),
  ],
)
def test_a_list_that_cannot_serve_is_refused(tmp_path, listed, message):
  path, words = tmp_path / "a.txt", tmp_path / "words.txt"
  path.write_text("the cat\n")
  words.write_text(listed)
  with pytest.raises(errors.UserError, match=message):
    prepare(tmp_path, str(path), tokenizer="word", vocabulary_file=str(words))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"tokenizer": "subword"}, "number of subwords"),
    ({"max_size": 5}, "--max_size is for --tokenizer=word"),
    ({"min_freq": 5}, "--min_freq is for --tokenizer=word, not byte"),
    ({"lower_case": True}, "--lower_case is for .* not byte"),
    ({"valid_fraction": 1.5}, "fractions of the text"),
    ({"vocabulary_file": "missing"}, "does not exist"),
    ({"mode": "bytes"}, "--mode is for"),
    ({"valid_source": "missing"}, "--valid_source=missing does not exist"),
    (
      {"valid_source": "*.nothing"},
      r"--valid_source=\*.nothing does not exist",
    ),
    ({"tokenizer": "subword", "max_size": 100}, "at least 256"),
    ({"tokenizer": "subword", "max_size": 10**20}, "at most 16777216"),
    ({"tokenizer": "word", "max_size": 1}, "set at least 3"),
    ({"tokenizer": "word", "max_size": 2}, "set at least 3"),
    ({"name": ""}, "--name is empty; give it a value, or leave it out"),
    ({"vocabulary_file": ""}, "--vocabulary_file is empty"),
    ({"valid_source": ""}, "--valid_source is empty"),
  ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, message):
  path = tmp_path / "a.txt"
  path.write_text("text\n")
  with pytest.raises(errors.UserError, match=message):
    prepare(tmp_path, str(path), **options)
  assert not (tmp_path / "data" / "text").exists()


def test_no_source_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match="needs your text"):
    prepare(tmp_path, None)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"{}\n", "no text in the field 'text'"),
    (b'{"text": 1}\n', "no text in the field 'text'"),
    (b"[]\n", "no text in the field 'text'"),
    (b'{"text": "a"}\n{\n', r"line 2 of .* is not JSON"),
    (b'{"text": "a"}\n{"text": null}\n', "line 2 .*'text', but null; delete"),
    (b'{"body": "a", "id": 1}\n', "its fields are body, id; name the field"),
  ],
)
def test_records_without_text_are_refused_with_their_line(
  tmp_path, content, message
):
  path = tmp_path / "a.jsonl"
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match=message):
    prepare(tmp_path, str(path))
